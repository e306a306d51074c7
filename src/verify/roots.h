// Square roots that depend on one another.
#pragma once
#include "ir/graph.h"

namespace tessera {

// How many products of radicands are a square times a number, none of them a product of others:
// √(u²) is |u|, a sign test that is none by its name. Fewer are there never: residues that depend
// on one another do so at all inputs, and as many were drawn at which they do not. `together`: how
// many roots an output element of both programs may have; returned where there are too many to
// tell. Both have static shapes and the same inputs.
double dependent_roots(const Graph& a, const Graph& b, double together, uint64_t seed);

}  // namespace tessera
