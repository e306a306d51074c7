// When the steps of a block run: intervals between barriers, as few as possible (Mirage, OSDI'25,
// §6, operator scheduling, for loops too: what one iteration leaves behind is in the next one's
// way).
#pragma once

#include <utility>
#include <vector>

#include "plan/block.h"

namespace tessera {

// Step `to` comes after step `from`, `barriers` of them between: in the same iteration, or with
// `loop` given, `iterations` of that loop later.
struct OrderEdge {
  int from = 0, to = 0;
  int barriers = 0;  // 0 or 1
  int loop = -1;
  int iterations = 0;
  int before = -1;  // given: not `to`, but the beginning of this loop comes after
};

// Times count the barriers since the beginning, every loop run once. In a loop that begins at time
// b and has K barriers, times are from b to b + K; the last of one iteration and the first of the
// next one are the same interval.
struct BlockOrder {
  std::vector<int> time;      // by step
  std::vector<int> begin;     // by loop
  std::vector<int> barriers;  // by loop, inner loops counted once
  int end = 0;                // time after everything
};

struct OrderOptions {
  bool serial = false;  // every step in an interval of its own
  // Steps that must not be in the first interval of a loop around them: (step, loop).
  std::vector<std::pair<int, int>> not_first;
};

// Edges within an iteration go forward in the list. Each loop
// has the fewest barriers for which an order exists, inner loops before outer ones; every step runs
// as early as that allows.
BlockOrder order_block(const Block& block, const std::vector<OrderEdge>& edges,
                       const OrderOptions& options = {});

}  // namespace tessera
