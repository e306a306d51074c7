// Rewrites before fusion: no operator twice, and products of one operand with weights as one.
#pragma once

#include "plan/row_groups.h"

namespace tessera {

// The program without operators that compute what another one does, or that nobody reads.
Graph without_repeats(const Graph& graph);

// Products of matrices that share their left operand become one with their weights side by side,
// biases included. Those that meet element by element (gate and up) stay: they are one kernel
// anyhow.
Graph join_products(const Graph& graph, const FusionRules& rules);

}  // namespace tessera
