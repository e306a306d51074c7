#include "search/synth/slices.h"

#include <algorithm>
#include <optional>

#include "ir/axis_reads.h"
#include "ir/block.h"
#include "ir/window.h"
#include "search/synth/large.h"
#include "search/synth/node.h"
#include "search/synth/slice_graph.h"

namespace tessera::synth {
namespace {

// What is taken of an axis: every step-th element, or those at the indices that a value holds.
struct Along {
  int64_t start = 0, count = 1, step = 1;
  TensorId index;  // of the program that is retold; invalid: none
  friend bool operator==(const Along&, const Along&) = default;

  bool picked() const { return index.valid(); }
  // How many of them lie before a place.
  int64_t before(int64_t place) const {
    return std::clamp<int64_t>(ceil_div(place - start, step), 0, count);
  }
};
Along every(int64_t start, int64_t count, int64_t step) {
  return {start, count, count > 1 ? step : 1, {}};
}
// Those among n places, counted from the first of these.
Along among(const Along& a, int64_t first, int64_t n) {
  const int64_t k = a.before(first);
  return every(a.start + k * a.step - first, a.before(first + n) - k, a.step);
}

using Region = std::vector<Along>;  // by axis

Region all_of(const Shape& shape) {
  Region r;
  for (int64_t n : extents(shape)) r.push_back(every(0, n, 1));
  return r;
}
Shape shape_of(const Region& at) {
  Shape shape;
  for (const Along& a : at) shape.push_back(Dim(a.count));
  return shape;
}

// Where a part of a reshape's result (of this shape) is in `x`, which is all of the operand before;
// false where it is no part of that form.
bool before_reshape(const Region& at, const Shape& shape, Region& x) {
  struct Run {  // elements that lie equally far apart
    int64_t count, apart;
    Along picked;
  };
  std::vector<Run> runs;  // innermost first
  int64_t first = 0, stride = 1;
  for (size_t i = at.size(); i-- > 0; stride *= shape[i].extent) {
    const Along& a = at[i];
    first += a.start * stride;
    if (a.picked())
      runs.push_back({shape[i].extent, stride, a});
    else if (!runs.empty() && !runs.back().picked.picked() &&
             runs.back().count * runs.back().apart == a.step * stride)
      runs.back().count *= a.count;
    else if (a.count > 1)
      runs.push_back({a.count, a.step * stride, {}});
  }
  auto run = runs.begin();
  stride = 1;
  for (size_t i = x.size(); i-- > 0;) {
    const int64_t n = x[i].count, start = first / stride % n, next = stride * n;
    x[i] = every(start, 1, 1);
    if (n > 1 && run != runs.end() && run->apart < next) {
      const int64_t step = run->apart / stride;
      const bool along = run->apart % stride == 0, all = step == 1 && start == 0;
      if (run->picked.picked() && along && step == 1 && run->count == n)
        x[i] = (run++)->picked;
      else if (!run->picked.picked() && along && start + (run->count - 1) * step < n)
        x[i] = every(start, (run++)->count, step);
      else if (!run->picked.picked() && along && all && run->count % n == 0)
        x[i] = every(0, n, 1), *run = {run->count / n, next, {}};  // goes on along the next axis
      else
        return false;
    }
    stride = next;
  }
  return run == runs.end();
}

// How a part of a result is computed from parts of operands.
struct Way {
  OpKind kind;
  Attrs attrs;
  std::vector<TensorId> from;
  std::vector<Region> at;
};

// Only the windows that are taken, and what they see of the operand.
bool windowed(const std::vector<WindowAxis>& axes, const Region& at, Way& w) {
  Region &x = w.at[0], &weights = w.at[1];
  auto& attrs = std::get<ConvAttrs>(w.attrs);
  if (attrs.groups > 1 && at[1] != weights[0]) return false;
  x[0] = at[0], weights[0] = at[1];
  for (size_t i = 0; i < axes.size(); ++i) {
    const WindowAxis& a = axes[i];
    const Along& o = at[i + 2];
    if (o == every(0, a.out, 1)) continue;
    const int64_t first = o.start * a.stride - a.low;
    const int64_t end = first + (o.count - 1) * o.step * a.stride + (a.taps - 1) * a.dilation + 1;
    const int64_t from = std::max<int64_t>(first, 0), to = std::min(end, a.in);
    if (from >= to) return false;  // padding alone
    x[i + 2] = every(from, to - from, 1);
    attrs.strides[i] = o.count > 1 ? o.step * a.stride : 1;
    attrs.low[i] = from - first, attrs.high[i] = end - to;
  }
  return true;
}

// Changes a way that takes all of all operands; false where nothing less will do.
bool narrow(const Graph& g, const Op& op, const Region& at, Way& w) {
  Region& x = w.at[0];
  const ShapeAttrs shape{shape_of(at)};
  const auto* one = std::get_if<AxisAttrs>(&op.attrs);
  const auto axis = one ? size_t(one->axis) : 0;
  const auto reads = axis_reads(op.kind, op.attrs, int(x.size()), int(at.size()));
  if (reads && op.kind != OpKind::Repeat) {
    for (size_t i = 0; i < x.size(); ++i) {
      const AxisRead& r = (*reads)[i];
      if (r.axis < 0 || (r.wraps && x[i].count == 1)) continue;
      const Along& a = at[size_t(r.axis)];
      x[i] = a.picked() ? a : every(r.start + a.start * r.step, a.count, a.step * r.step);
    }
    if (op.kind == OpKind::Slice) w.kind = OpKind::Reshape;
    if (is_one_of(op.kind, OpKind::Slice, OpKind::Broadcast)) w.attrs = shape;
    return true;
  }
  if (has(op.kind, algebra::Pointwise) || op.kind == OpKind::Matmul) {
    for (size_t k = 0; k < w.at.size(); ++k) {
      Region& r = w.at[k];
      for (size_t i = 0; i < r.size(); ++i)
        if (r[i].count != 1 && !(op.kind == OpKind::Matmul && i + k + 1 == r.size()))
          r[i] = at[at.size() - r.size() + i];
    }
    return true;
  }
  if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) {
    size_t from = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const bool reduced = has_axis(a->axes, i);
      if (!reduced) x[i] = at[from];
      if (!reduced || a->keepdims) ++from;
    }
    return true;
  }
  switch (op.kind) {
  case OpKind::Conv: return windowed(window_axes(g, op), at, w);
  case OpKind::Reshape: w.attrs = shape; return before_reshape(at, g.type(op.result()).shape, x);
  case OpKind::Cumsum:  // of the first elements
    x = at;
    if (at[axis].count == 1 && !at[axis].picked()) {
      w.kind = OpKind::Sum, w.attrs = ReduceAttrs{{one->axis}, true};
      x[axis] = every(0, at[axis].start + 1, 1);
      return true;
    }
    return at[axis].start == 0 && at[axis].step == 1 && !at[axis].picked();
  case OpKind::Gather: {
    const Region index = w.at[1];
    // Indices that nothing needs may still be out of range; an axis of one may be broadcast.
    if (x[axis].count == 1 || !std::equal(index.begin(), index.end(), at.begin() + long(axis)))
      return false;
    for (size_t i = 0; i < x.size(); ++i)
      if (i != axis) x[i] = at[i < axis ? i : i + index.size() - 1];
    x[axis] = {0, num_elements(shape_of(index)), 1, op.inputs[1]};
    w = {OpKind::Reshape, shape, {op.inputs[0]}, {x}};
    return true;
  }
  case OpKind::Pad: {
    auto& a = std::get<PadAttrs>(w.attrs);
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t low = a.low[i], n = x[i].count;
      x[i] = low + a.high[i] == 0 ? at[i] : among(at[i], low, n);
      if (low + a.high[i] == 0) continue;
      a.low[i] = at[i].before(low);
      a.high[i] = at[i].count - x[i].count - a.low[i];
      if (x[i].count == 0) return false;
    }
    return true;
  }
  case OpKind::Concat:
  case OpKind::Stack: {  // those operands of which something is taken
    w.from.clear(), w.at.clear();
    int64_t first = 0;
    for (TensorId t : op.inputs) {
      const int64_t n = op.kind == OpKind::Stack ? 1 : g.type(t).shape[axis].extent;
      Region part = at;
      part[axis] = among(at[axis], first, n);
      first += n;
      if (part[axis].count == 0) continue;
      if (op.kind == OpKind::Stack) part.erase(part.begin() + long(axis));
      w.from.push_back(t), w.at.push_back(std::move(part));
    }
    return !at[axis].picked();
  }
  default: return false;
  }
}

std::optional<Way> way(const Graph& g, const Op& op, const Region& at) {
  if (op.inputs.empty() || op.num_results != 1 || op.body.valid()) return std::nullopt;
  Way w{op.kind, op.attrs, op.inputs, {}};
  for (TensorId t : op.inputs) w.at.push_back(all_of(g.type(t).shape));
  if (!narrow(g, op, at, w)) return std::nullopt;
  // An index stays with an axis of the same extent: what is out of range is an error still.
  for (size_t i = 0; i < at.size(); ++i) {
    bool kept = !at[i].picked();
    for (size_t k = 0; k < w.from.size(); ++k)
      for (size_t j = 0; j < w.at[k].size(); ++j)
        kept |= w.at[k][j] == at[i] && g.type(w.from[k]).shape[j] == g.type(op.result()).shape[i];
    if (!kept) return std::nullopt;
  }
  return w;
}

// Takes parts of operands instead of parts of results, where no more elements are computed then;
// with `twice`, no more than two for one. Not of what decides by bools or integers, if `simply`.
class Pusher {
 public:
  Pusher(const Graph& g, bool twice, bool simply)
      : g_(g), build_(g), twice_(twice), simply_(simply), whole_(g.tensors().size(), false),
        parts_(g.tensors().size()) {
    // From results to operands: what is taken of a value is taken of what it is made of.
    for (TensorId t : g.outputs()) want_all(t);
    for (size_t i = g.ops().size(); i-- > 0;) demand(g.ops()[i]);
  }

  std::optional<Graph> run() {
    for (const Op& op : g_.ops()) {
      const std::vector<Part>& parts = parts_[op.result().index];
      if (!whole_[op.result().index] && !is_input(op.kind)) continue;  // where it is needed
      if (parts.empty() || !parts[0].way || whole_[parts[0].way->from[0].index])
        build_.copy(op);
      else
        build_.set_to(op.result(), built(parts_[op.result().index][0]));
    }
    if (pushed_ == 0) return std::nullopt;
    return build_.finished();
  }

 private:
  struct Part {
    Region at;
    int depth = 0;           // of recursion, until it is made
    std::optional<Way> way;  // nothing: of the whole
    TensorId made;
  };

  Part& want(TensorId t, const Region& at) {
    constexpr size_t kMost = 32;
    std::vector<Part>& parts = parts_[t.index];
    for (Part& p : parts)
      if (p.at == at || whole_[t.index]) return p;
    const Region all = all_of(g_.type(t).shape);
    whole_[t.index] = at == all || parts.size() == kMost;
    if (whole_[t.index]) parts.clear();
    parts.emplace_back().at = whole_[t.index] ? all : at;
    return parts.back();
  }
  void want_all(TensorId t) { want(t, all_of(g_.type(t).shape)); }

  // What the operator takes of its operands, for all that is taken of its result.
  void demand(const Op& op) {
    constexpr int kDeepest = 500;
    const TensorId t = op.result();
    std::vector<Part>& parts = parts_[t.index];
    const bool takes = is_one_of(op.kind, OpKind::Slice, OpKind::Gather);
    const bool simple = !simply_ || std::ranges::all_of(op.inputs, [&](TensorId x) {
      return is_float(g_.type(x).dtype);
    });
    bool fits = takes || (simple && !whole_[t.index]);
    int64_t taken = 0;
    for (Part& p : parts) {
      if (fits && p.depth < kDeepest) p.way = way(g_, op, p.at);
      fits = fits && p.way;
      taken += num_elements(shape_of(p.at));
    }
    // Parts of a product that together are the whole are better computed as one.
    const int64_t all = num_elements(g_.type(t).shape) * (twice_ ? 2 : 1);
    if (fits && taken <= all - (adds_up(op.kind) && !twice_)) {
      for (const Part& p : parts)
        for (size_t k = 0; k < p.way->from.size(); ++k) {
          Part& mine = want(p.way->from[k], p.way->at[k]);
          mine.depth = std::max(mine.depth, p.depth + 1);
        }
      if (op.kind == OpKind::Gather) want_all(op.inputs[1]);
    } else if (!parts.empty() || op.num_results > 1) {
      const bool again = takes && !whole_[t.index];
      for (uint32_t r = 0; r < op.num_results; ++r) want_all(op.result(r));
      if (again) return demand(op);  // all of it is still a part
      parts[0].way.reset();
      for (TensorId x : op.inputs) want_all(x);
    }
  }

  TensorId built(const Part& p) {
    std::vector<TensorId> in;
    for (size_t k = 0; k < p.way->from.size(); ++k)
      in.push_back(part(p.way->from[k], p.way->at[k]));
    const bool moves =
        is_one_of(p.way->kind, OpKind::Reshape, OpKind::Broadcast, OpKind::Concat, OpKind::Pad);
    if (moves && in.size() == 1 && build_.type(in[0]).shape == shape_of(p.at)) return in[0];
    return build_.make(p.way->kind, in, p.way->attrs);
  }

  TensorId part(TensorId x, const Region& at) {
    if (!whole_[x.index]) {
      Part& p = want(x, at);
      if (!p.made.valid()) p.made = built(p), ++pushed_;
      return p.made;
    }
    SliceAttrs slice = whole(g_.type(x).shape);
    for (size_t i = 0; i < at.size(); ++i)
      if (!at[i].picked()) set(slice, i, at[i].start, at[i].count, at[i].step);
    TensorId r = build_.slice(build_.to(x), slice);
    for (size_t i = 0; i < at.size(); ++i) {
      if (!at[i].picked()) continue;
      TensorId index = build_.to(at[i].index);
      if (build_.type(index).rank() != 1)
        index = build_.make(OpKind::Reshape, {index}, ShapeAttrs{{Dim(at[i].count)}});
      r = build_.make(OpKind::Gather, {r, index}, AxisAttrs{int(i)});
    }
    return r;
  }

  const Graph& g_;
  Builder build_;
  const bool twice_, simply_;
  std::vector<bool> whole_;               // by value: whether it is needed as a whole
  std::vector<std::vector<Part>> parts_;  // else what is taken of it
  int pushed_ = 0;
};

}  // namespace

std::vector<Retold> reslice(const Graph& program, bool simply) {
  std::vector<Retold> result;
  const auto takes = [](const Op& op) {
    return is_one_of(op.kind, OpKind::Slice, OpKind::Concat, OpKind::Gather);
  };
  if (std::ranges::none_of(program.ops(), takes) ||
      !std::ranges::all_of(program.tensors(),
                           [](const Tensor& t) { return is_static(t.type.shape); }))
    return result;
  Graph now = united(program);
  std::string said;
  if (std::optional<Graph> merged = with_parts_merged(now)) {
    now = united(*merged);
    said = "slices that together are more are taken as one\n";
  }
  const std::string sooner = "parts are taken of operands instead of results\n";
  for (const bool twice : {false, true}) {
    const std::optional<Graph> next = Pusher(now, twice, simply).run();
    const bool pushed = next && !(united(*next) == now);
    if (pushed) now = united(*next);
    if (pushed && said.find(sooner) == std::string::npos) said += sooner;
    if (pushed || (!twice && !said.empty())) result.push_back({now, said});
  }
  return result;
}

}  // namespace tessera::synth
