// Transposed convolutions as ordinary ones.
#pragma once

#include "ir/graph.h"

namespace tessera {

// An equal program without transposed convolutions. With strides s each becomes convolutions of
// stride 1, one for the phases of the result that have as many taps, which are its channels, and a
// transpose that interleaves them (Shi et al., "Is the deconvolution layer the same as a
// convolutional layer?", 2016).
Graph without_transposed_convolutions(const Graph& graph);

}  // namespace tessera
