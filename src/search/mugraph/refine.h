// Reshapes that merge or split axes, moved to the borders of a program. [b,s,h·d] is another way to
// write [b,s,h,d]: where such reshapes lie between operators that the search sees through, the same
// program is written with the finer axes everywhere, so that they no longer cut it into regions.
#pragma once
#include <optional>

#include "ir/graph.h"

namespace tessera::mugraph {

// Whether a reshape does nothing but merge several dimensions into one or split one into several,
// anywhere in the shape: a group of axes that the finer program names one by one.
bool merges_or_splits(const Shape& from, const Shape& to);

// The program over finer axes, with the same inputs and outputs: only inputs, outputs and operators
// that are not seen through still have merged dimensions. A contraction over a merged axis becomes
// a product over its last part and a sum over the others. nullopt where no reshape between two
// operators merges or splits axes, or none can be moved: an axis that is cut in two different ways,
// or whose parts are cut again, stays as it is.
std::optional<Graph> refine_axes(const Graph& graph);

}  // namespace tessera::mugraph
