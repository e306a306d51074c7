// Variants of a program whose kernels are cut into other tiles: more or fewer blocks of the grid,
// more or fewer iterations of a loop. What is computed stays the same, its order does not, so a
// variant is proved and checked like any other candidate.
#pragma once
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// The program with other extents for one kernel, all types of its body inferred again; nullopt
// where they no longer fit (a tile's size is part of an attribute, or of a result's shape).
std::optional<Graph> retile(const Graph& program, OpId kernel, const std::vector<int64_t>& grid,
                            const std::vector<int64_t>& loops);

// All programs one step away: one extent of one kernel doubled or halved (at least 1, at most the
// extent of the axes that it splits).
std::vector<Graph> retilings(const Graph& program);

}  // namespace tessera
