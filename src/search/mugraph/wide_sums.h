// Sums handed from kernel to kernel stay in single precision where the program is 16-bit: a partial
// result rounded to bf16 costs as much accuracy as the result itself.
#pragma once
#include "ir/graph.h"

namespace tessera::mugraph {

// The same program with those tensors between kernels stored as f32 that hold sums and that no
// matmul reads. Inside kernels nothing changes: there 16-bit values are f32 already.
Graph store_sums_wide(const Graph& graph);

}  // namespace tessera::mugraph
