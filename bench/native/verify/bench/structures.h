// Programs rewritten into the structures that fused kernels are made of (reductions split over the
// grid, exponentials carried with running maxima, masks by position, scales folded into weights,
// clipped slices): soundly, or with one of the faults that such rewrites have.
#pragma once
#include "verify/bench/mutations.h"

namespace tessera {

// The sound ones belong to rewrites(), the faulty ones to mutations().
const std::vector<ProgramEdit>& sound_structures();
const std::vector<ProgramEdit>& faulty_structures();

}  // namespace tessera
