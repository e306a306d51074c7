// The arithmetic of block graphs: which tile a block and iteration see, which phase a value is in,
// and how much memory a block needs.
#pragma once
#include "ir/graph.h"

namespace tessera {

// ⌈a/b⌉ for b > 0, without overflow.
inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }

// The smallest multiple of `to` that is n or more.
inline int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }

// The half-open interval of one axis that a block and iteration see.
struct Interval {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end > begin ? end - begin : 0; }
};

// Part `index` of `parts` of an interval whose nominal size is `nominal`: parts have
// ⌈nominal/parts⌉ elements, later ones are clipped to the interval's end and may be empty.
Interval part(Interval whole, int64_t nominal, int64_t parts, int64_t index);

// Tile of a tensor of shape `extents` in block `block` (one index per grid dimension), iteration
// `iteration` (one index per loop): grid dimensions split first, then loops, each in order.
std::vector<Interval> tile(const std::vector<int64_t>& extents, const GridMap& grid_map,
                           const LoopMap& loop_map, const Graph& block_graph,
                           const std::vector<int64_t>& block,
                           const std::vector<int64_t>& iteration);
// The nominal tile shape (all indices zero).
Shape nominal_tile(const Shape& shape, const GridMap&, const LoopMap&, const Graph& block_graph);

// Phase of a tensor of a block graph, one bit per loop: `varies` with the iteration of a loop,
// `folded` over a loop by an accumulator. Invariant: both empty; loop value: varies; post: folded.
struct Phase {
  uint8_t varies = 0, folded = 0;
  friend bool operator==(const Phase&, const Phase&) = default;
};

// Phases of all tensors of a block graph; throws Error(BadInput) where loop and post values of the
// same loop meet, or an accumulator folds loops its operand does not vary with.
std::vector<Phase> phases(const Graph& block_graph);

// Bytes a block needs (arguments and results live outside): tiles and temporaries alive in the
// loops plus accumulators, against what post-processing needs; the larger counts (loop
// loads are double-buffered, post values reuse the loads' space).
struct BlockMemory {
  int64_t loop_bytes = 0, post_bytes = 0;
  int64_t peak() const { return loop_bytes > post_bytes ? loop_bytes : post_bytes; }
};
BlockMemory block_memory(const Graph& block_graph);

}  // namespace tessera
