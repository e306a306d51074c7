// Which tensors of a program lie with their channels innermost. Convolutions and pooling over
// vectors of channels want that; other operators do not care, as long as nobody copies in between.
#pragma once

#include <vector>

#include "backend/cpu/isa.h"
#include "ir/graph.h"

namespace tessera {

// The orders of axes that bring [N, C, …] to [N, …, C], and back.
std::vector<int> to_last(size_t rank);
std::vector<int> to_first(size_t rank);

// An equal program in which images [N, C, …] that come from convolutions or pooling are kept as
// [N, …, C]: every such operator stands between two transposes (its own, which image_steps finds
// again), element-by-element operators, joins, cuts, zeros around images and reductions follow the
// order of their operand, and what remains of transposes is where the orders meet, one for each
// chain of reshapes and transposes. Transposed convolutions become ordinary ones.
Graph channels_last(const Graph& graph, CpuIsa isa);

// A convolution or pooling between its transposes, and the element-by-element operators that follow
// while nobody else wants what is in between: one piece of code.
struct ImageStep {
  OpId window;                 // conv, pool_sum or pool_max
  OpId before;                 // transpose to channels first
  std::vector<OpId> after;     // transpose to channels last, then element by element
  TensorId image;              // [N, …, C]
  TensorId result;             // of the last of `after`
  std::vector<TensorId> more;  // other operands of `after`, each once
};

// How a value meets the pixels and channels of a result [N, …, C].
enum class Meets { Elements, Channels, Pixels, Scalar, Otherwise };
Meets meets(const Type& operand, const Type& result);

std::vector<ImageStep> image_steps(const Graph& graph, CpuIsa isa);

// By operator of a program whose images lie as they come: whether it would be computed together
// with the convolution or pooling before it.
std::vector<bool> follows_image(const Graph& graph, CpuIsa isa);

}  // namespace tessera
