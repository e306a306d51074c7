// How each tile of a block lies in shared memory (Mirage, OSDI'25, §6, tensor layouts): of the
// orders, paddings and swizzles that there are, the one in which its accesses cost least, by the
// addresses of all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/block_access.h"

namespace tessera {

// A way to lay out a tile.
struct TileLayout {
  SharedLayout layout;
  int64_t bytes = 0;  // of shared memory
};

// In cycles of a multiprocessor, of which shared memory serves one wavefront each: a byte that
// other blocks could use.
inline constexpr double kCyclesPerByte = 1e-3;

// By value; nothing for what always is in registers. Throws Error(Unsupported) where two steps
// allow no layout in common.
std::vector<std::optional<TileLayout>> tile_layouts(const Block& block, const BlockLimits& limits,
                                                    double per_byte = kCyclesPerByte);

// What tile_layouts() chooses from, and what one costs over the block's whole life; infinite where
// some step cannot be done.
std::vector<TileLayout> possible_layouts(const Block& block, int value);
double layout_cycles(const Block& block, const BlockLimits& limits, int value,
                     const TileLayout& tile, double per_byte);

// Iterations of all loops around the step together.
int64_t executions(const Block& block, const BlockStep& step);

}  // namespace tessera
