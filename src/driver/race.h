// Programs of the same inputs timed against each other, on the same data in the same place of the
// memory hierarchy.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/module.h"
#include "backend/measure.h"
#include "driver/code.h"
#include "ir/graph.h"

namespace tessera {

// Ordinary random numbers for a program's inputs.
class RaceInputs {
 public:
  RaceInputs(const Graph& graph, uint64_t seed);
  std::span<const void* const> pointers() const { return pointers_; }

 private:
  std::vector<AlignedBuffer> buffers_;
  std::vector<const void*> pointers_;
};

// Times the modules, each with its own inputs; the first is the baseline. Takes about `seconds`.
// Where a few runs of each take more than `limit_seconds`, only the first modules, two at least,
// are timed and in the result. Within that limit a race that is too noisy is run again, for longer,
// and who seems to be more than ten times as fast as the baseline is timed again from scratch: the
// smaller gain counts.
std::vector<Timing> race(const std::vector<std::shared_ptr<Module>>& modules,
                         const std::vector<const RaceInputs*>& inputs, double seconds,
                         double limit_seconds);

// The same of one program on the GPU where the codes are loaded: CUDA graphs timed by its own
// events, with arguments that its cache does not hold, which decides, and then with such as it does
// (warm_s). `cancel` ends either after a round.
std::vector<Timing> race_on_device(const std::vector<CompiledCode>& codes, const RaceInputs& inputs,
                                   double seconds, const std::atomic<bool>* cancel);

// Is it faster than the baseline, beyond noise?
inline bool worthwhile(const Timing& t) { return t.speedup > 1.005 && t.speedup_low > 1; }

// Is there nobody faster, but somebody who may be, by so much that it matters?
bool too_noisy(const std::vector<Timing>& timings);

}  // namespace tessera
