// Level bitwise: do two programs compute the same bits, for all inputs? Both are evaluated over
// terms (eval/terms.h); nothing is concluded from equality of numbers.
#pragma once
#include <optional>
#include <string>

#include "base/rng.h"
#include "verify/funnel.h"
#include "verify/reference.h"

namespace tessera {

struct TermTest {
  bool equal = false;
  int64_t elements = 0;  // of outputs
  int output = 0;        // where the first difference is
  int64_t index = 0;
  double error_log2 = 0;  // log2 of the probability that different terms have equal hashes
};
// Both graphs are static and have the same interface.
TermTest compare_terms(const Graph& spec, const Graph& candidate, uint64_t seed, ThreadPool* pool);

// The first operator of which compiled code would not have a library's bits, with the reason; empty
// where there is none: elementwise operators that IEEE 754 rounds, in f32, f64 and integers, and
// data movement.
std::string inexact_operator(const Graph& graph);

// Nothing: the same bits, which the certificate then says. Otherwise Refuted where inputs show
// other bits (of functions and sums: other values), else Unknown{rounding}.
std::optional<Verdict> test_bitwise(Reference& spec, const Graph& candidate,
                                    const VerifyOptions& options, Rng seeds, int binding,
                                    Certificate& certificate);

}  // namespace tessera
