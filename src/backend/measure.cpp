#include "backend/measure.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <tuple>

#include "base/check.h"
#include "base/wall_clock.h"

namespace tessera {
namespace {

// `q` in [0, 1]; the values are copied because the order of rounds is needed elsewhere.
double quantile(std::vector<double> values, double q) {
  const size_t i = size_t(q * double(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + long(i), values.end());
  return values[i];
}

}  // namespace

int64_t last_level_cache_bytes() {
  int64_t bytes = 0;
  // What a core shares, where Linux tells: sysconf adds up all last-level caches of some
  // processors.
  for (int i = 0; i < 8; ++i) {
    std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/size");
    int64_t kilobytes = 0;
    if (in >> kilobytes && in.get() == 'K') bytes = std::max(bytes, kilobytes << 10);
  }
  if (bytes > 0) return bytes;
  for (int name : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE})
    bytes = std::max<int64_t>(bytes, sysconf(name));
  return bytes > 0 ? bytes : int64_t{32} << 20;
}

std::pair<double, double> median_bounds(std::vector<double> samples) {
  CHECK(!samples.empty());
  const double n = double(samples.size());
  const auto rank = size_t(std::max(0.0, n / 2 - 1.5 * std::sqrt(n)));
  std::ranges::sort(samples);
  return {samples[rank], samples[samples.size() - 1 - rank]};
}

std::vector<Timing> measure(const std::vector<Contestant>& contestants,
                            const MeasureOptions& options) {
  size_t n = contestants.size();
  std::vector<std::vector<double>> times(n);
  std::vector<int> repeats(n, 1);
  const WallClock whole;
  // Warm-up: page faults, code, and the number of repetitions per round.
  for (size_t i = 0; i < n; ++i) {
    contestants[i].run(0);
    const WallClock second;
    contestants[i].run(0);
    const double once = std::max(second.seconds(), 1e-8);
    if (once < options.min_round_s)
      repeats[i] = int(std::min(options.min_round_s / once + 1, 1000.0));
    // Three rounds of those so far take longer than the warm-up did: no time for the others.
    if (i >= 1 && 2 * whole.seconds() > options.limit_s) n = i + 1;
  }
  const WallClock measured;
  int round = 0;
  for (; round < options.max_rounds; ++round) {
    if (round >= options.min_rounds && measured.seconds() > options.budget_s) break;
    if (round >= 3 && whole.seconds() > options.limit_s) break;
    for (size_t k = 0; k < n; ++k) {
      const size_t i = (k + size_t(round)) % n;
      const WallClock sample;
      for (int r = 0; r < repeats[i]; ++r) contestants[i].run(round);
      times[i].push_back(sample.seconds() / repeats[i]);
    }
  }
  std::vector<Rounds> rounds;
  for (size_t i = 0; i < n; ++i) rounds.push_back({contestants[i].name, std::move(times[i])});
  return summarize(rounds);
}

std::vector<Timing> summarize(const std::vector<Rounds>& all) {
  std::vector<Timing> result;
  for (const Rounds& c : all) {
    Timing t;
    t.name = c.name;
    t.rounds = int(c.seconds.size());
    t.median_s = quantile(c.seconds, 0.5);
    t.min_s = quantile(c.seconds, 0);
    std::vector<double> ratios;
    for (size_t r = 0; r < c.seconds.size(); ++r)
      ratios.push_back(all[0].seconds[r] / c.seconds[r]);
    t.speedup = quantile(ratios, 0.5);
    std::tie(t.speedup_low, t.speedup_high) = median_bounds(ratios);
    t.spread = (quantile(c.seconds, 0.75) - quantile(c.seconds, 0.25)) / t.median_s;
    result.push_back(std::move(t));
  }
  return result;
}

}  // namespace tessera
