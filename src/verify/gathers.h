// Gathers by indices that depend on inputs, moved to where the elements come from.
#pragma once
#include "ir/graph.h"

namespace tessera {

// The program with gathers by computed indices of inputs in place of gathers of functions of single
// elements: f(x[i]) for f(x)[i], x[i]·w for (x·w)[i]; so of sums over other axes. Others stay: of
// x[i][j] for x[i[j]], fewer i need be positions of x. The graph has static shapes.
Graph with_gathers_of_inputs(const Graph& graph);

}  // namespace tessera
