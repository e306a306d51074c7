// Slices that kernels of a GPU read where they lie, in the array that they are cut from, instead of
// in a copy. The generator and the cost model share the rule.
#pragma once
#include <cstddef>

#include "ir/graph.h"

namespace tessera {

// Whether generated code of `user` may read its operand number `operand` in the array that one or
// several slices make it from. Products want rows of neighbours that begin at multiples of 16
// bytes, as copies of 16 bytes do. Libraries' calls and kernels in one launch with another read
// arrays.
bool reads_slice_in_place(const Graph& graph, OpId user, size_t operand);

}  // namespace tessera
