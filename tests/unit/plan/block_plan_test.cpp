#include "plan/block_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "block_check.h"
#include "block_random.h"

namespace tessera {
namespace {

BlockLimits hopper() {
  BlockLimits l;
  l.shared_bytes = 227 * 1024;
  l.shared_bytes_sm = 228 * 1024;
  return l;
}

int count_actions(const BlockPlan& p, ActionKind kind) {
  int n = 0;
  for (const Action& a : p.actions) n += a.kind == kind;
  return n;
}

TEST(BlockPlan, ProductRunsAheadWithOneBarrierAnIterationAndNoConflicts) {
  const Block b = product_block();
  const BlockPlan p = plan_block(b);
  EXPECT_EQ(p.loops[0].barriers, 1);
  EXPECT_GT(p.loops[0].ahead, 0);
  EXPECT_EQ(p.conflicts, 0);
  EXPECT_EQ(p.steps[3].reads[0].instruction, Instruction::MatrixRows);
  EXPECT_EQ(p.steps[3].reads[1].instruction, Instruction::MatrixRowsTransposed);
  EXPECT_EQ(p.steps[1].writes[0].bytes, 16);
  EXPECT_EQ(block_fault(b, {}, p), "");
}

TEST(BlockPlan, LoadsThatRunAheadTakeMemory) {
  const Block b = product_block();
  BlockLimits one;
  one.most_stages = 1;
  EXPECT_EQ(plan_block(b, one).loops[0].ahead, 0);
  EXPECT_LT(plan_block(b, one).shared_bytes, plan_block(b).shared_bytes);
}

// Of attention's tiles some lie where others have been.
TEST(BlockPlan, TilesShareMemory) {
  const BlockPlan p = plan_block(attention_block());
  int64_t apart = 0;
  for (const ValuePlan& v : p.values) apart += v.pitch * v.copies;
  EXPECT_LT(p.shared_bytes, apart);
}

// An operand that is computed where the sums of a product are, row by row or transposed.
TEST(BlockPlan, OperandsFromRegistersAreStoredAsMatrices) {
  for (const bool swapped : {false, true}) {
    Block b;
    b.values = {{"p", DType::F16, {64, 64}}};
    BlockStep made, used;
    made.space = {64, 64};
    made.walk.kind = WalkKind::Fragments;
    made.walk.m = swapped ? 1 : 0;
    made.walk.n = swapped ? 0 : 1;
    made.walk.warps_m = 4;
    made.writes = {{0, {0, 1}}};
    used = made;
    used.space = {64, 64, 64};
    used.walk.m = 0;
    used.walk.n = 1;
    used.walk.k = 2;
    used.walk.whole = true;
    used.writes.clear();
    used.reads = {{0, {0, 2}}};
    b.steps = {made, used};
    BlockLimits with = hopper();
    with.matrix_stores = true;
    const BlockPlan stored = plan_block(b, with), plain = plan_block(b, hopper());
    EXPECT_EQ(stored.steps[0].writes[0].instruction, Instruction::MatrixStore) << text(stored, b);
    EXPECT_EQ(stored.steps[0].writes[0].instructions, 16);
    EXPECT_EQ(stored.conflicts, 0);
    EXPECT_EQ(block_fault(b, with, stored), "");
    EXPECT_NE(block_fault(b, hopper(), stored), "");
    EXPECT_EQ(plain.steps[0].writes[0].instruction, Instruction::Vector);
    EXPECT_LT(stored.wavefronts, plain.wavefronts);
    BlockPlan wrong = stored;
    wrong.steps[1].reads[0].instruction = Instruction::MatrixStore;
    EXPECT_NE(block_fault(b, with, wrong), "");
  }
}

TEST(BlockPlan, MatricesOfTheAsynchronousProxyAreFencedAndAligned) {
  const Block b = wide_product_block();
  const BlockPlan p = plan_block(b, hopper());
  for (const int v : {0, 1}) EXPECT_EQ(p.values[size_t(v)].offset % 128, 0);
  EXPECT_EQ(p.loops[0].barriers, 1);
  EXPECT_EQ(count_actions(p, ActionKind::WaitBulk), 1);
  EXPECT_EQ(count_actions(p, ActionKind::Fence), 1);
  EXPECT_GE(p.loops[0].bulk_offset, 0);
  EXPECT_EQ(block_fault(b, hopper(), p), "");
}

TEST(BlockPlan, FewStagesWhereMemoryIsScarceAndAnErrorWhereItDoesNotDo) {
  const Block b = product_block();
  BlockLimits tight;
  tight.shared_bytes = 27 * 1024;
  const BlockPlan p = plan_block(b, tight);
  EXPECT_EQ(p.loops[0].stages, 2);
  EXPECT_LE(p.shared_bytes, tight.shared_bytes);
  tight.shared_bytes = 8 * 1024;
  try {
    plan_block(b, tight);
    FAIL() << "it cannot fit";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
    EXPECT_NE(e.message().find("smaller tiles"), std::string::npos) << e.message();
  }
}

TEST(BlockPlan, BadBlocksAreRefused) {
  const auto refused = [](void (*spoil)(Block&)) {
    Block b = product_block();
    spoil(b);
    try {
      plan_block(b);
      return std::string();
    } catch (const Error& e) {
      return e.message();
    }
  };
  EXPECT_NE(refused([](Block& b) { b.threads = 100; }).find("100 threads"), std::string::npos);
  EXPECT_NE(refused([](Block& b) {
              b.steps[3].reads[0].axes = {0, 3};
            }).find("lacks"),
            std::string::npos);
  EXPECT_NE(refused([](Block& b) { b.steps[3].space[1] = 128; }).find("leaves"), std::string::npos);
  EXPECT_NE(refused([](Block& b) { b.steps[4].loop = 0, b.steps[3].loop = -1; }).find("apart"),
            std::string::npos);
  EXPECT_NE(refused([](Block& b) { b.steps[1].walk.width = 3; }).find("cannot be walked"),
            std::string::npos);
  EXPECT_NE(refused([](Block& b) {
              b.steps.pop_back(), b.steps[3].reads.erase(b.steps[3].reads.begin());
            }).find("no step reads"),
            std::string::npos);
  // Threads that overwrite what others read in the same step.
  EXPECT_NE(refused([](Block& b) {
              b.steps.push_back({"turn",
                                 StepKind::Compute,
                                 -1,
                                 {16, 16},
                                 {linear_walk(1, 2)},
                                 {{3, {1, 0}}},
                                 {{3, {0, 1}}}});
            }).find("other threads read"),
            std::string::npos);
}

TEST(BlockPlan, RandomBlocksReplayWithoutFault) {
  int64_t tiles = 0, ahead = 0, doubled = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Block b = RandomBlock(seed).make(5);
    const BlockPlan p = plan_block(b);
    ASSERT_EQ(block_fault(b, {}, p), "") << "seed " << seed << "\n" << text(p, b);
    for (size_t v = 0; v < p.values.size(); ++v) {
      tiles += p.values[v].place == BlockPlace::Shared;
      doubled += p.values[v].copies == 2;
    }
    for (const LoopPlan& l : p.loops) ahead += l.ahead > 0;
  }
  // None of the cases went untried.
  EXPECT_GT(tiles, 500);
  EXPECT_GT(ahead, 50);
  EXPECT_GT(doubled, 5);
}

}  // namespace
}  // namespace tessera
