// What of a program depends on its weights and constants alone, and so needs computing once per set
// of weights and not in every call.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace tessera {

// By operator: whether it is computed once. Leaves are not (nothing is computed), nor is what the
// caller gets back, nor a value so much larger than its operands that keeping it costs more than
// making it again. `of_weights`: only what depends on a weight, not on constants alone.
std::vector<bool> computed_once(const Graph& graph, bool of_weights = false);

}  // namespace tessera
