// Where a rewrite may be undefined: zero denominators, roots and logarithms of what is not
// positive.
#pragma once
#include <cstdint>
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

DefinednessTest test_definedness(Reference& spec, const Graph& candidate, uint64_t seed,
                                 double work, const std::atomic<bool>* cancel);

// Small integers, moved so that an operand of either program is out of its operator's domain: a
// result is infinite or no number there, which what follows may turn into a number.
struct OutsideInputs {
  std::vector<std::vector<NDArray>> sets;
  bool complete = true;  // each such operand at the graphs' own level was out of its domain
};
// Half of them are sought from `starts` on, if there are any.
OutsideInputs inputs_outside(const Graph& spec, const Graph& candidate,
                             const std::vector<std::vector<NDArray>>& starts, uint64_t seed,
                             double work, ThreadPool* pool);

// Whether something that reads these values may make numbers of infinities and of what is none.
bool is_made_finite(const Graph& g, const std::vector<TensorId>& values);
// Whether that befalls results of operators that may be out of their domain.
bool hides_undefined(const Graph& g);

// Of programs with the same poles: whether the rewrite computes what the original does, if that is
// finite (or, asked for `infinities`, whatever it is), wherever an operand, in both the same, is
// taken for one that is out of its domain, whether or not there are inputs at which it is: at
// random inputs and at `others`.
bool is_alike_outside(const Graph& spec, const Graph& candidate, bool infinities,
                      const std::vector<std::vector<NDArray>>& others, uint64_t seed, double work,
                      ThreadPool* pool);

}  // namespace tessera
