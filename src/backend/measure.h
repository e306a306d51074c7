// Measures several ways of computing the same thing side by side: interleaved repetitions in one
// process, medians, and ratios taken pair by pair, so that a change of the machine's mood hits all.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct Contestant {
  std::string name;
  // One execution. On the host `round` counts the repetitions; on a device it is the copy of the
  // arguments that it is to take, and the execution is put on the clock's stream.
  std::function<void(int round)> run;
};

struct MeasureOptions {
  int min_rounds = 15;
  int max_rounds = 2000;
  double budget_s = 0.5;  // for all contestants together, once min_rounds are done
  // Slow contestants get fewer rounds than min_rounds, three at least; warm-up included.
  // Where it alone takes half of this, later contestants do not take part.
  double limit_s = std::numeric_limits<double>::infinity();
  // Short runs are repeated inside one round until it takes this long.
  double min_round_s = 20e-6;
};

struct Timing {
  std::string name;
  double median_s = 0;
  double min_s = 0;
  int rounds = 0;
  // Median over rounds of (first contestant's time / this one's): > 1 is faster than the first.
  double speedup = 1;
  double speedup_low = 1, speedup_high = 1;  // median_bounds of the ratios
  double spread = 0;  // what the middle half of the samples differ by, in medians
  // Median with the arguments in the device's cache, where `median_s` is without; 0: not measured.
  double warm_s = 0;
};

// Times all contestants alternately, starting each round with another one. In order of the
// contestants; shorter than they are where limit_s left no time for the last ones (see there).
std::vector<Timing> measure(const std::vector<Contestant>& contestants,
                            const MeasureOptions& options = {});

// Times of one contestant, one per round; rounds of all contestants belong together.
struct Rounds {
  std::string name;
  std::vector<double> seconds;
};
// All have equally many rounds, one at least.
std::vector<Timing> summarize(const std::vector<Rounds>& contestants);

// Between what the true median of the samples' distribution lies with three sigmas of confidence,
// however heavy its tails: the samples of ranks n/2 ∓ 1.5 sqrt(n) (a binomial bound on order
// statistics).
std::pair<double, double> median_bounds(std::vector<double> samples);

// Size of the largest data cache in bytes, as the system reports it.
int64_t last_level_cache_bytes();

}  // namespace tessera
