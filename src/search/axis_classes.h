// Which axes of a program's tensors are the same: iterated together by some of its operators.
#pragma once
#include <vector>

#include "base/union_find.h"
#include "ir/graph.h"

namespace tessera {

// Whether two shapes are the same but for axes of extent 1.
bool only_units_differ(const Shape& a, const Shape& b);

// What the axes of an operator's operands are called if those of its result have these names (-1:
// extent 1): kContracted are those that it sums over. Of elementwise operators, products,
// reductions, transposes, triangles, broadcasts, and reshapes that move axes of extent 1 only.
inline constexpr int kContracted = -2;
std::vector<std::vector<int>> operand_axes(const Graph& graph, const Op& op,
                                           const std::vector<int>& result);

class AxisClasses {
 public:
  // Axes are joined by these operators only.
  AxisClasses(const Graph& graph, const std::vector<OpId>& ops);

  int of(TensorId t, size_t axis) const { return int(axes_.find(slot(t, axis))); }
  // Of all its axes; -1 where the extent is 1.
  std::vector<int> of(TensorId t) const;
  const Dim& extent(int axis_class) const { return extents_[size_t(axis_class)]; }

 private:
  size_t slot(TensorId t, size_t axis) const { return size_t(first_[t.index]) + axis; }

  const Graph& graph_;
  std::vector<int> first_;  // of each tensor's axes in axes_
  UnionFind axes_;
  std::vector<Dim> extents_;  // by entry of axes_
};

}  // namespace tessera
