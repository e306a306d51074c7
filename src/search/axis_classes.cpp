#include "search/axis_classes.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

bool only_units_differ(const Shape& x, const Shape& y) {
  Shape a, b;
  std::ranges::copy_if(
      x, std::back_inserter(a), [](const Dim& d) { return !d.is_one(); });
  std::ranges::copy_if(y, std::back_inserter(b), [](const Dim& d) { return !d.is_one(); });
  return a == b;
}

std::vector<std::vector<int>> operand_axes(const Graph& g, const Op& op,
                                           const std::vector<int>& dims) {
  std::vector<std::vector<int>> out;
  auto shape = [&](size_t i) -> const Shape& { return g.type(op.inputs[i]).shape; };
  auto aligned = [&](size_t i) {
    std::vector<int> d(shape(i).size(), -1);
    for (size_t k = 0; k < d.size(); ++k)
      if (!shape(i)[k].is_one()) d[k] = dims[dims.size() - d.size() + k];
    return d;
  };
  if (has(op.kind, algebra::Pointwise) || op.kind == OpKind::Broadcast) {
    for (size_t i = 0; i < op.inputs.size(); ++i) out.push_back(aligned(i));
    return out;
  }
  if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) {
    std::vector<int> d(shape(0).size(), -1);
    size_t next = 0;
    for (size_t k = 0; k < d.size(); ++k) {
      bool reduced = std::ranges::find(a->axes, int(k)) != a->axes.end();
      if (reduced) {
        if (!shape(0)[k].is_one()) d[k] = kContracted;
        if (a->keepdims) ++next;
      } else {
        d[k] = dims[next++];
      }
    }
    return {d};
  }
  if (is_product(op.kind)) {
    const size_t r = dims.size();
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // matmul: A B; concat_matmul: W X Y Z with W·Y + X·Z
      bool left = op.kind == OpKind::Matmul ? i == 0 : i < 2;
      std::vector<int> d(shape(i).size(), -1);
      const size_t n = d.size();
      for (size_t k = 0; k + 2 < n; ++k)
        if (!shape(i)[k].is_one()) d[k] = dims[r - n + k];
      size_t keep = left ? n - 2 : n - 1, sum = left ? n - 1 : n - 2;
      if (!shape(i)[keep].is_one()) d[keep] = dims[left ? r - 2 : r - 1];
      if (!shape(i)[sum].is_one()) d[sum] = kContracted;
      out.push_back(d);
    }
    return out;
  }
  if (const auto* a = std::get_if<PermAttrs>(&op.attrs)) {
    std::vector<int> d(dims.size(), -1);
    for (size_t k = 0; k < dims.size(); ++k) d[size_t(a->perm[k])] = dims[k];
    return {d};
  }
  CHECK(is_reshape(op.kind) || is_triangle(op.kind)) << "the axes of " << name(op.kind);
  std::vector<int> names;
  const Shape& to = g.type(op.result()).shape;
  for (size_t k = 0; k < to.size(); ++k)
    if (!to[k].is_one()) names.push_back(dims[k]);
  std::vector<int> d(shape(0).size(), -1);
  size_t next = 0;
  for (size_t k = 0; k < d.size(); ++k)
    if (!shape(0)[k].is_one()) d[k] = names[next++];
  return {d};
}

AxisClasses::AxisClasses(const Graph& g, const std::vector<OpId>& ops) : graph_(g) {
  for (const Tensor& t : g.tensors()) {
    first_.push_back(int(axes_.size()));
    for (const Dim& d : t.type.shape) {
      axes_.add();
      extents_.push_back(d);
    }
  }
  for (OpId id : ops) {
    const Op& op = g.op(id);
    // Name the result's axes by their own slots and see where the names go.
    std::vector<int> own;
    const Shape& shape = g.type(op.result()).shape;
    for (size_t k = 0; k < shape.size(); ++k)
      own.push_back(shape[k].is_one() ? -1 : slot(op.result(), k));
    const auto names = operand_axes(g, op, own);
    for (size_t i = 0; i < names.size(); ++i)
      for (size_t k = 0; k < names[i].size(); ++k)
        if (names[i][k] >= 0) axes_.join(size_t(names[i][k]), slot(op.inputs[i], k));
    for (size_t i = 0, n = op.inputs.size() / 2; is_product(op.kind) && i < n; ++i) {
      const Shape &a = g.type(op.inputs[i]).shape, &b = g.type(op.inputs[i + n]).shape;
      if (!a.back().is_one())
        axes_.join(slot(op.inputs[i], a.size() - 1), slot(op.inputs[i + n], b.size() - 2));
    }
  }
}

std::vector<int> AxisClasses::of(TensorId t) const {
  std::vector<int> found;
  const Shape& shape = graph_.type(t).shape;
  for (size_t k = 0; k < shape.size(); ++k) found.push_back(shape[k].is_one() ? -1 : of(t, k));
  return found;
}

}  // namespace tessera
