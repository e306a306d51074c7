// The .ug text format: canonical printing and parsing, parse(print(g)) == g.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace tessera {

std::string print(const Graph& graph);
// One operator on one line without its body, for messages and derivations.
std::string print_op(const Graph& graph, OpId op);
// All of them, by operator.
std::vector<std::string> print_ops(const Graph& graph);
// What a tensor of a kernel graph is computed from, names aside: equal texts of two graphs that are
// given the same inputs at the same places mean equal values.
std::string print_cone(const Graph& graph, TensorId of);
// A whole kernel graph, names and what nothing needs aside: equal texts mean equal programs.
std::string print_canonical(const Graph& graph);

struct ParseLimits {
  size_t bytes = size_t(64) << 20;
  size_t ops = 1'000'000;
};
// Throws Error(BadInput) with file:line:col on anything malformed; the result is validated.
Graph parse(std::string_view text, const std::string& file = "<input>",
            const ParseLimits& limits = {});

}  // namespace tessera
