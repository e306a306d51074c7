// Measures several ways of computing the same thing on a device that runs what a stream is given:
// times come from the device's own events, rounds are interleaved, and cold means that no run finds
// in the device's cache what an earlier one left there.
#pragma once
#include <functional>
#include <vector>

#include "backend/measure.h"

namespace tessera {

// Times work that is put on a stream of its own.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // Every call of what is returned runs work(0), … work(repeats - 1) on the device and returns the
  // seconds that they took together. A clock may ask for the work once and run it again as it was.
  // Throws what `work` throws, and Error(Device) where it failed on the device.
  virtual std::function<double()> timed(const std::function<void(int repeat)>& work,
                                        int repeats) = 0;
};

struct DeviceMeasureOptions {
  bool cold = false;
  int copies = 1;       // of the arguments there are; see copies_for_cold
  int warm_up = 3;      // runs of each before anything is timed
  int min_rounds = 11;  // times each contestant is timed
  int max_rounds = 101;
  double budget_s = 0.5;  // for all contestants, once min_rounds are done
  // Events are told apart by about half a microsecond: short runs are repeated between them until
  // they take this long.
  double min_round_s = 200e-6;
  std::function<bool()> cancelled;  // may be empty: asked between rounds
};

// Copies of arguments of `bytes` in all, so that a run on the next one finds nothing in a cache of
// `cache_bytes`: all other copies together are three times its size. At most what `memory_bytes`
// hold.
int copies_for_cold(int64_t bytes, int64_t cache_bytes, int64_t memory_bytes);

// In order of the contestants, speed-ups over the first. One round takes place even where it is
// cancelled. Warm: all runs on copy 0. Cold: on one copy after another, as often as any other
// between two looks at the clock.
std::vector<Timing> measure_on_device(const std::vector<Contestant>& contestants,
                                      DeviceClock& clock, const DeviceMeasureOptions& options = {});

}  // namespace tessera
