// Which subgraphs of a program look like patterns (PluS, ATC'25, §4.2): they grow around skeleton
// operators while they are a state of some pattern's +Graph.
#pragma once
#include <vector>

#include "base/deadline.h"
#include "search/patterns/pattern.h"

namespace tessera::patterns {

struct Subgraph {
  std::vector<OpId> ops;         // ascending; convex
  std::vector<size_t> patterns;  // that it fits completely
};

// Anchors grow regardless of each other, and all that fitted on the way are there to choose from;
// so are subgraphs with all key operations of a pattern in other loops, which algebra may explain.
// What the paper leaves open: operators that do not fit are not tried again until the subgraph has
// grown; consumers of all its values come before producers; what lies between two of its operators
// belongs to it. Where the deadline ends, what was found until then is the result.
std::vector<Subgraph> identify(const Graph&, const std::vector<Pattern>&,
                               const Deadline* deadline = nullptr);

}  // namespace tessera::patterns
