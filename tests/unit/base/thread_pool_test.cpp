#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/counter_rng.h"
#include "base/error.h"

namespace tessera {
namespace {

TEST(ThreadPool, CoversTheRangeOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t n : {0, 1, 7, 1000}) {
      for (int64_t grain : {1, 3, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_LE(end - begin, grain);
          for (int64_t i = begin; i < end; ++i) ++hits[size_t(i)];
        });
        for (auto& h : hits) EXPECT_EQ(h, 1);
      }
    }
  }
}

TEST(ThreadPool, NestedLoopsAndManyCallersFinish) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool.parallel_for(8, 1, [&](int64_t, int64_t) {
          pool.parallel_for(4, 1, [&](int64_t, int64_t) { ++count; });
        });
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(count, 3 * 50 * 8 * 4);
}

TEST(ThreadPool, RethrowsTheLowestFailure) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    try {
      pool.parallel_for(100, 1, [](int64_t begin, int64_t) {
        if (begin % 10 == 7) throw std::runtime_error(std::to_string(begin));
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "7");
    }
  }
}

TEST(ThreadPool, TheEnvironmentSetsTheDefault) {
  const char* saved = std::getenv("TESSERA_THREADS");
  const std::string before = saved ? saved : "";
  setenv("TESSERA_THREADS", "3", 1);
  EXPECT_EQ(default_threads(), 3);
  EXPECT_EQ(ThreadPool().threads(), 3);
  EXPECT_EQ(ThreadPool(2).threads(), 2);
  for (const char* bad : {"0", "-1", "two", "3x", "99999"}) {
    setenv("TESSERA_THREADS", bad, 1);
    EXPECT_THROW(default_threads(), Error) << bad;
  }
  unsetenv("TESSERA_THREADS");
  EXPECT_GE(default_threads(), 1);
  if (saved) setenv("TESSERA_THREADS", before.c_str(), 1);
}

TEST(CounterRng, IsAPureFunctionAndUniform) {
  const CounterRng a{1}, b{2};
  EXPECT_EQ(a.at(5), CounterRng{1}.at(5));
  EXPECT_NE(a.at(5), b.at(5));
  EXPECT_NE(a.at(5), a.at(6));
  // a bound just above a power of two rejects almost half of the words
  const uint64_t bound = (uint64_t(1) << 63) + 1;
  double mean = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const uint64_t x = UniformBelow(bound).at(a, i);
    EXPECT_LT(x, bound);
    mean += double(x) / double(bound) / 4000;
  }
  EXPECT_NEAR(mean, 0.5, 0.02);
  std::vector<int> counts(6, 0);
  for (uint64_t i = 0; i < 6000; ++i) ++counts[UniformBelow(6).at(a, i)];
  for (int n : counts) EXPECT_NEAR(n, 1000, 150);
}

}  // namespace
}  // namespace tessera
