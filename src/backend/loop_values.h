// Which values of a graph get memory of their own when it becomes loops. Internal to loops.cpp.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// By tensor. All others are computed where their elements are read.
std::vector<bool> kept_values(const Graph& graph);

}  // namespace tessera
