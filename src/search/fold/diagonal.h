// Products with diagonal matrices, as whatever programs make them: diag(v), eye(n) * v, masks of
// positions, padded and reshaped vectors.
#pragma once
#include <optional>

#include "ir/graph.h"

namespace tessera {

// The program with D R → d * R and L D → d * L wherever D, evaluated at random inputs, is 0 outside
// of its diagonal d: a value that it is made of, or its sums; nothing where that is nowhere. A
// proposal.
std::optional<Graph> with_diagonals(const Graph& program);

}  // namespace tessera
