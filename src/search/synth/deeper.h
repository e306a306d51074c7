// Sketches within sketches: the target as an operation on a known value and a hole, the hole as an
// operation on another and a hole, and what is left as an operation on two known values.
#pragma once
#include "search/synth/bank.h"

namespace tessera::synth {

// Looks at about `probes` of them. Floats only.
void meet_deeper(Bank& bank, int64_t probes);

}  // namespace tessera::synth
