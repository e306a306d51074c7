// Which axes of a program's tensors are the same, as loops have it.
#pragma once
#include <vector>

#include "search/axis_classes.h"

namespace tessera::patterns {

// All operators of a graph.
std::vector<OpId> all_ops(const Graph&);

class Axes : public AxisClasses {
 public:
  // Axes are joined by those of these operators that have loops.
  Axes(const Graph&, const std::vector<OpId>& ops);

  bool has(TensorId, int axis) const;
  // The classes that an operator reduces over.
  std::vector<int> folded(const Op&) const;

 private:
  const Graph& g_;
};

}  // namespace tessera::patterns
