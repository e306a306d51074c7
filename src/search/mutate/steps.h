// Recipes as they become graphs, step by step. Internal to search/mutate.
#pragma once
#include "search/mutate/generate.h"

namespace tessera::mutants {

using Parts = std::vector<TensorId>;

// What a step makes of values; nothing where bundles do not fit, Error where shapes do not.
std::optional<Parts> append(Graph& graph, const Step& step, const std::vector<Parts>& values);
// The same of steps `from` to `to` of a recipe; whether all fit.
bool append(Graph& graph, const Recipe& recipe, size_t from, size_t to, std::vector<Parts>& values);
// The values that a recipe starts from, in a graph with the original's inputs.
std::vector<Parts> begin(const Graph& original, const Recipe& recipe, Graph& graph);

}  // namespace tessera::mutants
