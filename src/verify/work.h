// How much a program computes, and how far roundings can add up on the way.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// Multiply-adds (and other element operations) of one evaluation of a graph with static shapes.
double count_work(const Graph& graph);
// Length of the longest chain of roundings: contraction lengths added up along the deepest path.
double rounding_length(const Graph& graph);
// How many terms a result is a sum of: contraction lengths multiplied along the deepest path.
double most_terms(const Graph& graph);
// Functions (exp, tanh, roots, quotients …) on the longest path. Their errors are a unit in the
// last place or so and can all have one sign: they add up, where those of sums and products mostly
// cancel.
double function_depth(const Graph& graph);
// For each output the float dtype with the coarsest rounding on the way to it: f32 where an f64
// result is computed from a sum in f32. Never finer than the output's own.
std::vector<DType> coarsest_rounding(const Graph& graph);

}  // namespace tessera
