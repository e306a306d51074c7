// Where a rewrite may be undefined: zero denominators, roots and logarithms of what is not
// positive.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "verify/reference.h"

namespace tessera {

// Whether no operator of the program can leave its domain at finite inputs, over the reals, by the
// form of what it is given: 1 / (1 + exp x), √(x² + ε).
bool is_total(const Graph& graph);

// Whether a candidate that is not total is undefined only where the original is. Both are evaluated
// in fields of a few thousand elements, where a denominator is zero once in as many looks.
struct DefinednessTest {
  int64_t undefined = 0;  // elements of the candidate that were, as were the original's
  int draws = 0;
  // What it divides by is what the original divides by, and every result of the original depends on
  // that; nothing was drawn then.
  bool same_divisors = false;
  bool differs = false;  // somewhere the candidate alone was
  std::string unsupported;
};
DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel);

}  // namespace tessera
