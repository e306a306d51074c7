// Calls that take the place of several operators of a kernel graph.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "cost/library_call.h"
#include "ir/build.h"

namespace tessera {
namespace {

constexpr double kMasked = -1e4;  // what is added to scores that are not to count, at most

// The operators of a call, gathered from the last one on.
class Region {
 public:
  Region(const Graph& g, OpId last, const std::vector<int>& uses) : g_(g), uses_(uses) {
    ops_.insert(last.index);
  }
  const Op& take(TensorId t) {
    ops_.insert(g_.tensor(t).producer.index);
    return g_.producer(t);
  }
  // The tensor that `t` is a cast of, if it is, between real types; the casts are taken.
  TensorId under_casts(TensorId t) {
    for (;;) {
      const Op& op = g_.producer(t);
      if (op.kind != OpKind::Cast || !is_float(g_.type(t).dtype) ||
          !is_float(g_.type(op.inputs[0]).dtype))
        return t;
      take(t);
      t = op.inputs[0];
    }
  }
  // Takes what only computes constants, as far as nobody else reads them.
  void take_constants(TensorId t) {
    for (;;) {
      const Op& op = g_.producer(t);
      if (is_given(op.kind) || uses_[t.index] != 1) return;
      take(t);
      t = op.inputs[0];
    }
  }
  // Nobody but its own operators reads what is inside.
  bool closed() const {
    std::vector<int> inside(g_.tensors().size(), 0);
    for (uint32_t i : ops_)
      for (TensorId t : g_.ops()[i].inputs) ++inside[t.index];
    for (uint32_t i : ops_) {
      if (i == *ops_.rbegin()) continue;
      const Op& op = g_.ops()[i];
      if (op.num_results != 1 || inside[op.result().index] != uses_[op.result().index])
        return false;
    }
    return true;
  }
  std::vector<OpId> parts() const {
    std::vector<OpId> all;
    for (uint32_t i : ops_)
      if (i != *ops_.rbegin()) all.push_back(OpId(i));
    return all;
  }

 private:
  const Graph& g_;
  const std::vector<int>& uses_;
  std::set<uint32_t> ops_;
};

// The value of a tensor that is one number everywhere.
std::optional<double> splat(const Graph& g, TensorId t) {
  const Op* op = &g.producer(t);
  while (is_reshape(op->kind) || op->kind == OpKind::Broadcast || op->kind == OpKind::Cast)
    op = &g.producer(op->inputs[0]);
  if (!op->constant()) return std::nullopt;
  return op->constant()->to_double();
}

bool over_last(const Graph& g, const Op& op, OpKind kind) {
  if (op.kind != kind) return false;
  const ReduceAttrs& a = g.attrs<ReduceAttrs>(op);
  return a.keepdims && a.axes.size() == 1 && a.axes[0] == g.type(op.inputs[0]).rank() - 1;
}

// Parts of a square that a triangle operator keeps: of constant `value`, above (`upper`) or below
// the diagonal k. Nothing for other tensors.
struct Triangle {
  double value;
  bool upper;
  int64_t k;
};
std::optional<Triangle> triangle(const Graph& g, TensorId t) {
  const Op* op = &g.producer(t);
  while (
      op->kind == OpKind::Cast || op->kind == OpKind::Unsqueeze ||
      (op->kind == OpKind::Reshape && num_elements(g.type(op->inputs[0]).shape) ==
                                          g.type(t).shape[size_t(g.type(t).rank()) - 1].extent *
                                              g.type(t).shape[size_t(g.type(t).rank()) - 2].extent))
    op = &g.producer(op->inputs[0]);
  if (!is_triangle(op->kind)) return std::nullopt;
  const auto value = splat(g, op->inputs[0]);
  if (!value) return std::nullopt;
  return Triangle{*value, op->kind == OpKind::Triu, g.attrs<DiagonalAttrs>(*op).k};
}

// The scores that are masked causally where `z` is such; takes the operators of it.
std::optional<TensorId> under_causal_mask(const Graph& g, TensorId z, Region& region) {
  const Op& op = g.producer(z);
  if (g.type(z).rank() < 2) return std::nullopt;
  if (op.kind == OpKind::Add) {
    for (int side : {0, 1}) {
      const auto mask = triangle(g, op.inputs[size_t(1 - side)]);
      if (!mask || !mask->upper || mask->k != 1 || mask->value > kMasked) continue;
      region.take(z);
      region.take_constants(op.inputs[size_t(1 - side)]);
      return op.inputs[size_t(side)];
    }
  }
  if (op.kind == OpKind::Where) {
    const auto mask = triangle(g, op.inputs[0]);
    if (!mask || mask->value == 0) return std::nullopt;
    const bool lower = !mask->upper && mask->k == 0, upper = mask->upper && mask->k == 1;
    if (!lower && !upper) return std::nullopt;
    const auto hidden = splat(g, op.inputs[lower ? 2 : 1]);
    if (!hidden || *hidden > kMasked) return std::nullopt;
    region.take(z);
    region.take_constants(op.inputs[0]);
    return op.inputs[lower ? 1 : 2];
  }
  return std::nullopt;
}

// x·c or x/c for a number c: x, with `factor` multiplied; takes the operator.
TensorId under_scale(const Graph& g, TensorId t, double& factor, Region& region) {
  const Op& op = g.producer(t);
  if (op.kind == OpKind::Mul || op.kind == OpKind::Div) {
    for (int side : {0, 1}) {
      if (op.kind == OpKind::Div && side == 1) break;
      const auto c = splat(g, op.inputs[size_t(1 - side)]);
      const TensorId x = op.inputs[size_t(side)];
      if (!c || !std::isfinite(*c) || *c <= 0 || !(g.type(x).shape == g.type(t).shape)) continue;
      factor *= op.kind == OpKind::Mul ? *c : 1 / *c;
      region.take(t);
      return x;
    }
  }
  return t;
}

int64_t product_of(const Shape& s, size_t from, size_t to) {
  int64_t n = 1;
  for (size_t i = from; i < to; ++i) n *= s[i].extent;
  return n;
}

// How the batches of keys or values meet those of the result: all the same, or each for `group`
// consecutive ones.
std::optional<int64_t> group_of(const Shape& operand, const Shape& out) {
  const size_t rank = out.size() - 2;
  if (operand.size() > out.size()) return std::nullopt;
  Shape full(out.size() - operand.size(), Dim(1));
  full.insert(full.end(), operand.begin(), operand.end());
  size_t own = rank;
  while (own > 0 && full[own - 1].extent == 1) --own;
  for (size_t i = 0; i < own; ++i)
    if (full[i].extent != out[i].extent) return std::nullopt;
  return product_of(out, own, rank);
}

// What ends at a product or a quotient.
std::optional<LibraryCall> attention(const Graph& g, OpId id, const std::vector<int>& uses) {
  using K = OpKind;
  Region region(g, id, uses);
  const Op& last = g.op(id);
  // softmax(z)·V is (e/d)·V or (e·V)/d.
  const bool divides_last = last.kind == K::Div;
  const TensorId p = region.under_casts(last.inputs[0]);
  const Op& before = g.producer(p);
  if (before.kind != (divides_last ? K::Matmul : K::Div)) return std::nullopt;
  region.take(p);
  const TensorId weights = divides_last ? region.under_casts(before.inputs[0]) : before.inputs[0];
  const TensorId sums = divides_last ? region.under_casts(last.inputs[1]) : before.inputs[1];
  const TensorId values = (divides_last ? before : last).inputs[1];
  const Op& sum = g.producer(sums);
  const Op& exp = g.producer(weights);
  if (!over_last(g, sum, K::Sum) || exp.kind != K::Exp ||
      region.under_casts(sum.inputs[0]) != weights)
    return std::nullopt;
  region.take(sums);
  region.take(weights);
  TensorId z = exp.inputs[0];
  if (const Op& sub = g.producer(z); sub.kind == K::Sub) {
    const Op& most = g.producer(sub.inputs[1]);
    if (!over_last(g, most, K::ReduceMax) || most.inputs[0] != sub.inputs[0]) return std::nullopt;
    region.take(z);
    region.take(sub.inputs[1]);
    z = sub.inputs[0];
  }
  LibraryCall c;
  c.kind = LibraryCall::Kind::Attention;
  z = region.under_casts(z);
  if (const auto scores = under_causal_mask(g, z, region)) {
    c.causal = true;
    z = region.under_casts(*scores);
  }
  z = region.under_casts(under_scale(g, z, c.scale, region));
  const Op& scores = g.producer(z);
  if (scores.kind != K::Matmul) return std::nullopt;
  region.take(z);
  TensorId q = scores.inputs[0], k = scores.inputs[1];
  const TensorId scaled = under_scale(g, q, c.scale, region);
  if (scaled != q && uses[q.index] == 1) q = scaled;
  c.keys_in_columns = true;
  if (const Op& turn = g.producer(k); turn.kind == K::Transpose && uses[k.index] == 1) {
    const auto& perm = g.attrs<PermAttrs>(turn).perm;
    const size_t rank = perm.size();
    bool last_two = rank >= 2 && perm[rank - 1] == int(rank) - 2 && perm[rank - 2] == int(rank) - 1;
    for (size_t i = 0; i + 2 < rank; ++i) last_two = last_two && perm[i] == int(i);
    if (last_two) {
      region.take(k);
      k = turn.inputs[0];
      c.keys_in_columns = false;
    }
  }
  const Type &tq = g.type(q), &tk = g.type(k), &tv = g.type(values), &out = g.type(last.result());
  c.dtype = tq.dtype;
  if ((c.dtype != DType::F16 && c.dtype != DType::BF16) || tk.dtype != c.dtype ||
      tv.dtype != c.dtype || out.dtype != c.dtype)
    return std::nullopt;
  for (const Type* t : {&tq, &tk, &tv, &out})
    if (!is_static(t->shape) || t->rank() < 2) return std::nullopt;
  const size_t rank = out.shape.size(), k_rank = tk.shape.size();
  if (tq.shape.size() != rank ||
      product_of(tq.shape, 0, rank - 2) != product_of(out.shape, 0, rank - 2))
    return std::nullopt;
  const auto group = group_of(tk.shape, out.shape);
  if (!group || group != group_of(tv.shape, out.shape)) return std::nullopt;
  c.group = *group;
  c.batch = product_of(out.shape, 0, rank - 2) / c.group;
  c.rows = tq.shape[rank - 2].extent;
  c.depth = tq.shape[rank - 1].extent;
  c.columns = tk.shape[k_rank - (c.keys_in_columns ? 1 : 2)].extent;
  c.value_depth = tv.shape.back().extent;
  c.left_batched = c.right_batched = true;
  c.reads = {q, k, values};
  c.parts = region.parts();
  if (!region.closed()) return std::nullopt;
  return c;
}

// A product or convolution, its bias and its activation, as far as `id` ends such a chain.
std::optional<LibraryCall> chain(const Graph& g, OpId id, const std::vector<int>& uses) {
  using K = OpKind;
  Region region(g, id, uses);
  const Op* at = &g.op(id);
  TensorId t = at->result();
  LibraryCall::Epilogue epilogue = LibraryCall::Epilogue::None;
  if (at->kind == K::Relu || at->kind == K::GeluTanh) {
    epilogue = at->kind == K::Relu ? LibraryCall::Epilogue::Relu : LibraryCall::Epilogue::GeluTanh;
    t = at->inputs[0];
    at = &g.producer(t);
  }
  std::optional<TensorId> bias;
  if (at->kind == K::Add) {
    const Op& sum = *at;
    for (int side : {0, 1}) {
      const Op& x = g.producer(sum.inputs[size_t(side)]);
      if (x.kind != K::Matmul && !is_convolution(x.kind)) continue;
      region.take(t);
      bias = sum.inputs[size_t(1 - side)];
      t = sum.inputs[size_t(side)];
      at = &x;
      break;
    }
    if (!bias) return std::nullopt;
  }
  if (at->kind != K::Matmul && !is_convolution(at->kind)) return std::nullopt;
  region.take(t);
  const OpId core = g.tensor(t).producer;
  if (core == id) return std::nullopt;
  std::optional<LibraryCall> c = library_call(g, core);
  if (!c || !(g.type(g.op(id).result()).shape == g.type(t).shape)) return std::nullopt;
  c->epilogue = epilogue;
  c->reads = {at->inputs[0], at->inputs[1]};
  if (bias) {
    const Type &b = g.type(*bias), &y = g.type(t);
    const size_t behind = is_convolution(at->kind) ? y.shape.size() - 2 : 0;  // axes after its own
    if (b.dtype != c->dtype || b.shape.size() <= behind || b.shape.size() > y.shape.size() ||
        num_elements(b.shape) != c->columns ||
        b.shape[b.shape.size() - 1 - behind].extent != c->columns)
      return std::nullopt;
    c->bias = 2;
    c->reads.push_back(*bias);
  }
  c->parts = region.parts();
  if (!region.closed()) return std::nullopt;
  return c;
}

}  // namespace

std::vector<LibraryCall> library_regions(const Graph& g, OpId id, const std::vector<int>& uses) {
  std::vector<LibraryCall> all;
  const Op& op = g.op(id);
  if (op.num_results != 1) return all;
  if (op.kind == OpKind::Matmul || op.kind == OpKind::Div)
    if (auto c = attention(g, id, uses)) all.push_back(*std::move(c));
  if (op.kind == OpKind::Relu || op.kind == OpKind::GeluTanh || op.kind == OpKind::Add)
    if (auto c = chain(g, id, uses)) all.push_back(*std::move(c));
  return all;
}

std::optional<LibraryCall> same_call(const Graph& g, OpId id, const LibraryCall& call) {
  if (call.parts.empty()) return library_call(g, id);
  for (LibraryCall& c : library_regions(g, id, use_counts(g)))
    if (c.kind == call.kind && c.parts == call.parts && c.reads == call.reads) return std::move(c);
  return std::nullopt;
}

namespace {

// What a call keeps between its operators is not rounded to 16 bits.
class CallProgram {
 public:
  CallProgram(const Graph& g, const LibraryCall& call)
      : g_(g), call_(call), wide_(!call.parts.empty() && size_in_bytes(call.dtype) == 2),
        map_(g.tensors().size()) {}
  void read(TensorId t, Type type) {
    const bool cast = wide_ && type.dtype == call_.dtype;
    TensorId in = one_.add_input(std::move(type));
    if (cast) in = build::cast(one_, in, {DType::F32});
    if (!map_[t.index].valid()) map_[t.index] = in;
  }
  Graph finish(const Op& op) {
    std::vector<TensorId> outputs;
    copy(op);
    for (uint32_t r = 0; r < op.num_results; ++r) {
      const TensorId made = map_[op.result(r).index];
      const DType dtype = g_.type(op.result(r)).dtype;
      outputs.push_back(one_.type(made).dtype == dtype ? made : build::cast(one_, made, {dtype}));
    }
    one_.set_outputs(outputs);
    return std::move(one_);
  }

 private:
  void copy(const Op& op) {
    for (TensorId t : op.inputs) {
      if (map_[t.index].valid()) continue;
      CHECK(!is_input(g_.producer(t).kind)) << "a call reads an input that it does not name";
      copy(g_.producer(t));
    }
    if (!wide_ && !(call_.padded && is_convolution(op.kind))) return copy_op(g_, op, one_, map_);
    Attrs attrs = op.attrs;
    if (auto* window = std::get_if<ConvAttrs>(&attrs); window && call_.padded) {
      std::ranges::fill(window->low, 0);
      std::ranges::fill(window->high, 0);
    }
    if (auto* constant = std::get_if<ConstAttrs>(&attrs); constant && wide_) {
      if (constant->type.dtype == call_.dtype) constant->type.dtype = DType::F32;
      map_[op.result().index] = one_.add_const(constant->value, constant->type);
      return;
    }
    if (auto* cast = std::get_if<CastAttrs>(&attrs); cast && cast->dtype == call_.dtype)
      cast->dtype = DType::F32;
    std::vector<TensorId> inputs = mapped(op.inputs, [&](TensorId t) { return map_[t.index]; });
    map_[op.result().index] = one_.add(op.kind, inputs, attrs);
  }

  const Graph& g_;
  const LibraryCall& call_;
  bool wide_;
  Graph one_;
  std::vector<TensorId> map_;
};

}  // namespace

Type padded_type(const Graph& g, OpId id, const LibraryCall& call) {
  const std::vector<TensorId>& reads = call.reads.empty() ? g.op(id).inputs : call.reads;
  Type t = g.type(reads[size_t(call.left)]);
  for (size_t i = 0; i < call.axes.size(); ++i) t.shape[i + 2] = Dim(call.axes[i].in);
  return t;
}

Graph call_program(const Graph& g, OpId id, const LibraryCall& call) {
  const Op& op = g.op(id);
  const std::vector<TensorId>& reads = call.reads.empty() ? op.inputs : call.reads;
  CallProgram program(g, call);
  for (size_t i = 0; i < reads.size(); ++i)
    program.read(reads[i], call.padded && i == size_t(call.left) ? padded_type(g, id, call)
                                                                 : g.type(reads[i]));
  return program.finish(op);
}

}  // namespace tessera
