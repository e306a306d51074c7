// How each tile of a block lies in shared memory, and how each step shares its elements among
// the threads: one 0/1 integer program for all (Mirage, OSDI'25, §6, tensor layouts), its costs
// from the addresses of every access.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/block_access.h"

namespace tessera {

// A way to lay out a tile.
struct TileLayout {
  SharedLayout layout;
  int64_t bytes = 0;  // of shared memory
};

// An access with its price for each walk of its step and each option of its value, over the block's
// whole life, in cycles of a multiprocessor's shared memory; infinite where the two do not go
// together.
struct PricedAccess {
  int step = 0, value = 0;
  bool write = false;
  std::vector<std::vector<double>> cycles;  // [walk][option]
};

struct BlockPrices {
  std::vector<std::vector<TileLayout>> options;  // by value; empty for what always is in registers
  std::vector<PricedAccess> accesses;
  double per_byte = 0;  // of shared memory
};

BlockPrices price_block(const Block& block, const BlockLimits& limits,
                        const BlockPlanOptions& options);

struct BlockChoice {
  std::vector<int> option;  // by value; -1: none
  std::vector<int> walk;    // by step
  double cycles = 0;
  bool optimal = true;
};

// Costs of one choice; infinite where it is not possible.
double choice_cycles(const Block& block, const BlockPrices& prices, const BlockChoice& choice);
// The cheapest. Throws Error(Unsupported) where a step cannot be done in any way.
BlockChoice choose_block(const Block& block, const BlockPrices& prices);

// Iterations of all loops around the step together.
int64_t executions(const Block& block, const BlockStep& step);

}  // namespace tessera
