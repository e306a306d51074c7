// A pattern's kernel in the place of a region: sizes bound, settings chosen, holes filled.
#pragma once
#include "search/patterns/match.h"

namespace tessera::patterns {

// A program of the region's inputs and output that uses the body. Pointwise operators that make an
// input with a prologue, and the region's epilogue, are computed inside the body's kernels, on its
// tiles; what else the region needs first stays as it is. Throws Error where the body does not fit.
Graph instantiate(const Pattern&, const Body&, const Match&, const Values& setting,
                  const Graph& region);

}  // namespace tessera::patterns
