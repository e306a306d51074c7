// Convolutions and pooling without a library: pooling and odd convolutions by a thread per element,
// the others as products of their weights with the columns of all windows (Chellapilla et al. 2006,
// "im2col"), by tensor cores where the type has them.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "backend/cuda/block_emitter.h"
#include "backend/lower.h"
#include "ir/graph.h"

namespace tessera {

// A thread per element of the result, of a convolution per few filters of it.
BlockText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                       std::set<std::string>& prelude);

struct ConvolutionProduct {
  Type columns;          // [images, groups·channels·taps, windows], as emit_columns writes them
  bool is_view = false;  // the operand itself is that already
  Graph block;           // result from weights and columns
};

// How a convolution is a product; nothing where a thread per element does it better: transposed,
// of few channels or filters, of numbers that are not floats, or with columns beyond
// `most_bytes`.
std::optional<ConvolutionProduct> convolution_as_product(const Graph& graph, const Op& op,
                                                         const Lowering& lowering,
                                                         int64_t most_bytes);

// The kernel that lays every window of a convolution's operand out as a column.
BlockText emit_columns(const std::string& name, const Graph& graph, const Op& op,
                       std::set<std::string>& prelude);

}  // namespace tessera
