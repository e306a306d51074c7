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

// `plan` has places, walks, copies, offsets and how far loops run ahead; `accesses` by value, in
// the order of the steps; `active`: the steps that run.
std::vector<Action> block_actions(const Block& block, const BlockPlan& plan,
                                  const BlockOrder& order,
                                  const std::vector<std::vector<PlacedAccess>>& accesses,
                                  const std::vector<bool>& active);

}  // namespace tessera
