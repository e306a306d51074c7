// Between which numbers integers lie, by what computes them: the interval arithmetic that analyses
// of indices and of decisions share.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// An end that is this far may be anywhere beyond. Sums and products of nearer ones do not overflow
// 128 bits.
inline constexpr int64_t kFar = int64_t{1} << 62;

struct Bounds {  // both included
  int64_t low = -kFar, high = kFar;
  bool empty() const { return low > high; }
  bool known() const { return low > -kFar && high < kFar; }
  bool within(const Bounds& o) const { return low >= o.low && high <= o.high; }
  bool binary() const { return low >= 0 && high <= 1; }
};
Bounds hull(const Bounds& a, const Bounds& b);
// What an integer or bool type holds.
Bounds bounds_of(DType dtype);
// What an operator makes of integers in such bounds, before it wraps. An operator that is not known
// may make anything.
Bounds computed(const Graph& graph, const Op& op, const std::vector<Bounds>& operands);

}  // namespace tessera
