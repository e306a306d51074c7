#include "backend/measure_device.h"

#include <algorithm>

#include "base/check.h"
#include "base/wall_clock.h"

namespace tessera {
namespace {

constexpr int kMostRepeats = 1000, kMostCopies = 64;

}  // namespace

int copies_for_cold(int64_t bytes, int64_t cache_bytes, int64_t memory_bytes) {
  const int64_t one = std::max<int64_t>(bytes, 1);
  const int64_t wanted = 1 + (3 * cache_bytes + one - 1) / one;
  const int64_t most = std::clamp<int64_t>(memory_bytes / one, 1, kMostCopies);
  return int(std::clamp<int64_t>(wanted, 1, most));
}

std::vector<Timing> measure_on_device(const std::vector<Contestant>& contestants,
                                      DeviceClock& device, const DeviceMeasureOptions& options) {
  const size_t n = contestants.size();
  const bool cold = options.cold;
  CHECK(options.min_rounds >= 1 && options.copies >= 1);
  std::vector<Rounds> rounds;
  std::vector<std::function<double()>> samples;
  std::vector<int> repeats;
  auto timed = [&](size_t i, int times) {
    return device.timed(
        [&, i](int repeat) { contestants[i].run(cold ? repeat % options.copies : 0); }, times);
  };
  for (size_t i = 0; i < n; ++i) {
    rounds.push_back({contestants[i].name, {}});
    // The first runs load code and raise the clocks of a device that was idle.
    const int warm_up = std::max(1, options.warm_up);
    const std::function<double()> first = timed(i, warm_up);
    first();
    const double once = std::max(first() / warm_up, 1e-7);
    const double wanted = std::clamp(options.min_round_s / once + 1, 1.0, double(kMostRepeats));
    // Cold: whole turns through the copies, so that the next sample begins where none was last.
    const int turn = cold ? options.copies : 1;
    repeats.push_back((int(wanted) + turn - 1) / turn * turn);
    samples.push_back(timed(i, repeats.back()));
  }
  const WallClock clock;
  for (int round = 0; round < std::max(options.min_rounds, options.max_rounds); ++round) {
    if (round >= options.min_rounds && clock.seconds() > options.budget_s) break;
    if (options.cancelled && options.cancelled() && round > 0) break;
    for (size_t k = 0; k < n; ++k) {
      const size_t i = (k + size_t(round)) % n;
      rounds[i].seconds.push_back(samples[i]() / repeats[i]);
    }
  }
  return summarize(rounds);
}

}  // namespace tessera
