// How fast is a graph? The interface that search optimises against; the analytical model
// (cost/analytical.h) and the measured one of the back end both implement it.
#pragma once
#include <limits>
#include <string>

#include "ir/graph.h"

namespace tessera {

struct Cost {
  double seconds = 0;
  std::string source;    // "analytical:cpu-avx512", "measured", …
  bool complete = true;  // false: stopped early, the true cost is at least `seconds`
};

class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual std::string name() const = 0;
  // Seconds for one run of a kernel graph. May stop as soon as the cost is known to exceed `limit`.
  virtual Cost cost(const Graph& graph,
                    double limit = std::numeric_limits<double>::infinity()) const = 0;
};

}  // namespace tessera
