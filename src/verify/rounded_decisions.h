// Decisions that rounding makes: x + 1 == x holds for large x, exp x > 0 fails for small x. Proofs
// over the reals know nothing of them.
#pragma once
#include <atomic>
#include <optional>

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

}  // namespace tessera
