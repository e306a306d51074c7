// Kernel-level reductions and products as block graphs, so that one generator serves everything:
// the block graph fixes how the work is split over the grid and the loop.
#pragma once

#include <optional>

#include "backend/cpu/isa.h"
#include "ir/graph.h"

namespace tessera {

// A block graph that computes `op` of a kernel graph, with one input per operand and one output;
// operands are seen with equivalent shapes of the same elements in the same order. nullopt for
// operators that emit_elementwise handles.
std::optional<Graph> lower_to_block(const Graph& graph, const Op& op, CpuIsa isa);

}  // namespace tessera
