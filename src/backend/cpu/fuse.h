// What the CPU's code generator wants of fusion (plan/fuse.h).
#pragma once

#include "backend/cpu/isa.h"
#include "ir/graph.h"

namespace tessera {

// An equal program in which kernels stand for neighbouring operators, after reductions of many
// elements to few were staged (long_sums.h). What follows convolutions stays with them
// (image_steps). `weights`: what depends on them alone is computed once, elsewhere; `compared`: and
// compared with them in every call.
Graph fuse_operators(const Graph& graph, CpuIsa isa, bool weights = true, bool compared = false);

}  // namespace tessera
