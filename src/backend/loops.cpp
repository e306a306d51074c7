#include "backend/loops.h"

#include <algorithm>
#include <utility>

#include "backend/loop_builder.h"
#include "backend/loop_values.h"
#include "base/check.h"
#include "base/error.h"
#include "ir/block.h"
#include "ir/window.h"
#include "kernel/print_c.h"
#include "plan/memory.h"
#include "plan/strides.h"

namespace tessera::kernel {
namespace {

class LoopLowering {
 public:
  LoopLowering(const Graph& g, const std::vector<bool>& data)
      : g_(g), data_(data), builder_(g, f_) {}
  Function run();

 private:
  void interface();
  void lower(const Op& op);
  void place_workspace();

  void reduction(const Op& op);
  void cumsum(const Op& op);
  void product(const Op& op);
  void one_product(TensorId a, TensorId b, int buffer,
                   const decltype(Fold::finish)& finish = Fold().finish);
  void convolution(const Op& op);
  void transposed_convolution(const Op& op);
  void pool(const Op& op);
  void joined(const Op& op);
  void gather(const Op& op);
  // The operand with `fill` around it: its innermost axes are those of windows.
  int padded(const Op& op, const std::vector<WindowAxis>& axes, const Rational& fill,
             std::vector<int64_t>& extents);

  std::vector<int64_t> shape(TensorId t) const { return extents(g_.type(t).shape); }
  int home(const Op& op) const { return builder_.home[op.result().index]; }
  std::string note(const Op& op) const {
    const std::string& own = g_.tensor(op.result()).name;
    return (own.empty() ? "" : own + " = ") + name(op.kind) + ": " + g_.type(op.result()).str();
  }

  const Graph& g_;
  const std::vector<bool>& data_;
  Function f_;
  LoopBuilder builder_;
};

Indices part_of(const Indices& all, size_t from, size_t count) {
  return Indices(all.begin() + int64_t(from), all.begin() + int64_t(from + count));
}

// The dtype that products are made and added up in.
DType wide(DType dtype) { return is_sixteen(dtype) ? DType::F32 : dtype; }
Scalar times(const Scalar& a, const Scalar& b) {
  return apply(OpKind::Mul, {cast(a, wide(a.dtype)), cast(b, wide(b.dtype))});
}

// --- reductions and scans

void LoopLowering::reduction(const Op& op) {
  const auto& a = g_.attrs<ReduceAttrs>(op);
  const TensorId x = op.inputs[0];
  Fold f;
  f.kind = *fold_of(op.kind == OpKind::Mean ? OpKind::Sum : op.kind);
  f.buffer = home(op);
  std::vector<int> place;  // of an axis of the operand: in `in`, or −1 − its place in `out`
  int64_t count = 1;
  const auto all = shape(x);
  for (size_t d = 0; d < all.size(); ++d) {
    const bool gone = std::ranges::binary_search(a.axes, int(d));
    place.push_back(gone ? int(f.in.size()) : -1 - int(f.out.size()));
    (gone ? f.in : f.out).push_back(all[d]);
    if (gone) count *= all[d];
  }
  f.term = [this, x, place](const Indices& out, const Indices& in) {
    Indices at;
    for (const int p : place) at.push_back(p < 0 ? out[size_t(-1 - p)] : in[size_t(p)]);
    return builder_.element(x, at);
  };
  if (op.kind == OpKind::Mean)
    f.finish = [count](const Scalar& total, const Indices&) {
      return apply(OpKind::Div, {total, literal(total.dtype, count)});
    };
  builder_.fold(f);
}

void LoopLowering::cumsum(const Op& op) {
  const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
  const auto all = shape(op.inputs[0]);
  auto others = all;
  const int64_t n = std::exchange(others[axis], 1);
  const DType dtype = g_.type(op.result()).dtype, as = is_sixteen(dtype) ? DType::F32 : dtype;
  Indices at(all.size());
  builder_.nest(LoopKind::Parallel, others, at, [&] {
    const int total = builder_.local(as, 1);
    builder_.store(total, 0, literal(as, 0));
    builder_.loop(LoopKind::Serial, n, [&](const Expr& i) {
      at[axis] = i;
      const Scalar x = cast(builder_.element(op.inputs[0], at), as);
      builder_.statement({Accumulate{total, 0, AccumKind::Sum, x}});
      builder_.store(home(op), offset_of(at, all), builder_.load(total, 0));
    });
  });
}

// --- products

void LoopLowering::one_product(TensorId a, TensorId b, int buffer,
                               const decltype(Fold::finish)& finish) {
  const auto left = shape(a), right = shape(b);
  const size_t rank = std::max(left.size(), right.size()), batch = rank - 2;
  Fold f;
  f.buffer = buffer;
  const auto extent = [&](const std::vector<int64_t>& s, size_t d) {
    return d + s.size() < rank ? 1 : s[d + s.size() - rank];
  };
  for (size_t d = 0; d < batch; ++d) f.out.push_back(std::max(extent(left, d), extent(right, d)));
  f.out.push_back(left[left.size() - 2]);
  f.out.push_back(right.back());
  f.in = {left.back()};
  f.shared = int(batch);
  f.term = [=, this](const Indices& out, const Indices& in) {
    const auto operand = [&](TensorId t, const std::vector<int64_t>& s, Expr row, Expr column) {
      Indices at = part_of(out, rank - s.size(), s.size() - 2);
      for (size_t d = 0; d < at.size(); ++d)
        if (s[d] == 1) at[d] = 0;
      at.push_back(std::move(row)), at.push_back(std::move(column));
      return builder_.element(t, at);
    };
    return times(operand(a, left, out[batch], in[0]), operand(b, right, in[0], out[batch + 1]));
  };
  f.finish = finish;
  builder_.fold(f);
}

void LoopLowering::product(const Op& op) {
  if (op.kind == OpKind::Matmul) return one_product(op.inputs[0], op.inputs[1], home(op));
  const auto all = shape(op.result());
  const int half = builder_.add_buffer("half", wide(g_.type(op.result()).dtype),
                                       num_elements(g_.type(op.result()).shape), Space::Workspace);
  one_product(op.inputs[0], op.inputs[2], half);
  one_product(op.inputs[1], op.inputs[3], home(op), [&](const Scalar& total, const Indices& out) {
    return apply(OpKind::Add, {cast(builder_.load(half, offset_of(out, all)), total.dtype), total});
  });
}

// --- windows

int LoopLowering::padded(const Op& op, const std::vector<WindowAxis>& axes, const Rational& fill,
                         std::vector<int64_t>& extents) {
  const TensorId x = op.inputs[0];
  const auto own = shape(x);
  const size_t lead = own.size() - axes.size();
  extents = own;
  for (size_t i = 0; i < axes.size(); ++i)
    extents[lead + i] += std::max<int64_t>(axes[i].low, 0) + std::max<int64_t>(axes[i].high, 0);
  if (extents == own) return builder_.home[x.index];
  const DType dtype = g_.type(x).dtype;
  const int buffer = builder_.add_buffer("padded", dtype, product_of(extents), Space::Workspace);
  builder_.loops(extents, [&](const Indices& i) {
    Indices at = i;
    Condition inside;
    for (size_t d = lead; d < at.size(); ++d) {
      at[d] = at[d] - std::max<int64_t>(axes[d - lead].low, 0);
      inside = inside && Expr(-1) < at[d] && at[d] < Expr(own[d]);
      at[d] = at[d].within(own[d]);
    }
    Scalar element = builder_.load(builder_.home[x.index], offset_of(at, own));
    if (!inside.always()) element = make(dtype, Select{inside, {element, literal(dtype, fill)}});
    builder_.store(buffer, offset_of(i, extents), element);
  });
  return buffer;
}

// Where of the padded operand.
Expr window_place(const WindowAxis& a, const Expr& out, const Expr& tap) {
  return out * a.stride + tap * a.dilation - std::min<int64_t>(a.low, 0);
}

void LoopLowering::convolution(const Op& op) {
  std::vector<WindowAxis> axes = window_axes(g_, op);
  const int64_t groups = g_.attrs<ConvAttrs>(op).groups;
  const auto w = shape(op.inputs[1]);
  std::vector<int64_t> x;
  const int from = padded(op, axes, 0, x);
  const size_t n = axes.size();
  const bool plain = std::ranges::all_of(axes, [](const WindowAxis& a) {
    return a.taps == 1 && a.stride == 1 && a.low == 0 && a.high == 0;
  });
  if (plain && n > 1) {  // a product: all positions are one axis
    WindowAxis all = axes[0];
    for (size_t i = 1; i < n; ++i) all.in *= axes[i].in, all.out *= axes[i].out;
    axes = {all};
    x = {x[0], x[1], all.in};
  }
  Fold f;
  f.buffer = home(op);
  f.out = {x[0], groups, w[0] / groups};
  f.in = {w[1]};
  f.shared = 2;
  for (const WindowAxis& a : axes) f.out.push_back(a.out), f.in.push_back(a.taps);
  const int64_t channels = w[1], results = w[0] / groups;
  std::vector<int64_t> taps = {w[0]};
  taps.insert(taps.end(), f.in.begin(), f.in.end());
  f.term = [=, this](const Indices& out, const Indices& in) {
    Indices at = {out[0], out[1] * channels + in[0]}, of = {out[1] * results + out[2], in[0]};
    for (size_t i = 0; i < axes.size(); ++i) {
      at.push_back(window_place(axes[i], out[3 + i], in[1 + i]));
      of.push_back(in[1 + i]);
    }
    return times(builder_.load(from, offset_of(at, x)),
                 builder_.load(builder_.home[op.inputs[1].index], offset_of(of, taps)));
  };
  builder_.fold(f);
}

void LoopLowering::transposed_convolution(const Op& op) {
  const std::vector<WindowAxis> axes = window_axes(g_, op);
  const int64_t groups = g_.attrs<ConvAttrs>(op).groups;
  const auto x = shape(op.inputs[0]), w = shape(op.inputs[1]);
  const int64_t channels = w[0] / groups;
  Fold f;
  f.buffer = home(op);
  f.out = {x[0], groups, w[1]};
  f.in = {channels};
  f.shared = 2;
  for (const WindowAxis& a : axes) f.out.push_back(a.out), f.in.push_back(a.taps);
  const DType dtype = wide(g_.type(op.result()).dtype);
  f.term = [=, this](const Indices& out, const Indices& in) {
    Indices at = {out[0], out[1] * channels + in[0]};
    Indices of = {out[1] * channels + in[0], out[2]};
    Condition meets;
    for (size_t i = 0; i < axes.size(); ++i) {
      const WindowAxis& a = axes[i];
      // positions below 0 are moved up by whole strides, for the division's sake
      const int64_t up =
          ceil_div((a.taps - 1) * a.dilation + std::max<int64_t>(-a.low, 0), a.stride);
      const Expr moved = out[3 + i] + a.low - in[1 + i] * a.dilation + up * a.stride;
      const Expr place = moved / a.stride - up;
      if (const auto n = place.constant(); n && (*n < 0 || *n >= a.in)) return literal(dtype, 0);
      meets = meets && equal(moved % a.stride, 0) && Expr(-1) < place && place < Expr(a.in);
      at.push_back(place.within(a.in));
      of.push_back(in[1 + i]);
    }
    const Scalar term = times(builder_.load(builder_.home[op.inputs[0].index], offset_of(at, x)),
                              builder_.load(builder_.home[op.inputs[1].index], offset_of(of, w)));
    if (meets.always()) return term;
    return make(dtype, Select{meets, {term, literal(dtype, 0)}});
  };
  builder_.fold(f);
}

void LoopLowering::pool(const Op& op) {
  const std::vector<WindowAxis> axes = window_axes(g_, op);
  const DType dtype = g_.type(op.result()).dtype;
  const bool sum = op.kind == OpKind::PoolSum;
  std::vector<int64_t> x;
  const int from = padded(op, axes, sum ? Rational(0) : extreme(dtype, true), x);
  Fold f;
  f.kind = sum ? AccumKind::Sum : AccumKind::Max;
  f.buffer = home(op);
  f.out = shape(op.result());
  const size_t lead = f.out.size() - axes.size();
  for (const WindowAxis& a : axes) f.in.push_back(a.taps);
  f.term = [=, this](const Indices& out, const Indices& in) {
    Indices at = part_of(out, 0, lead);
    for (size_t i = 0; i < axes.size(); ++i)
      at.push_back(window_place(axes[i], out[lead + i], in[i]));
    return builder_.load(from, offset_of(at, x));
  };
  builder_.fold(f);
}

// --- movement that has memory of its own

void LoopLowering::joined(const Op& op) {
  const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
  const auto all = shape(op.result());
  int64_t begin = 0;
  for (const TensorId x : op.inputs) {
    const bool stack = op.kind == OpKind::Stack;
    builder_.store_all(x, home(op), [&, begin](const Indices& i) {
      Indices at = i;
      if (stack)
        at.insert(at.begin() + int64_t(axis), begin);
      else
        at[axis] += begin;
      return offset_of(at, all);
    });
    begin += stack ? 1 : shape(x)[axis];
  }
}

void LoopLowering::gather(const Op& op) {
  const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
  const TensorId x = op.inputs[0], y = op.inputs[1];
  const auto from = shape(x), by = shape(y), all = shape(op.result());
  Indices index(by.size());
  std::vector<int64_t> rest(from);
  rest.erase(rest.begin() + int64_t(axis));
  builder_.nest(LoopKind::Serial, by, index, [&] {
    const Scalar i = cast(builder_.element(y, index), DType::I64);
    // from the end, as NumPy and ONNX count
    const Scalar extent = literal(DType::I64, from[axis]), zero = literal(DType::I64, 0);
    const Expr at = builder_.index(
        apply(OpKind::Where, {apply(OpKind::Lt, {i, zero}), apply(OpKind::Add, {i, extent}), i}),
        from[axis]);
    builder_.loops(rest, [&](const Indices& others) {
      Indices in = others, out = others;
      in.insert(in.begin() + int64_t(axis), at);
      out.insert(out.begin() + int64_t(axis), index.begin(), index.end());
      builder_.store(home(op), offset_of(out, all), builder_.element(x, in));
    });
  });
}

// --- the whole

void LoopLowering::lower(const Op& op) {
  const OpKind k = op.kind;
  if (is_reduction(k)) return reduction(op);
  if (is_scan(k)) return cumsum(op);
  if (is_product(k)) return product(op);
  if (k == OpKind::Conv) return convolution(op);
  if (k == OpKind::ConvTranspose) return transposed_convolution(op);
  if (is_windowed(k)) return pool(op);
  if (k == OpKind::Concat || k == OpKind::Stack) return joined(op);
  if (k == OpKind::Gather) return gather(op);
  // An expression of its operands' elements: pulled into the loops that store it.
  const int own = std::exchange(builder_.home[op.result().index], -1);
  builder_.store_all(op.result(), own, {});
  builder_.home[op.result().index] = own;
}

void LoopLowering::interface() {
  builder_.home.assign(g_.tensors().size(), -1);
  int64_t bytes = 0;
  for (size_t i = 0; i < g_.inputs().size(); ++i) {
    const Tensor& t = g_.tensor(g_.inputs()[i]);
    const int b = builder_.add_buffer(c_name(t.name.empty() ? "x" + std::to_string(i) : t.name),
                                      t.type.dtype, num_elements(t.type.shape),
                                      data_[i] ? Space::Weights : Space::Argument);
    builder_.home[g_.inputs()[i].index] = b;
    if (!data_[i]) continue;
    f_.buffers.back().offset = bytes;
    bytes += ceil_div(t.type.bytes(), 64) * 64;
  }
  const std::vector<bool> kept = kept_values(g_);
  for (size_t i = 0; i < g_.outputs().size(); ++i) {
    const TensorId t = g_.outputs()[i];
    std::string own = g_.tensor(t).name;
    if (own.empty()) own = g_.outputs().size() == 1 ? "result" : "result" + std::to_string(i);
    const int b = builder_.add_buffer(c_name(own), g_.type(t).dtype, num_elements(g_.type(t).shape),
                                      Space::Argument);
    f_.buffers.back().written = true;
    if (builder_.home[t.index] < 0) builder_.home[t.index] = b;
  }
  for (const Op& op : g_.ops()) {
    const TensorId t = op.result();
    if (!kept[t.index] || builder_.home[t.index] >= 0) continue;
    const std::string& own = g_.tensor(t).name;
    builder_.home[t.index] =
        builder_.add_buffer(c_name(own.empty() ? "t" + std::to_string(t.index) : own),
                            g_.type(t).dtype, num_elements(g_.type(t).shape), Space::Workspace);
  }
}

void buffers_in(const Scalar& x, std::set<int>& found) {
  std::visit(Cases{[&](const Load& l) { found.insert(l.buffer); },
                   [&](const Apply& a) {
                     for (const Scalar& y : a.operands) buffers_in(y, found);
                   },
                   [&](const Select& s) {
                     for (const Scalar& y : s.of) buffers_in(y, found);
                   },
                   [](const auto&) {}},
             *x.node);
}
void buffers_in(const Body& body, std::set<int>& found) {
  for (const Statement& s : body)
    std::visit(
        Cases{[&](const Block& x) { buffers_in(x.body, found); },
              [&](const Loop& x) { buffers_in(x.body, found); },
              [&](const If& x) { buffers_in(x.then, found), buffers_in(x.otherwise, found); },
              [&](const Local&) {}, [&](const Let& x) { buffers_in(x.value, found); },
              [&](const Index& x) { buffers_in(x.value, found); },
              [&](const auto& x) {
                found.insert(x.buffer);
                buffers_in(x.value, found);
              }},
        s.is);
}

void LoopLowering::place_workspace() {
  std::vector<MemoryRequest> requests;
  std::vector<int> which, request_of(f_.buffers.size(), -1);
  for (size_t s = 0; s < f_.body.size(); ++s) {
    std::set<int> found;
    buffers_in({f_.body[s]}, found);
    for (const int b : found) {
      const Buffer& buffer = f_.buffers[size_t(b)];
      if (buffer.space != Space::Workspace) continue;
      int& r = request_of[size_t(b)];
      if (r < 0) {
        r = int(requests.size());
        which.push_back(b);
        requests.push_back(
            {buffer.name, buffer.elements * size_in_bytes(buffer.dtype), int(s), int(s)});
      }
      requests[size_t(r)].death = int(s);
    }
  }
  const MemoryPlan plan = plan_memory(requests);
  for (size_t r = 0; r < requests.size(); ++r)
    f_.buffers[size_t(which[r])].offset = plan.offsets[r];
}

Function LoopLowering::run() {
  f_.name = c_name(g_.name());
  interface();
  for (const Op& op : g_.ops()) {
    if (builder_.home[op.result().index] < 0 || is_input(op.kind)) continue;
    builder_.block(note(op), [&] { lower(op); });
  }
  for (size_t i = 0, b = g_.inputs().size(); i < g_.outputs().size(); ++i, ++b) {
    const TensorId t = g_.outputs()[i];
    if (builder_.home[t.index] == int(b)) continue;
    builder_.block(f_.buffers[b].name, [&] { builder_.store_all(t, int(b), {}); });
  }
  place_workspace();
  return std::move(f_);
}

}  // namespace
}  // namespace tessera::kernel

namespace tessera {

kernel::Function lower_to_loops(const Graph& graph, const std::vector<bool>& data) {
  CHECK(data.size() == graph.inputs().size());
  for (const Tensor& t : graph.tensors())
    if (!is_static(t.type.shape))
      throw Error(ErrorKind::BadInput, "extents are symbols; give them, for example --shape N=128");
  for (const Op& op : graph.ops()) {
    if (is_opaque(op.kind))
      throw Error(ErrorKind::Unsupported, "no loops are known for opaque operator " +
                                              graph.attrs<OpaqueAttrs>(op).function);
    if (is_kernel(op.kind))
      throw Error(ErrorKind::Unsupported,
                  "kernels of a search are made for one machine; export the program that they were "
                  "found for, or what `tessera optimize prog.py -o fast.py` makes of it");
  }
  const Graph g = without_dead_code(graph);
  return kernel::LoopLowering(g, data).run();
}

}  // namespace tessera
