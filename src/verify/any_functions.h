// Operators that nobody looks into, taken for any functions of their operands.
#pragma once
#include <optional>
#include <utility>

#include "ir/graph.h"

namespace tessera {

// Among a certificate's notes, where that was done.
inline constexpr const char* kAnyFunctions =
    "operators that are not looked into are taken for any functions, the same in both programs";

// Both programs with what such operators return as further inputs and what they are given as
// further results: programs of which these are equal are equal, whatever the operators compute.
// Nothing where there are none, or where one program has others than the other has.
std::optional<std::pair<Graph, Graph>> with_any_functions(const Graph& spec,
                                                          const Graph& candidate);

}  // namespace tessera
