// Where a rewrite may be undefined: zero denominators, roots and logarithms of what is not
// positive.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "verify/reference.h"

namespace tessera {

// Whether a candidate that is not total is undefined only where the original is. Both are evaluated
// in fields of a few thousand elements, at inputs at which each of the
// candidate's denominators is zero.
struct DefinednessTest {
  // Zeros that were met of the denominator that was zero least; of candidates that divide by
  // nothing at kernel level, elements that were undefined as the original's were.
  int64_t undefined = 0;
  int draws = 0;
  // It divides by what the original divides by, in the same places, and likewise for roots and
  // logarithms: no zeros were looked for.
  bool same_poles = false;
  bool differs = false;  // somewhere the candidate alone was
  std::string unsupported;
};
// Small integers, moved so that a denominator of either is zero, where that is linear in an input:
// a quotient is infinite or no number there, which what follows may turn into a number.
std::vector<std::vector<NDArray>> inputs_at_poles(const Graph& spec, const Graph& candidate,
                                                  uint64_t seed, double work, ThreadPool* pool);

DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel);

}  // namespace tessera
