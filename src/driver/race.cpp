#include "driver/race.h"

#include <algorithm>
#include <optional>
#include <string>

#include "backend/arrays.h"
#include "base/rng.h"
#include "eval/ndarray.h"

namespace tessera {
namespace {

// A module with results of its own.
class Runner {
 public:
  Runner(std::shared_ptr<Module> module, const RaceInputs& inputs)
      : module_(std::move(module)), inputs_(inputs) {
    // Once per set of weights, so not part of what is timed.
    if (!module_->weights().empty()) prepared_ = module_->prepare(inputs.pointers());
    for (const Type& t : module_->output_types()) {
      buffers_.emplace_back(size_t(t.bytes()));
      outputs_.push_back(buffers_.back().data());
    }
  }
  void run() const { module_->run(inputs_.pointers(), outputs_, prepared_.get()); }

 private:
  std::shared_ptr<Module> module_;
  const RaceInputs& inputs_;
  std::shared_ptr<const PreparedWeights> prepared_;
  std::vector<AlignedBuffer> buffers_;
  std::vector<void*> outputs_;
};

}  // namespace

RaceInputs::RaceInputs(const Graph& graph, uint64_t seed) {
  // Large inputs repeat some numbers: drawing them all takes longer than the race. A prime, so that
  // rows are not alike.
  constexpr int64_t kDrawn = 65'521;
  Rng rng(seed);
  for (TensorId id : graph.inputs()) {
    const Type& t = graph.type(id);
    NDArray a = NDArray::zeros(t.dtype, {std::min(kDrawn, num_elements(t.shape))});
    // Sums of uniforms: close to a normal distribution, and cheap.
    for (double& x : a.reals)
      x = round_to(t.dtype, 1.7 * (rng.unit() + rng.unit() + rng.unit() + rng.unit() - 2));
    for (int64_t& x : a.ints) x = int64_t(rng.below(2));
    const auto bytes = to_memory(a);
    const size_t size = size_t(t.bytes());
    buffers_.emplace_back(size);
    auto* to = static_cast<std::byte*>(buffers_.back().data());
    for (size_t at = 0; at < size; at += bytes.size())
      std::copy_n(bytes.begin(), std::min(bytes.size(), size - at), to + at);
    pointers_.push_back(buffers_.back().data());
  }
}

std::vector<Timing> race(const std::vector<std::shared_ptr<Module>>& modules,
                         const RaceInputs& inputs, double seconds, double limit_seconds) {
  // Made when first run: packing weights takes a while, and the last ones may not take part.
  std::vector<std::optional<Runner>> runners(modules.size());
  std::vector<Contestant> contestants;
  for (size_t i = 0; i < runners.size(); i++)
    contestants.push_back({i == 0 ? "original" : "candidate " + std::to_string(i),
                           [&, i](int) {
                             if (!runners[i]) runners[i].emplace(modules[i], inputs);
                             runners[i]->run();
                           },
                           0});
  MeasureOptions m;
  m.budget_s = seconds;
  m.limit_s = limit_seconds;
  return measure(contestants, m);
}

}  // namespace tessera
