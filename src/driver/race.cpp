#include "driver/race.h"

#include <algorithm>
#include <optional>
#include <string>

#include "backend/arrays.h"
#include "backend/cuda/graph_clock.h"
#include "backend/measure_device.h"
#include "base/rng.h"
#include "base/wall_clock.h"
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

std::vector<Timing> decide(const std::vector<Contestant>& contestants, const MeasureOptions& m) {
  constexpr int kAttempts = 3;
  const WallClock clock;
  std::vector<Timing> timings = measure(contestants, m);
  for (int n = 2; n <= kAttempts && too_noisy(timings); n++) {
    MeasureOptions longer = m;
    longer.budget_s *= n;
    longer.limit_s -= clock.seconds();
    if (longer.limit_s < longer.budget_s) break;
    std::vector<Timing> again = measure(contestants, longer);
    if (again.size() == timings.size()) timings = std::move(again);
  }
  return timings;
}

}  // namespace

bool too_noisy(const std::vector<Timing>& timings) {
  constexpr double kMatters = 1.05;
  return std::ranges::none_of(timings, worthwhile) &&
         std::ranges::any_of(timings, [](const Timing& t) { return t.speedup_high > kMatters; });
}

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
                         const std::vector<const RaceInputs*>& inputs, double seconds,
                         double limit_seconds) {
  // Made when first run: packing weights takes a while, and the last ones may not take part.
  std::vector<std::optional<Runner>> runners(modules.size());
  std::vector<Contestant> contestants;
  for (size_t i = 0; i < runners.size(); i++)
    contestants.push_back({i == 0 ? "original" : "candidate " + std::to_string(i), [&, i](int) {
                             if (!runners[i]) runners[i].emplace(modules[i], *inputs[i]);
                             runners[i]->run();
                           }});
  MeasureOptions m;
  m.budget_s = seconds;
  m.limit_s = limit_seconds;
  constexpr double kBelieved = 10;
  const WallClock clock;
  std::vector<Timing> timings = decide(contestants, m);
  for (size_t i = 1; i < timings.size(); i++) {
    m.limit_s = limit_seconds - clock.seconds();
    if (timings[i].speedup <= kBelieved || m.limit_s <= 0) continue;
    runners[0].reset();
    runners[i].reset();
    const std::vector<Timing> again = measure({contestants[0], contestants[i]}, m);
    if (again[1].speedup < timings[i].speedup) timings[i] = again[1];
  }
  return timings;
}

namespace {

// Arguments of a program on a device, several copies of them.
class DeviceArguments {
 public:
  struct Copy {
    std::vector<CudaAddress> inputs, outputs;
  };
  DeviceArguments(const CudaModule& module, const RaceInputs& inputs, int copies,
                  CudaStream stream) {
    for (int c = 0; c < copies; ++c) {
      Copy& copy = copies_.emplace_back();
      for (size_t i = 0; i < module.input_types().size(); ++i) {
        memory_.emplace_back(module.context(), module.input_types()[i].bytes(),
                             "the inputs of a race");
        memory_.back().fill(inputs.pointers()[i], stream);
        copy.inputs.push_back(memory_.back().address());
      }
      for (const Type& t : module.output_types()) {
        memory_.emplace_back(module.context(), t.bytes(), "the outputs of a race");
        copy.outputs.push_back(memory_.back().address());
      }
    }
  }
  const std::vector<Copy>& copies() const { return copies_; }

 private:
  std::vector<DeviceMemory> memory_;
  std::vector<Copy> copies_;
};

}  // namespace

std::vector<Timing> race_on_device(const std::vector<CompiledCode>& codes, const RaceInputs& inputs,
                                   double seconds, const std::atomic<bool>* cancel) {
  const CudaModule& first = *codes[0].cuda->module;
  const CudaDevice& device = first.context()->device();
  int64_t bytes = 0;
  for (const auto* types : {&first.input_types(), &first.output_types()})
    for (const Type& t : *types) bytes += t.bytes();
  DeviceMeasureOptions o;
  o.cold = true;
  o.copies = copies_for_cold(bytes, device.l2_bytes, device.memory_bytes / 4);
  o.min_rounds = 7;
  o.budget_s = seconds / 2;
  o.cancelled = [cancel] { return cancel != nullptr && cancel->load(); };
  CudaGraphClock clock(first.context());
  const DeviceArguments arguments(first, inputs, o.copies, clock.stream());
  std::vector<std::vector<std::shared_ptr<const CudaWeights>>> prepared(codes.size());
  std::vector<Contestant> contestants;
  for (size_t i = 0; i < codes.size(); ++i) {
    const CudaModule* module = codes[i].cuda->module.get();
    for (const DeviceArguments::Copy& c : arguments.copies())
      prepared[i].push_back(module->weights().empty() ? nullptr
                                                      : module->prepare(c.inputs, clock.stream()));
    contestants.push_back(
        {i == 0 ? "original" : "candidate " + std::to_string(i), [&, i, module](int copy) {
           const DeviceArguments::Copy& c = arguments.copies()[size_t(copy)];
           module->run(c.inputs, c.outputs, prepared[i][size_t(copy)].get(), clock.stream());
         }});
  }
  std::vector<Timing> timings = measure_on_device(contestants, clock, o);
  o.cold = false;
  const std::vector<Timing> warm = measure_on_device(contestants, clock, o);
  for (size_t i = 0; i < timings.size(); ++i) timings[i].warm_s = warm[i].median_s;
  return timings;
}

}  // namespace tessera
