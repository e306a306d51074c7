// Programs with logarithms over inputs of which the logarithm is the variable: x = e^w, log x = w.
#pragma once
#include <optional>

#include "ir/graph.h"

namespace tessera {

struct Logged {
  Graph spec, candidate;
};

// Both programs as functions of w = log x for every input x (or square of an input) whose logarithm
// the original takes, so that the field, which knows log by name only, sees exp and log cancel.
// Sound only where what is left depends on no sign: both programs must be analytic, without order,
// roots or rounding; then equality for positive x is equality wherever both are defined. Nothing
// where that does not hold, or where there is nothing to replace.
std::optional<Logged> with_logarithms_as_inputs(const Graph& spec, const Graph& candidate);

}  // namespace tessera
