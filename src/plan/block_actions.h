// The steps of a block as a program: in the order of their times, with barriers, waits for copies
// and fences between them.
#pragma once

#include <vector>

#include "plan/block_access.h"
#include "plan/block_order.h"
#include "plan/block_plan.h"

namespace tessera {

// An access to a value whose place and layout are settled.
struct PlacedAccess {
  int step = 0;
  bool write = false;
  Owners who;
  Instruction instruction = Instruction::None;
};

// A block of which order, stages, barriers and offsets are left to plan.
struct SettledBlock {
  BlockPlan plan;                                   // its values' places and bytes, its accesses
  std::vector<std::vector<PlacedAccess>> accesses;  // by value, in the order of steps
  std::vector<int64_t> alignment;                   // by value, in bytes
};
// Throws Error(Unsupported) where no plan fits the limits.
BlockPlan plan_settled(const Block& block, SettledBlock settled, const BlockLimits& limits,
                       const BlockPlanOptions& options);

// `plan` has places, walks, copies, offsets and how far loops run ahead; `accesses` by value, in
// the order of the steps.
std::vector<Action> block_actions(const Block& block, const BlockPlan& plan,
                                  const BlockOrder& order,
                                  const std::vector<std::vector<PlacedAccess>>& accesses);

}  // namespace tessera
