#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/interruption.h"
#include "base/rng.h"

namespace tessera {
namespace {

struct Problem {
  std::vector<ScheduleTask> tasks;
  std::vector<ScheduleBuffer> buffers;
};

Problem random_problem(Rng& rng, int n) {
  Problem p;
  for (int i = 0; i < n; ++i) {
    ScheduleTask t;
    p.buffers.push_back({i, {}, static_cast<int64_t>(rng.below(100))});
    for (int j = 0; j < i; ++j) {
      if (!rng.chance(0.25)) continue;
      t.after.push_back(j);
      p.buffers[static_cast<size_t>(j)].readers.push_back(i);
    }
    p.tasks.push_back(std::move(t));
  }
  return p;
}

void expect_valid(const Problem& p, const Schedule& s) {
  std::vector<int> phase(p.tasks.size(), -1);
  for (size_t at = 0; at < s.phases.size(); ++at) {
    EXPECT_FALSE(s.phases[at].empty());
    for (int t : s.phases[at]) {
      EXPECT_EQ(phase[static_cast<size_t>(t)], -1);
      phase[static_cast<size_t>(t)] = static_cast<int>(at);
    }
  }
  for (size_t i = 0; i < p.tasks.size(); ++i)
    for (int a : p.tasks[i].after) EXPECT_LT(phase[static_cast<size_t>(a)], phase[i]);
}

// Least live bytes over every assignment of `phases` phases.
int64_t least_live(const Problem& p, int phases) {
  std::vector<int> phase(p.tasks.size(), 0);
  int64_t best = INT64_MAX;
  const auto live = [&] {
    std::vector<int64_t> bytes(static_cast<size_t>(phases), 0);
    for (const ScheduleBuffer& b : p.buffers) {
      int to = phase[static_cast<size_t>(b.writer)];
      for (int r : b.readers) to = std::max(to, phase[static_cast<size_t>(r)]);
      for (int at = phase[static_cast<size_t>(b.writer)]; at <= to; ++at)
        bytes[static_cast<size_t>(at)] += b.bytes;
    }
    return *std::max_element(bytes.begin(), bytes.end());
  };
  const auto branch = [&](auto&& self, size_t i) -> void {
    if (i == p.tasks.size()) {
      best = std::min(best, live());
      return;
    }
    int first = 0;
    for (int a : p.tasks[i].after) first = std::max(first, phase[static_cast<size_t>(a)] + 1);
    for (phase[i] = first; phase[i] < phases; ++phase[i]) self(self, i + 1);
  };
  branch(branch, 0);
  return best;
}

TEST(Schedule, FewestBarriersAndThenLeastMemory) {
  Rng rng(4);
  for (int trial = 0; trial < 150; ++trial) {
    const Problem p = random_problem(rng, 2 + static_cast<int>(rng.below(6)));
    const Schedule s = schedule_by_depth(p.tasks, p.buffers, INT64_MAX);
    expect_valid(p, s);
    EXPECT_EQ(s.barriers(), s.least_barriers);
    EXPECT_EQ(s.live_bytes, least_live(p, static_cast<int>(s.phases.size()))) << trial;
  }
}

TEST(Schedule, LargeProblemsStayValid) {
  Rng rng(9);
  const Problem p = random_problem(rng, 120);
  const Schedule s = schedule_by_depth(p.tasks, p.buffers, INT64_MAX);
  expect_valid(p, s);
  EXPECT_EQ(s.barriers(), s.least_barriers);
}

TEST(Schedule, SideBySideOnlyWhileTheCacheHolds) {
  // Three wide values, each reduced at once when run one by one.
  Problem p;
  for (int i = 0; i < 3; ++i) {
    p.tasks.push_back({});
    p.buffers.push_back({i, {i + 3}, 1000});
  }
  for (int i = 0; i < 3; ++i) {
    p.tasks.push_back({{i}});
    p.buffers.push_back({i + 3, {}, 1});
  }
  const Schedule together = schedule_by_depth(p.tasks, p.buffers, 1 << 20);
  EXPECT_EQ(together.barriers(), 1);
  EXPECT_EQ(together.live_bytes, 3003);
  const Schedule apart = schedule_by_depth(p.tasks, p.buffers, 2000);
  expect_valid(p, apart);
  EXPECT_TRUE(apart.serial);
  EXPECT_LE(apart.live_bytes, 1003);
  EXPECT_EQ(apart.least_barriers, 1);
  const Schedule listed = schedule_serially(p.tasks, p.buffers);
  EXPECT_EQ(listed.barriers(), 5);
}

// What an unrolled loop is: a chain, each link of which also reads something of its own.
Problem unrolled_loop(int steps) {
  Problem p;
  for (int i = 0; i < steps; ++i) {
    p.tasks.push_back({});
    p.buffers.push_back({2 * i, {2 * i + 1}, 64});
    p.tasks.push_back({i == 0 ? std::vector<int>{0} : std::vector<int>{2 * i - 1, 2 * i}});
    p.buffers.push_back({2 * i + 1, {}, 64});
    if (i > 0) p.buffers[size_t(2 * i - 1)].readers.push_back(2 * i + 1);
  }
  return p;
}

TEST(Schedule, WorkForLongChainsDoesNotExplode) {
  const auto work = [](int steps) {
    const Problem p = unrolled_loop(steps);
    const uint64_t before = interruption_points();
    expect_valid(p, schedule_by_depth(p.tasks, p.buffers, INT64_MAX));
    return double(interruption_points() - before) * steps;  // each looks at all buffers
  };
  const double small = work(300), large = work(600);
  EXPECT_LE(large, 2.2 * small);
}

}  // namespace
}  // namespace tessera
