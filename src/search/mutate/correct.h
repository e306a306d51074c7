// Corrections of mutants that are equal on a part of the output only (PET §5.2–5.3): in the copies
// of the mutant (zeros between merged images, tiles that overlap), or by computing the wrong boxes
// again as the original does, in kernels of their own or in the mutant's own convolution.
#pragma once
#include "search/mutate/boxes.h"
#include "search/mutate/generate.h"

namespace tessera::mutants {

struct Corrected {
  Graph graph;
  std::string how;  // "spacer", "halo", "recompute", "fuse"
};

// Graphs that should be equal everywhere; those of "spacer" and "halo" have been found equal by
// their boxes, the others are equal by construction where `found` tells the truth.
std::vector<Corrected> corrections(const Graph& original, const Recipe& recipe, const Graph& mutant,
                                   const Agreement& found, const MutateOptions& options);

}  // namespace tessera::mutants
