// How values are represented once kernels are chosen: what is derived from an exponential is
// carried as a pair (v, m) meaning v·e^m with a running maximum, so that it cannot overflow.
// Online softmax follows, for any graph, across loops and across kernels.
#pragma once
#include "ir/graph.h"

namespace tessera::mugraph {

// The same program with every exponential that enters a sum carried as (v, m):
//   exp x = (1, x)   mul adds m   div subtracts it   sqrt halves it   log (v, m) = log v + m
//   a sum over an axis, or over a loop, rescales to the maximum of m there
//   two kernels hand over v and m as two tensors; anything else is computed from v·e^m.
// Exponents that cancel are never computed. A graph without such exponentials comes back as it is.
Graph carry_exponents(const Graph& graph);

// Whether every exponential is of a difference to a maximum in the same block.
bool exponents_are_shifted(const Graph& graph);

}  // namespace tessera::mugraph
