// Operators of a program as few kernels (block graphs), by rule: products with what follows them,
// rows with their reductions, attention. Kernels read transposed, sliced and broadcast operands
// where they lie, and write results in the order that is wanted.
#pragma once

#include "plan/row_groups.h"

namespace tessera {

// An equal program, its inputs and outputs in the same order: no operator twice, products of one
// operand with weights as one (join_products.h), row groups as kernels. Operators keep their order;
// of what a kernel makes, only what is read elsewhere is stored. The program itself where nothing
// can be fused.
Graph fused(const Graph& graph, const FusionRules& rules);

}  // namespace tessera
