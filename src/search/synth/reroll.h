// Loops over rows that tracing unrolled, rolled up again: operands of a stack (or the terms of a
// long sum) that are the same program of successive slices become one program of the whole tensor.
#pragma once
#include <optional>
#include <string>

#include "ir/graph.h"

namespace tessera::synth {

struct Retold {
  Graph graph;             // same inputs and outputs
  std::string derivation;  // a line for each kind of change, or loop
};

// Nothing where there is no such loop. What comes out is a proposal, as every rewrite is.
std::optional<Retold> reroll(const Graph& program);

}  // namespace tessera::synth
