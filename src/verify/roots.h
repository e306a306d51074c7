// Whether the square roots in two programs are independent of one another.
#pragma once
#include "ir/graph.h"

namespace tessera {

// That no product of some radicands is a square times a number: √(u²) is |u|, a sign test that is
// none by its name. True is proved: residues that depend on one another do so at all inputs, and
// some were drawn at which these do not. `together`: how many roots an output element of both may
// have. Both graphs have static shapes and the same inputs.
bool roots_are_independent(const Graph& a, const Graph& b, double together, uint64_t seed);

}  // namespace tessera
