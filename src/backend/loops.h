// Kernel-level graphs as typed loops (kernel/ir.h): every reduction, product, window and gather is
// a block of loops of its own, into which the operators between them are pulled as expressions of
// their operands' elements, unless that computes too much again.
#pragma once
#include <vector>

#include "ir/graph.h"
#include "kernel/ir.h"

namespace tessera {

// `data`: which inputs are data of the function rather than arguments. Buffers are the inputs in
// order, the outputs in order, and what lies between. Throws Error(Unsupported) naming an operator
// that has no loops here, Error(BadInput) where extents are symbols.
kernel::Function lower_to_loops(const Graph& graph, const std::vector<bool>& data);

}  // namespace tessera
