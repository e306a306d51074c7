#include "plan/block_order.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "block_testing.h"

namespace tessera {
namespace {

Block steps(int n, int loop_from, int loop_to, int64_t extent = 4) {
  Block b;
  if (loop_from < loop_to) b.loops = {{extent, -1}};
  for (int i = 0; i < n; ++i)
    b.steps.push_back({"s" + std::to_string(i),
                       StepKind::Compute,
                       i >= loop_from && i < loop_to ? 0 : -1,
                       {},
                       {Walk{}},
                       {},
                       {}});
  return b;
}

BlockOrder order(const Block& b, const std::vector<OrderEdge>& edges, bool serial = false) {
  OrderOptions o;
  o.serial = serial;
  return order_block(b, edges, o);
}

TEST(BlockOrder, DepthsOutsideLoops) {
  // 0 → 1 → 3 with a barrier each, 2 → 3 within threads.
  const BlockOrder o = order(steps(4, 0, 0), {{0, 1, 1}, {1, 3, 1}, {2, 3, 0}});
  EXPECT_EQ(o.time, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_EQ(o.end, 2);
  EXPECT_EQ(order(steps(4, 0, 0), {}, true).end, 3);
}

TEST(BlockOrder, WhatAnIterationLeavesBehindCostsABarrierUnlessItHasTwoCopies) {
  // 0 writes a tile, 1 reads it: a barrier between, and one before it is written again.
  EXPECT_EQ(order(steps(2, 0, 2), {{0, 1, 1}, {1, 0, 1, 0, 1}}).barriers[0], 2);
  EXPECT_EQ(order(steps(2, 0, 2), {{0, 1, 1}, {1, 0, 1, 0, 2}}).barriers[0], 1);
  EXPECT_EQ(order(steps(2, 0, 2), {{0, 1, 0}, {1, 0, 0, 0, 1}}).barriers[0], 0);
}

// Least barriers by trying all times.
int least_by_trying(const Block& b, const std::vector<OrderEdge>& edges) {
  const int n = static_cast<int>(b.steps.size());
  for (int k = 0;; ++k) {
    std::vector<int> t(b.steps.size(), 0);
    for (;;) {
      bool good = true;
      for (const OrderEdge& e : edges)
        good = good && t[size_t(e.to)] - t[size_t(e.from)] + (e.loop < 0 ? 0 : e.iterations * k) >=
                           e.barriers;
      if (good) return k;
      int i = 0;
      while (i < n && ++t[size_t(i)] > k) t[size_t(i++)] = 0;
      if (i == n) break;
    }
  }
}

TEST(BlockOrder, ALoopHasTheFewestBarriersThereCanBe) {
  std::mt19937 rng(5);
  int most = 0;
  for (int round = 0; round < 400; ++round) {
    const int n = 2 + int(rng() % 4);
    const Block b = steps(n, 0, n);
    std::vector<OrderEdge> edges;
    for (int e = int(rng() % 8); e >= 0; --e) {
      const int x = int(rng() % unsigned(n)), y = int(rng() % unsigned(n));
      if (x < y && rng() % 3 != 0)
        edges.push_back({x, y, int(rng() % 2)});
      else
        edges.push_back({x, y, int(rng() % 2), 0, 1 + int(rng() % 3)});
    }
    const int least = least_by_trying(b, edges);
    EXPECT_EQ(order(b, edges).barriers[0], least) << "round " << round;
    most = std::max(most, least);
  }
  EXPECT_GE(most, 3);
}

}  // namespace
}  // namespace tessera
