#include "backend/calibrate.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Calibrate, DescribesThisMachinePlausibly) {
  Cache cache;
  Target t = calibrate(cache, KernelPool::shared());
  EXPECT_EQ(t.cores, KernelPool::shared().threads());
  EXPECT_EQ(t.vector_bytes, vector_bytes(best_isa()));
  ASSERT_GE(t.levels.size(), 2u);
  for (const MemoryLevel& level : t.levels) {
    EXPECT_GT(level.bandwidth, 1e8) << level.name;  // slower than any machine of this century
    EXPECT_LT(level.bandwidth, 1e14) << level.name;
    EXPECT_GT(level.capacity, 0) << level.name;
  }
  EXPECT_TRUE(t.levels.back().per_core);
  EXPECT_GT(t.matmul_rate(DType::F32), 1e8);
  EXPECT_GT(t.pointwise_rate(DType::F32), 1e7);
  EXPECT_GT(t.launch_seconds, 0);
  EXPECT_LT(t.launch_seconds, 1);
  // What is written can be read back.
  EXPECT_EQ(parse_target(t.str()).str(), t.str());
}

}  // namespace
}  // namespace tessera
