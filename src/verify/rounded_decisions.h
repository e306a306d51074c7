// What rounding makes, of which proofs over the reals know nothing. Decisions: x + 1 == x holds for
// large x, exp x > 0 fails for small x. Values: compensated sums, splittings, (x + c) - c.
#pragma once
#include <atomic>
#include <optional>
#include <string>

#include "verify/reference.h"
#include "verify/verdict.h"

namespace tessera {

// Runs both programs in their own dtype at inputs of all magnitudes, where numbers are absorbed and
// underflow, and returns inputs at which the results are clearly different though those of the
// original do not move with the last places of its inputs. `decides`: the original has decisions
// that jump.
std::optional<Counterexample> decided_by_rounding(Reference& spec, const Graph& candidate,
                                                  bool decides, uint64_t seed, double work,
                                                  const std::atomic<bool>* cancel);

// An operator of the original, as text, whose results at ordinary inputs are mostly errors of
// rounding, and not because they move with the last places of the inputs; empty if there is none.
std::string made_of_rounding(Reference& spec, const std::vector<IntRange>& ranges, uint64_t seed);

}  // namespace tessera
