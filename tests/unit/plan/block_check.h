// What a block's plan is checked against.
#pragma once
#include <string>

#include "plan/block_plan.h"

namespace tessera {

// Replays the plan on pretended memory, thread by thread, knowing nothing of how it was made: every
// element read must be the one that a program without parallelism would read, complete, and ordered
// after its writing by barriers; nothing may be overwritten that is still to be read. Empty if all
// is well, else the first fault.
std::string block_fault(const Block& block, const BlockLimits& limits, const BlockPlan& plan);
// A plan for a reader.
std::string text(const BlockPlan& plan, const Block& block);

}  // namespace tessera
