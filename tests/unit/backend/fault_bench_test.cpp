#include "backend/fault_bench.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(FaultBench, WrongKernelsAreRefused) {
  Cache cache;
  FaultBenchOptions options;
  options.count = 12;
  FaultBenchRow row = bench_kernel_faults(cache, options);
  EXPECT_EQ(row.count, 12);
  EXPECT_EQ(row.missed, 0) << (row.failures.empty() ? "" : row.failures.front());
  EXPECT_EQ(row.caught, row.count);
}

}  // namespace
}  // namespace tessera
