// Reductions of many elements to few, in two stages, and products of two vectors as such: rows that
// threads share, each computed together with the element-by-element operators before it
// (plan/fuse.h), then what is left of them.
#pragma once

#include "ir/graph.h"

namespace tessera {

// Of a kernel graph with static shapes.
Graph with_staged_reductions(const Graph& graph);

}  // namespace tessera
