// The measuring loop of devices, with a clock that knows what every run takes.
#include "backend/measure_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

// A device whose cache remembers the last copies that were used, and whose speed may drift.
struct Device : DeviceClock {
  size_t remembers = 0;  // copies that the cache holds
  std::function<double(int run)> mood = [](int) { return 1.0; };
  std::vector<std::pair<std::string, int>> ran;      // name, copy
  std::vector<std::pair<std::string, int>> samples;  // name, repeats
  std::deque<int> cache;
  double now = 0;

  void run(const std::string& name, int copy, double cold, double warm) {
    bool hit = false;
    for (int c : cache) hit = hit || c == copy;
    now += (hit ? warm : cold) * mood(int(ran.size()));
    ran.push_back({name, copy});
    cache.push_back(copy);
    if (cache.size() > remembers) cache.pop_front();
  }
  std::function<double()> timed(const std::function<void(int)>& work, int repeats) override {
    return [this, work, repeats] {
      const double start = now;
      for (int r = 0; r < repeats; ++r) work(r);
      samples.push_back({ran.back().first, repeats});
      return now - start;
    };
  }
  Contestant contestant(const std::string& name, double cold, double warm) {
    return {name, [this, name, cold, warm](int copy) { run(name, copy, cold, warm); }};
  }
};

TEST(MeasureDevice, ColdRunsMissAndWarmRunsHit) {
  for (const bool cold : {true, false}) {
    Device d;
    d.remembers = 3;
    DeviceMeasureOptions o;
    o.cold = cold;
    o.copies = 5;
    const auto t = measure_on_device(
        {d.contestant("old", 40e-6, 10e-6), d.contestant("new", 20e-6, 4e-6)}, d, o);
    ASSERT_EQ(t.size(), 2u);
    EXPECT_NEAR(t[0].median_s, cold ? 40e-6 : 10e-6, 1e-12);
    EXPECT_NEAR(t[1].median_s, cold ? 20e-6 : 4e-6, 1e-12);
    EXPECT_NEAR(t[1].speedup, cold ? 2 : 2.5, 1e-9);
    EXPECT_NEAR(t[0].speedup, 1, 1e-12);
    for (const auto& [name, repeats] : d.samples)
      EXPECT_TRUE(repeats == o.warm_up || repeats % (cold ? o.copies : 1) == 0) << repeats;
  }
}

TEST(MeasureDevice, ContestantsTakeTurnsAndStartInTurn) {
  Device d;
  DeviceMeasureOptions o;
  o.min_rounds = o.max_rounds = 4;
  measure_on_device(
      {d.contestant("a", 1e-3, 1e-3), d.contestant("b", 1e-3, 1e-3), d.contestant("c", 1e-3, 1e-3)},
      d, o);
  std::string order;
  for (size_t i = 6; i < d.samples.size(); ++i) order += d.samples[i].first;  // after the warm-up
  EXPECT_EQ(order, "abcbcacababc");
}

TEST(MeasureDevice, ShortRunsAreRepeatedBetweenEvents) {
  Device d;
  DeviceMeasureOptions o;
  o.min_rounds = o.max_rounds = 1;
  measure_on_device({d.contestant("short", 2e-6, 2e-6), d.contestant("long", 1e-3, 1e-3),
                     d.contestant("nothing", 0, 0)},
                    d, o);
  for (size_t i = 6; i < d.samples.size(); ++i) {
    const auto& [name, repeats] = d.samples[i];
    if (name == "short") {
      EXPECT_NEAR(repeats, 101, 1);
    } else if (name == "long") {
      EXPECT_EQ(repeats, 1);
    } else {
      EXPECT_EQ(repeats, 1000);
    }
  }
}

// A device that gets slower and slower is unfair to nobody.
TEST(MeasureDevice, DriftAndNoiseCancelInTheRatio) {
  Rng rng(7);
  Device d;
  d.mood = [&](int run) { return (1 + run / 500.0) * (0.9 + 0.2 * rng.unit()); };
  DeviceMeasureOptions o;
  o.min_rounds = o.max_rounds = 101;
  o.min_round_s = 0;
  const auto t = measure_on_device(
      {d.contestant("old", 30e-6, 30e-6), d.contestant("new", 20e-6, 20e-6)}, d, o);
  EXPECT_NEAR(t[1].speedup, 1.5, 0.06);
  EXPECT_GT(t[1].speedup_low, 1.3);
  EXPECT_LE(t[1].speedup_low, t[1].speedup);
  EXPECT_EQ(t[1].rounds, 101);
}

TEST(MeasureDevice, StopsWhenAskedAndPassesErrorsOn) {
  Device d;
  DeviceMeasureOptions o;
  o.budget_s = 100;
  o.max_rounds = 1 << 20;
  int asked = 0;
  o.cancelled = [&] { return ++asked > 20; };
  const auto t = measure_on_device({d.contestant("a", 1e-3, 1e-3)}, d, o);
  ASSERT_EQ(t.size(), 1u);
  EXPECT_EQ(t[0].rounds, 20);
  asked = 1000;
  const auto least = measure_on_device({d.contestant("a", 1e-3, 1e-3)}, d, o);
  ASSERT_EQ(least.size(), 1u);
  EXPECT_EQ(least[0].rounds, 1);
  Contestant broken{"broken", [](int) { throw Error(ErrorKind::BadInput, "no"); }};
  EXPECT_THROW(measure_on_device({broken}, d), Error);
}

TEST(MeasureDevice, AsManyCopiesAsTheCacheForgets) {
  EXPECT_EQ(copies_for_cold(1 << 20, 50 << 20, int64_t{80} << 30), 64);  // the most
  EXPECT_EQ(copies_for_cold(10 << 20, 50 << 20, int64_t{80} << 30), 16);
  EXPECT_EQ(copies_for_cold(int64_t{1} << 30, 50 << 20, int64_t{80} << 30), 2);
  EXPECT_EQ(copies_for_cold(int64_t{1} << 30, 50 << 20, int64_t{3} << 29), 1);  // room for one
  EXPECT_EQ(copies_for_cold(0, 50 << 20, 1 << 20), 64);
}

}  // namespace
}  // namespace tessera
