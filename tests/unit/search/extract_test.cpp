#include "search/synth/extract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace tessera::synth {
namespace {

// The least cost over all choices: by trying them.
double brute_force(const WayGraph& g) {
  double best = INFINITY;
  Choice choice(g.classes.size(), 0);
  while (true) {
    best = std::min(best, g.cost(choice));
    size_t c = 0;
    while (c < choice.size() && ++choice[c] == g.classes[c].size()) choice[c++] = 0;
    if (c == choice.size()) return best;
  }
}

// Classes 0 and 1 are inputs; others have a way from earlier classes, and more from any, so that
// there are cycles. The first ways are a program.
WayGraph random_graph(Rng& rng, size_t classes, size_t most_ways) {
  WayGraph g;
  for (uint32_t c = 0; c < classes; ++c) {
    std::vector<WayGraph::Way> ways;
    if (c < 2) {
      ways.push_back({0, {}});
    } else {
      const size_t count = 1 + rng.below(most_ways);
      for (size_t w = 0; w < count; ++w) {
        WayGraph::Way way;
        way.cost = double(rng.below(8)) + (rng.chance(0.3) ? 0.25 : 0);
        const size_t args = 1 + rng.below(3);
        for (size_t a = 0; a < args; ++a) {
          const uint32_t from = uint32_t(rng.below(w == 0 ? c : classes));
          if (from != c) way.args.push_back(from);
        }
        ways.push_back(std::move(way));
      }
    }
    g.classes.push_back(std::move(ways));
  }
  g.outputs = {uint32_t(classes - 1), uint32_t(classes - 2)};
  return g;
}

TEST(Extract, IsTheLeastOfAllChoices) {
  int improved = 0, branched = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const WayGraph g = random_graph(rng, 5 + seed % 6, 4);
    const Choice start(g.classes.size(), 0);
    const Extraction e = extract_least(g, start);
    EXPECT_TRUE(e.optimal) << "seed " << seed;
    EXPECT_DOUBLE_EQ(e.cost, g.cost(e.choice)) << "seed " << seed;
    EXPECT_NEAR(e.cost, brute_force(g), 1e-6) << "seed " << seed;
    improved += e.cost < g.cost(start);
    branched += e.nodes > 1;
  }
  EXPECT_GT(improved, 100);
  EXPECT_GT(branched, 20);
}

TEST(Extract, WhatIsSharedIsPaidOnce) {
  // Two outputs, each 3 alone, or 2.5 for a value that both use.
  WayGraph g;
  g.classes = {{{0, {}}}, {{2.5, {0}}}, {{3, {0}}, {1, {1}}}, {{3, {0}}, {1, {1}}}};
  g.outputs = {2, 3};
  const Extraction e = extract_least(g, {0, 0, 0, 0});
  EXPECT_TRUE(e.optimal);
  EXPECT_DOUBLE_EQ(e.cost, 4.5);
  EXPECT_EQ(e.choice[2], 1u);
  EXPECT_EQ(e.choice[3], 1u);
}

TEST(Extract, CyclesAreNoPrograms) {
  // 1 and 2 cost next to nothing from each other.
  WayGraph g;
  g.classes = {{{0, {}}}, {{5, {0}}, {0.1, {2}}}, {{5, {0}}, {0.1, {1}}}};
  g.outputs = {1, 2};
  const Extraction e = extract_least(g, {0, 0, 0});
  EXPECT_TRUE(e.optimal);
  EXPECT_NEAR(e.cost, 5.1, 1e-12);
}

TEST(Extract, LimitsLeaveTheStart) {
  Rng rng(7);
  const WayGraph g = random_graph(rng, 60, 6);
  const Choice start(g.classes.size(), 0);
  ExtractLimits none;
  none.nodes = 0;
  const Extraction e = extract_least(g, start, none);
  EXPECT_LE(e.cost, g.cost(start));
  EXPECT_DOUBLE_EQ(e.cost, g.cost(e.choice));
  EXPECT_FALSE(e.optimal);
  EXPECT_LE(extract_least(g, start).cost, e.cost);
}

TEST(Extract, StoppedItLeavesTheStart) {
  int better = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    const WayGraph g = random_graph(rng, 5 + seed % 6, 4);
    const Choice start(g.classes.size(), 0);
    if (g.cost(start) == 0) continue;
    ExtractLimits limits;
    limits.stopped = [] { return true; };
    const Extraction e = extract_least(g, start, limits);
    EXPECT_EQ(e.choice, start) << seed;
    EXPECT_FALSE(e.optimal) << seed;
    EXPECT_EQ(e.nodes, 0) << seed;
    better += extract_least(g, start).cost < e.cost;
  }
  EXPECT_GT(better, 0);
}

TEST(Extract, WaysOfInfiniteCostAreNotTaken) {
  WayGraph g;
  g.classes = {{{0, {}}}, {{3, {0}}, {INFINITY, {0}}}};
  g.outputs = {1};
  EXPECT_EQ(extract_least(g, {0, 0}).choice[1], 0u);
}

}  // namespace
}  // namespace tessera::synth
