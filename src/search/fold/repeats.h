// Work on values that repeat others (broadcast, repeated, upsampled, picked out of a table) done
// before they are repeated: f(R(x)) → R(f(x)) where f treats alike what R repeats.
#pragma once
#include <optional>

#include "ir/graph.h"

namespace tessera {

// The program with products by matrices, convolutions of one tap and pointwise operators before
// repetitions wherever fewer elements are computed then, or ones that weights alone determine;
// nothing where there are none. A proposal.
std::optional<Graph> repeated_later(const Graph& program);

// Whether a convolution with weights of this shape has one tap, at every element.
bool only_mixes(const ConvAttrs& conv, const Shape& weights);

}  // namespace tessera
