// What of a region a pattern's meaning is: values that stand for its inputs and its result, found
// by comparing numbers, so that how the region is written does not matter.
#pragma once
#include <string>
#include <vector>

#include "search/patterns/pattern.h"

namespace tessera::patterns {

struct Match {
  std::vector<TensorId> inputs;   // of the region, one per input of the def; numbers: none
  std::vector<Rational> numbers;  // one per input; 0 where it is no number
  TensorId value;                 // what the def computes; the rest of the region is its epilogue
  Values symbols;
};

struct Matches {
  std::vector<Match> found;  // those that leave least to the epilogue first
  // Where nothing was found: what came nearest, and what was missing.
  std::string why;
};

// `region` is a static kernel graph of one output, `small` the same at reduced sizes (region.h).
Matches match(const Pattern&, const Graph& region, const Graph& small, uint64_t seed = 0);

// The operators between `value` and the output of a region, if they are all pointwise and of its
// shape. Nothing if not.
std::optional<std::vector<OpId>> epilogue(const Graph& region, TensorId value);

}  // namespace tessera::patterns
