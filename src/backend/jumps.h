// Programs whose results jump where a sum is off by one rounding: pixels that are truncated to
// integers, quantised values, comparisons. Their code rounds as NumPy does, operator by operator.
#pragma once

#include <set>

#include "ir/graph.h"

namespace tessera {

// The operators of `graph` whose code has to round every product before something is added to it
// (no fused multiply-add), and quotients and roots exactly: one of them reaches, through pointwise
// operators and data movement, what jumps (floor, round, sign, mod, comparisons, casts to
// integers), or a difference reaches a root or logarithm, which is NaN just below 0.
std::set<OpId> before_jumps(const Graph& graph);

}  // namespace tessera
