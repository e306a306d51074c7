// Quadratic characters by which two programs decide: sign tests, and square roots, which exist of
// residues only.
#pragma once
#include "eval/field_array.h"
#include "ir/graph.h"

namespace tessera {

// Of an output element, at most.
struct Characters {
  double signs = 0;  // different sign tests, and inputs that are bools
  double roots = 0;  // different radicands
  // Products of radicands that are a square times a number, none of them a product of others: √(u²)
  // is |u|, a sign test that is none by its name. There are never more than this: residues that
  // depend on one another do so at all inputs, and those of the others were seen not to.
  double dependent = 0;
  bool told = true;  // of the dependent ones; false: there are too many roots
};

// Counted in evaluations of both programs, of one element where all are computed alike. They have
// static shapes and the same inputs.
Characters characters(const Graph& a, const Graph& b, Signs signs, uint64_t seed);

}  // namespace tessera
