// Kernel-level reductions and products as block graphs, so that one generator serves everything:
// the block graph fixes how the work is split over the grid and the loop.
#pragma once

#include <functional>
#include <optional>

#include "ir/graph.h"
#include "plan/row_groups.h"

namespace tessera {

// What the machine wants of a split.
struct Lowering {
  int64_t block_elements = 16384;  // operand elements that make a block worth its start
  // Of `batch` products of m rows, n columns and depth k.
  std::function<ProductTiles(DType, int64_t batch, int64_t m, int64_t n, int64_t k)> split;
};

// Throws Error unless it is a kernel graph of static shapes.
void require_runnable(const Graph& graph);
// A block graph that computes `op` of a kernel graph, with one input per operand and one output;
// operands are seen with equivalent shapes of the same elements in the same order. nullopt for
// operators whose elements are expressions of the operands' elements.
std::optional<Graph> lower_to_block(const Graph& graph, const Op& op, const Lowering& lowering);

}  // namespace tessera
