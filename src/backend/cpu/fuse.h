// Neighbouring operators of a program as one kernel, where that saves passes over memory: products
// with what follows them, rows with their reductions, attention.
#pragma once

#include "backend/cpu/isa.h"
#include "ir/graph.h"

namespace tessera {

// An equal program in which kernels (block graphs) stand for
//   - a product by a matrix and the element-by-element operators that follow (bias, activation,
//     residual, gates), for each tile of the result;
//   - element-by-element operators and reductions along the last axis (softmax, norms), for some
//     rows at a time;
//   - batched products whose result such operators, and possibly a second product, follow:
//   attention.
//     Transposes of their operands and of the last result are read and written through.
// Reductions of many elements to few are staged before (long_sums.h).
// Of what is computed between, nothing is seen by others. What is computed once per set of weights
// stays as it is (`weights`: there is such), and what follows convolutions (image_steps). The
// program itself where nothing can be fused.
Graph fuse_operators(const Graph& graph, CpuIsa isa, bool weights = true);

}  // namespace tessera
