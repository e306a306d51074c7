#include "backend/cpu/runtime.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>

#include "backend/measure.h"
#include "base/rng.h"

namespace tessera {
namespace {

void add_one(void* context, long begin, long end, int) {
  auto* counts = static_cast<std::vector<int>*>(context);
  for (long i = begin; i < end; ++i) ++(*counts)[static_cast<size_t>(i)];
}

TEST(KernelPool, EveryIndexExactlyOnce) {
  for (int threads : {1, 2, 3, 8}) {
    KernelPool pool(threads);
    for (long n : {0, 1, 2, 7, 1000}) {
      for (long chunk : {0, 1, 5}) {
        std::vector<int> counts(static_cast<size_t>(n), 0);
        pool.parallel_for(n, chunk, add_one, &counts);
        EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), n);
      }
    }
  }
}

TEST(KernelPool, ManyShortJobsWithPauses) {
  KernelPool pool(3);
  std::vector<int> counts(16, 0);
  for (int i = 0; i < 3000; ++i) {
    pool.parallel_for(16, 1, add_one, &counts);
    if (i % 500 == 0) usleep(2000);  // let the helpers fall asleep
  }
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 16 * 3000);
}

// One chunk for each thread, which nobody takes from another unless it does not come at all.
TEST(KernelPool, ChunksOfWorkersAsleepAreDone) {
  for (int threads : {2, 5}) {
    KernelPool pool(threads);
    std::vector<int> counts(64, 0);
    for (int i = 0; i < 600; ++i) {
      pool.parallel_for(64, (64 + threads - 1) / threads, add_one, &counts);
      if (i % 100 == 0) usleep(3000);
    }
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 600), 64) << threads;
  }
}

TEST(KernelPool, HelpersComeBackFromSleep) {
  KernelPool pool(2);
  const auto one_came = [&] {
    std::atomic<bool> came = false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!came && std::chrono::steady_clock::now() < end) {
      pool.parallel_for(
          2, 1,
          [](void* c, long, long, int worker) {
            if (worker != 0) *static_cast<std::atomic<bool>*>(c) = true;
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
            while (std::chrono::steady_clock::now() < until) {
            }
          },
          &came);
    }
    return came.load();
  };
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(one_came());
    usleep(5000);
  }
}

TEST(KernelPool, CallersShareIt) {
  KernelPool pool(2);
  std::vector<std::thread> callers;
  std::vector<std::vector<int>> counts(4, std::vector<int>(64, 0));
  for (auto& c : counts) {
    callers.emplace_back([&pool, &c] {
      for (int i = 0; i < 500; ++i) pool.parallel_for(64, 4, add_one, &c);
    });
  }
  for (std::thread& t : callers) t.join();
  for (const auto& c : counts) EXPECT_EQ(std::accumulate(c.begin(), c.end(), 0), 64 * 500);
}

TEST(KernelPool, WorksAfterFork) {
  KernelPool& pool = KernelPool::shared();
  std::vector<int> counts(64, 0);
  pool.parallel_for(64, 1, add_one, &counts);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<int> mine(64, 0);
    pool.parallel_for(64, 1, add_one, &mine);
    _exit(std::count(mine.begin(), mine.end(), 1) == 64 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(AlignedBuffer, AlignedZeroedMovable) {
  for (size_t n : {size_t{0}, size_t{1}, size_t{100}, size_t{3} << 20}) {
    AlignedBuffer a(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    const auto* bytes = static_cast<const char*>(a.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + n, [](char c) { return c == 0; }));
    AlignedBuffer b(std::move(a));
    EXPECT_EQ(b.data(), bytes);
    EXPECT_EQ(a.data(), nullptr);
  }
}

// With three sigmas of confidence the bound lies below the true median, however heavy the tails,
// and rises towards it with the number of samples.
TEST(Measure, LowBoundOfAMedian) {
  Rng rng(5);
  auto draw = [&](int n) {  // median 2; a fifth of the samples are outliers far below or above
    std::vector<double> v;
    for (int i = 0; i < n; ++i) {
      const double x = 1.9 + 0.2 * rng.unit();
      const uint64_t kind = rng.below(10);
      v.push_back(kind == 0 ? x / 50 : kind == 1 ? x * 50 : x);
    }
    return v;
  };
  int above = 0;
  for (int trial = 0; trial < 2000; ++trial) above += median_bounds(draw(41)).first > 2;
  EXPECT_LE(above, 12);  // 0.13 % expected
  EXPECT_GT(median_bounds(draw(41)).first, 1.5);
  EXPECT_GT(median_bounds(draw(1001)).first, 1.98);
  EXPECT_DOUBLE_EQ(median_bounds({3}).first, 3);
  EXPECT_DOUBLE_EQ(median_bounds({5, 3, 4}).first, 3);
}

TEST(Measure, RatiosAndRoofline) {
  volatile double sink = 0;
  const auto work = [&](int n) {
    return [&sink, n](int) {
      double x = 1;
      for (int i = 0; i < n; ++i) x = x * 1.0000001 + 1e-9;
      sink = x;
    };
  };
  MeasureOptions options;
  options.budget_s = 0.2;
  const std::vector<Timing> t = measure({{"slow", work(40000)}, {"fast", work(10000)}}, options);
  ASSERT_EQ(t.size(), 2u);
  EXPECT_GT(t[1].speedup, 2.5);
  EXPECT_LT(t[1].speedup, 6);
  EXPECT_DOUBLE_EQ(t[0].speedup, 1);
  EXPECT_LE(t[1].min_s, t[1].median_s);
  options.min_rounds = 3;
  options.budget_s = 1e-6;  // less than any round
  EXPECT_EQ(measure({{"x", work(10)}}, options)[0].rounds, 3);
  options.min_rounds = 50;
  options.budget_s = 10;
  options.limit_s = 0;  // ends it before min_rounds, but not before three
  EXPECT_EQ(measure({{"x", work(10)}}, options)[0].rounds, 3);
  const std::vector<Timing> two =
      measure({{"a", work(10)}, {"b", work(10)}, {"c", work(10)}}, options);
  ASSERT_EQ(two.size(), 2u);  // no time for the third
  EXPECT_EQ(two[1].name, "b");
}

}  // namespace
}  // namespace tessera
