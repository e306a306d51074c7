// Which axes of a program's tensors are the same: iterated together by some of its operators.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera::patterns {

class Axes {
 public:
  // Axes are joined by these operators only.
  Axes(const Graph&, const std::vector<OpId>& ops);

  // The class of each axis of a tensor; -1 where its extent is 1.
  std::vector<int> of(TensorId) const;
  bool has(TensorId, int axis) const;
  // The classes that an operator reduces over.
  std::vector<int> folded(const Op&) const;
  const Dim& extent(int axis) const { return extents_[size_t(axis)]; }
  int count() const { return int(extents_.size()); }

 private:
  void join(TensorId a, int i, TensorId b, int j);
  void join_op(const Op&);
  int find(int) const;

  const Graph& g_;
  std::vector<int> first_;  // of each tensor's axes in parent_
  mutable std::vector<int> parent_;
  std::vector<Dim> extents_;  // by entry of parent_
};

// The positions of the axes of `x` that are not 1, by position in `y` of the same size otherwise
// (a reshape that only adds or drops axes of extent 1); nothing for other reshapes.
bool only_units_differ(const Shape& x, const Shape& y);

}  // namespace tessera::patterns
