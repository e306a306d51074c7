#include "search/patterns/axes.h"

#include <algorithm>

#include "search/patterns/loops.h"

namespace tessera::patterns {

namespace {

std::vector<OpId> with_loops(const Graph& g, std::vector<OpId> ops) {
  std::erase_if(ops, [&](OpId id) { return g.op(id).inputs.empty() || !has_loops(g, g.op(id)); });
  return ops;
}

}  // namespace

std::vector<OpId> all_ops(const Graph& g) {
  std::vector<OpId> ops;
  for (uint32_t i = 0; i < g.ops().size(); i++) ops.push_back(OpId(i));
  return ops;
}

Axes::Axes(const Graph& g, const std::vector<OpId>& ops)
    : AxisClasses(g, with_loops(g, ops)), g_(g) {}

bool Axes::has(TensorId t, int axis) const { return std::ranges::count(of(t), axis) > 0; }

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

bool has_loops(const Graph& g, const Op& op) {
  if (has(op.kind, algebra::Pointwise) || is_skeleton(op)) return true;
  if (is_leaf(op.kind) || is_triangle(op.kind)) return true;
  if (op.kind != OpKind::Reshape) return arranges(op.kind);
  return only_units_differ(g.tensor(op.inputs[0]).type.shape, g.tensor(op.result()).type.shape);
}

}  // namespace tessera::patterns
