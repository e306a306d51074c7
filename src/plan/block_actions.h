// The steps of a block as a program: in the order of their times, with barriers, waits for copies
// and fences between them.
#pragma once

#include <vector>

#include "plan/block_order.h"
#include "plan/block_plan.h"

namespace tessera {

// What a step does to a value.
struct PlacedAccess {
  int step = 0;
  bool write = false;
  int mapping = -1;  // see FlowAccess
  bool proxy = false;
  Instruction instruction = Instruction::None;

  // Whether each thread meets its own elements, so that no barrier has to stand between the two.
  bool meets_itself(const PlacedAccess& other) const {
    return !proxy && !other.proxy && mapping >= 0 && mapping == other.mapping;
  }
};

// `plan` has places, copies, offsets and how far loops run ahead; `accesses` by value, in
// the order of the steps.
std::vector<Action> block_actions(const Block& block, const BlockPlan& plan,
                                  const BlockOrder& order,
                                  const std::vector<std::vector<PlacedAccess>>& accesses);

}  // namespace tessera
