#include "search/patterns/axes.h"

#include <algorithm>

#include "search/patterns/loops.h"

namespace tessera::patterns {

Axes::Axes(const Graph& g, const std::vector<OpId>& ops) : g_(g) {
  for (const Tensor& t : g.tensors()) {
    first_.push_back(int(parent_.size()));
    for (const Dim& d : t.type.shape) {
      parent_.push_back(int(parent_.size()));
      extents_.push_back(d);
    }
  }
  for (OpId id : ops)
    if (!g.op(id).inputs.empty() && has_loops(g, g.op(id))) join_op(g.op(id));
}

int Axes::find(int a) const {
  while (parent_[size_t(a)] != a) a = parent_[size_t(a)] = parent_[size_t(parent_[size_t(a)])];
  return a;
}

void Axes::join(TensorId a, int i, TensorId b, int j) {
  const Dim& x = g_.tensor(a).type.shape[size_t(i)];
  if (x.is_one() || !(x == g_.tensor(b).type.shape[size_t(j)])) return;
  parent_[size_t(find(first_[a.index] + i))] = find(first_[b.index] + j);
}

std::vector<int> Axes::of(TensorId t) const {
  std::vector<int> found;
  const Shape& shape = g_.tensor(t).type.shape;
  for (size_t i = 0; i < shape.size(); i++)
    found.push_back(shape[i].is_one() ? -1 : find(first_[t.index] + int(i)));
  return found;
}

bool Axes::has(TensorId t, int axis) const {
  const std::vector<int> all = of(t);
  return std::ranges::find(all, axis) != all.end();
}

std::vector<int> Axes::folded(const Op& op) const {
  std::vector<int> found;
  if (op.kind == OpKind::Matmul) {
    const std::vector<int> x = of(op.inputs[0]);
    if (x.back() >= 0) found.push_back(x.back());
  } else if (is_skeleton(op)) {
    const std::vector<int> x = of(op.inputs[0]);
    for (int a : g_.attrs<ReduceAttrs>(op).axes)
      if (x[size_t(a)] >= 0) found.push_back(x[size_t(a)]);
  }
  return found;
}

void Axes::join_op(const Op& op) {
  const TensorId r = op.result();
  const int rank = g_.tensor(r).type.rank();
  const auto right_aligned = [&](TensorId x, int inner) {
    const int xr = g_.tensor(x).type.rank();
    for (int i = inner; i < std::min(rank, xr); i++) join(x, xr - 1 - i, r, rank - 1 - i);
  };
  if (tessera::has(op.kind, algebra::Pointwise) || op.kind == OpKind::Broadcast) {
    for (TensorId x : op.inputs) right_aligned(x, 0);
    return;
  }
  if (op.kind == OpKind::Matmul) {
    for (TensorId x : op.inputs) right_aligned(x, 2);
    const int a = g_.tensor(op.inputs[0]).type.rank(), b = g_.tensor(op.inputs[1]).type.rank();
    join(op.inputs[0], a - 2, r, rank - 2);
    join(op.inputs[1], b - 1, r, rank - 1);
    join(op.inputs[0], a - 1, op.inputs[1], b - 2);
    return;
  }
  const TensorId x = op.inputs[0];
  const Shape &from = g_.tensor(x).type.shape, &to = g_.tensor(r).type.shape;
  if (op.kind == OpKind::Transpose) {
    const std::vector<int>& perm = g_.attrs<PermAttrs>(op).perm;
    for (int i = 0; i < rank; i++) join(x, perm[size_t(i)], r, i);
  } else if (is_skeleton(op)) {
    const ReduceAttrs& attrs = g_.attrs<ReduceAttrs>(op);
    for (int i = 0, j = 0; i < int(from.size()); i++) {
      const bool gone = std::ranges::count(attrs.axes, i) > 0;
      if (!gone) join(x, i, r, j);
      if (!gone || attrs.keepdims) j++;
    }
  } else {  // axes of extent 1 come and go
    for (int i = 0, j = 0; i < int(from.size()); i++) {
      if (from[size_t(i)].is_one()) continue;
      while (to[size_t(j)].is_one()) j++;
      join(x, i, r, j++);
    }
  }
}

bool only_units_differ(const Shape& x, const Shape& y) {
  Shape a, b;
  std::copy_if(
      x.begin(), x.end(), std::back_inserter(a), [](const Dim& d) { return !d.is_one(); });
  std::copy_if(y.begin(), y.end(), std::back_inserter(b), [](const Dim& d) { return !d.is_one(); });
  return a == b;
}

bool has_loops(const Graph& g, const Op& op) {
  if (has(op.kind, algebra::Pointwise) || is_skeleton(op)) return true;
  if (is_leaf(op.kind) || is_triangle(op.kind)) return true;
  if (op.kind != OpKind::Reshape) return arranges(op.kind);
  return only_units_differ(g.tensor(op.inputs[0]).type.shape, g.tensor(op.result()).type.shape);
}

}  // namespace tessera::patterns
