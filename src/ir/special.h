// Programs to which NaN, infinities or signs of zero are answers.
#pragma once
#include "ir/graph.h"

namespace tessera {

// Compares a value with itself or with what is not finite, or takes an angle that a zero's sign
// decides, in a kernel or outside.
bool asks_for_nan(const Graph& graph);

}  // namespace tessera
