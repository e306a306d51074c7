// Plans of described blocks, and what they are checked against.
#pragma once
#include <string>

#include "plan/block_plan.h"

namespace tessera {

// Throws Error(BadInput) at the first thing that makes no sense.
void check_block(const Block& block);
// The plan of a block from its description alone. Throws Error(Unsupported) where none fits the
// limits, naming what is too large.
BlockPlan plan_block(const Block& block, const BlockLimits& limits = {});
// Replays the plan on pretended memory, thread by thread, knowing nothing of how it was made: every
// element read must be the one that a program without parallelism would read, complete, and ordered
// after its writing by barriers; nothing may be overwritten that is still to be read. Empty if all
// is well, else the first fault.
std::string block_fault(const Block& block, const BlockLimits& limits, const BlockPlan& plan);
// For a reader.
std::string text(const Walk& walk);  // "rows of 8 lanes along 1 by 2"
// "row-major", "[1,0] pad 8", "swizzled 3 by 7".
std::string text(const SharedLayout& layout);
std::string text(const BlockPlan& plan, const Block& block);

}  // namespace tessera
