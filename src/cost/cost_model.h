// How fast is a graph? The interface that search optimises against; the analytical model
// (cost/analytical.h) and the measured one of the back end both implement it.
#pragma once
#include "ir/graph.h"

namespace tessera {

struct Cost {
  double seconds = 0;
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  // Of one run of a kernel graph.
  virtual Cost cost(const Graph& graph) const = 0;
};

}  // namespace tessera
