// Kernels without tiles: every element of a result is an expression of elements in global memory,
// which pass through registers only.
#pragma once

#include <set>
#include <string>

#include "backend/cuda/block_emitter.h"
#include "ir/graph.h"

namespace tessera {

// A kernel-level operator other than products and reductions. `views`: the layouts of operands that
// are read in the array that they are a part of.
BlockText emit_flat(const std::string& name, const Graph& graph, const Op& op,
                    std::set<std::string>& prelude, const std::vector<Layout>& views = {});

}  // namespace tessera
