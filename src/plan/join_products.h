// A rewrite before fusion: products of one operand with weights as one.
#pragma once

#include "plan/row_groups.h"

namespace tessera {

// Products of matrices that share their left operand become one with their weights side by side,
// biases included. Those that meet element by element (gate and up) stay: they are one kernel
// anyhow.
Graph join_products(const Graph& graph, const FusionRules& rules);

}  // namespace tessera
