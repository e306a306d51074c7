#include "driver/race.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "backend/arrays.h"
#include "backend/cuda/clock.h"
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

namespace {

// A module on a device with arguments of its own.
class DeviceRunner {
 public:
  DeviceRunner(const Code& code, const RaceInputs& inputs, CudaStream stream)
      : module_(code.cuda->module), stream_(stream) {
    const auto& context = module_->context();
    for (size_t i = 0; i < module_->input_types().size(); ++i) {
      memory_.emplace_back(context, module_->input_types()[i].bytes(), "the inputs of a race");
      memory_.back().fill(inputs.pointers()[i], stream);
      inputs_.push_back(memory_.back().address());
    }
    for (const Type& t : module_->output_types()) {
      memory_.emplace_back(context, t.bytes(), "the outputs of a race");
      outputs_.push_back(memory_.back().address());
    }
    if (!module_->weights().empty()) prepared_ = module_->prepare(inputs_, stream);
  }
  void run() const { module_->run(inputs_, outputs_, prepared_.get(), stream_); }

 private:
  std::shared_ptr<CudaModule> module_;
  CudaStream stream_;
  std::vector<DeviceMemory> memory_;
  std::vector<CudaAddress> inputs_, outputs_;
  std::shared_ptr<const CudaWeights> prepared_;
};

double quantile(std::vector<double> x, double q) {
  std::sort(x.begin(), x.end());
  return x[size_t(q * double(x.size() - 1) + 0.5)];
}

}  // namespace

std::vector<Timing> race_on_device(const std::vector<Code>& codes, const RaceInputs& inputs,
                                   double seconds, const std::atomic<bool>* cancel) {
  constexpr int kWarmUp = 3, kLeastRounds = 9, kMostRounds = 201;
  constexpr double kLeastSample = 200e-6;  // events tell half a microsecond apart
  CudaClock clock(codes[0].cuda->module->context());
  std::vector<std::unique_ptr<DeviceRunner>> runners;
  std::vector<int> repeats;
  for (const Code& c : codes) {
    runners.push_back(std::make_unique<DeviceRunner>(c, inputs, clock.stream()));
    const auto run = [&](int) { runners.back()->run(); };
    clock.time(run, kWarmUp);
    const double one = clock.time(run, kWarmUp) / kWarmUp;
    repeats.push_back(int(std::clamp(kLeastSample / std::max(one, 1e-9), 1.0, 100.0)));
  }
  std::vector<std::vector<double>> times(codes.size());
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < kMostRounds; ++round) {
    if (cancel != nullptr && cancel->load() && round > 0) break;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (round >= kLeastRounds && spent.count() > seconds) break;
    for (size_t k = 0; k < codes.size(); ++k) {
      const size_t i = (k + size_t(round)) % codes.size();
      times[i].push_back(clock.time([&](int) { runners[i]->run(); }, repeats[i]) / repeats[i]);
    }
  }
  std::vector<Timing> timings;
  for (size_t i = 0; i < codes.size(); ++i) {
    std::vector<double> ratios;
    for (size_t r = 0; r < times[i].size(); ++r) ratios.push_back(times[0][r] / times[i][r]);
    Timing t;
    t.name = i == 0 ? "original" : "candidate " + std::to_string(i);
    t.median_s = quantile(times[i], 0.5);
    t.min_s = quantile(times[i], 0);
    t.p10_s = quantile(times[i], 0.1);
    t.p90_s = quantile(times[i], 0.9);
    t.rounds = int(times[i].size());
    t.speedup = quantile(ratios, 0.5);
    t.speedup_p10 = quantile(ratios, 0.1);
    t.speedup_p90 = quantile(ratios, 0.9);
    t.speedup_low = median_low_bound(ratios);
    timings.push_back(t);
  }
  return timings;
}

}  // namespace tessera
