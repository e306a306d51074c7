#include "plan/block_plan.h"

#include <gtest/gtest.h>

#include "block_testing.h"

namespace tessera {
namespace {

using namespace testing;

TEST(BlockPlan, ProductRunsAheadWithOneBarrierAnIterationAndNoConflicts) {
  const Block b = product_block();
  const BlockPlan p = plan_block(b);
  EXPECT_EQ(p.loops[0].barriers, 1);
  EXPECT_GT(p.loops[0].ahead, 0);
  EXPECT_EQ(p.conflicts, 0);
}

}  // namespace
}  // namespace tessera
