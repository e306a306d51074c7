// The order, barriers and memory of steps that are written already.
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/block_plan.h"

namespace tessera {
namespace {

// A loop of eight iterations that reads one tile of 1 KB, makes another and reads it, and a last
// step that writes a third after the loop.
struct Flow {
  Block block;
  std::vector<FlowTile> tiles = {{1024, 128}, {512, 128}, {0, 16}, {2048, 128}};
  std::vector<FlowAccess> accesses = {{0, 0, true, -1, false, Instruction::AsyncCopy},
                                      {1, 0, false},
                                      {1, 1, true},
                                      {2, 1, false},
                                      {2, 2, true, 0},
                                      {3, 2, false, 0},
                                      {3, 3, true}};
  Flow() {
    for (const FlowTile& t : tiles) block.values.push_back({"", DType::I8, {t.bytes}});
    block.loops = {{8, -1}};
    block.steps.resize(4);
    for (size_t s = 0; s < 3; ++s) block.steps[s].loop = 0;
    block.steps[0].kind = StepKind::Load;
    block.steps[0].writes = {{0, {}}};
  }
  BlockPlan plan(int64_t bytes = 65536) const {
    BlockLimits limits;
    limits.shared_bytes = bytes;
    return plan_flow(block, tiles, accesses, limits);
  }
};

std::string flow_text(const Flow& f, const BlockPlan& p) {
  std::string out;
  for (const Action& a : p.actions) {
    switch (a.kind) {
    case ActionKind::Step: out += std::to_string(a.step) + (a.ahead > 0 ? "+" : ""); break;
    case ActionKind::Commit: out += "c"; break;
    case ActionKind::Wait: out += "w" + std::to_string(a.pending); break;
    case ActionKind::WaitBulk: out += "b"; break;
    case ActionKind::Fence: out += "f"; break;
    case ActionKind::Barrier: out += "|"; break;
    case ActionKind::LoopBegin: out += "("; break;
    case ActionKind::LoopEnd: out += ")"; break;
    }
  }
  EXPECT_EQ(f.block.steps.size(), 4u);
  return out;
}

// Tiles run three iterations ahead; two barriers an iteration, for the tile that came and the one
// that is made of it.
TEST(BlockFlow, RunsAheadWithFewBarriers) {
  const Flow f;
  const BlockPlan p = f.plan();
  EXPECT_EQ(p.loops[0].stages, 4);
  EXPECT_EQ(flow_text(f, p), "0c0+c0+c(0+cw3|1|2)3");
  EXPECT_EQ(p.barriers, 16);
  EXPECT_EQ(p.values[1].copies, 1);
}

// Without a barrier that lets others know, nothing of the loop's memory is used again at once.
TEST(BlockFlow, MemoryIsSharedOnlyAcrossBarriers) {
  Flow f;
  const BlockPlan p = f.plan();
  const auto apart = [&](size_t a, size_t b) {
    const ValuePlan &x = p.values[a], &y = p.values[b];
    return x.offset + x.pitch * x.copies <= y.offset || y.offset + y.pitch * y.copies <= x.offset;
  };
  EXPECT_TRUE(apart(0, 1) && apart(1, 3) && apart(0, 3));
  f.accesses.push_back({3, 1, false});  // no other memory: the last step reads what the loop made
  EXPECT_EQ(flow_text(f, f.plan()), "0c0+c0+c(0+cw3|1|2)3");
}

// The same mapping needs no barrier, sums in registers none either.
TEST(BlockFlow, MappingsMeetWithinAThread) {
  Flow f;
  for (FlowAccess& a : f.accesses)
    if (a.tile == 1) a.mapping = 5;
  EXPECT_EQ(flow_text(f, f.plan()), "0c0+c0+c(w2|0+c12)3");
}

// Boxes: no wait for groups, a fence where threads wrote what the asynchronous proxy reads.
TEST(BlockFlow, BoxesAndFences) {
  Flow f;
  f.accesses[0].instruction = Instruction::Bulk;
  f.accesses[0].proxy = f.accesses[3].proxy = true;
  EXPECT_EQ(flow_text(f, f.plan()), "00+0+(0+b1f|2)3");
  EXPECT_GE(f.plan().loops[0].bulk_offset, 0);
}

TEST(BlockFlow, FewerStagesWhereMemoryIsScarce) {
  const Flow f;
  EXPECT_EQ(f.plan(5 * 1024).loops[0].stages, 3);
  try {
    f.plan(1024);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Unsupported);
    EXPECT_NE(e.message().find("1024 is the limit; use smaller tiles"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
