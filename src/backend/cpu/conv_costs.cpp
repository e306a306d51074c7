#include "backend/cpu/conv_costs.h"

#include <stdlib.h>

#include <algorithm>
#include <fstream>

#include "backend/cpu/compile.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/emit_images.h"
#include "backend/cpu/module.h"
#include "backend/cpu/onednn.h"
#include "backend/measure.h"
#include "base/error.h"
#include "base/records.h"
#include "base/sha256.h"
#include "base/wall_clock.h"
#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

std::string key_of(const std::string& signature, CpuIsa isa, int threads) {
  Sha256 hash;
  hash.field("convolution").field(std::to_string(kCodegenVersion)).field(processor_name());
  hash.field(to_string(isa)).field(std::to_string(threads)).field(signature);
  // Another library has other costs.
  if (const OneDnnState library = onednn(); library.problem.empty())
    hash.field("onednn " + library.version);
  return hash.hex();
}

double multiply_adds(const Graph& graph, const Op& op) {
  const Type& w = graph.type(op.inputs[1]);
  return double(num_elements(graph.type(op.result()).shape)) * double(num_elements(w.shape)) /
         double(w.shape[0].extent);
}

// The convolution of a step alone, on images that lie like those of the program.
Graph alone(const Graph& graph, const ImageStep& step) {
  const Op& op = graph.op(step.window);
  Graph g("convolution");
  const TensorId x = g.add_input(graph.type(step.image), "x");
  const TensorId w = g.add_input(graph.type(op.inputs[1]), "w", true);
  const TensorId first = build::transpose(g, x, std::get<PermAttrs>(graph.op(step.before).attrs));
  const TensorId y = g.add(OpKind::Conv, {first, w}, op.attrs);
  g.add_output(build::transpose(g, y, std::get<PermAttrs>(graph.op(step.after[0]).attrs)));
  return g;
}

struct TimedModule {
  std::unique_ptr<Module> module;
  std::vector<std::shared_ptr<const PreparedWeights>> weights;  // taken in turn
  size_t turn = 0;
};

// In a model a layer's weights were last read a whole run ago, so that the sizes which algorithms
// bring them to matter. So many copies of `bytes` are together as large as a model.
size_t copies_of(int64_t bytes) {
  constexpr int64_t kModel = int64_t{128} << 20, kMost = 16;
  return size_t(std::clamp<int64_t>(kModel / std::max<int64_t>(bytes, 1), 1, kMost));
}

ConvCosts time_all(const Graph& g, const std::vector<ConvAlgorithm>& algorithms, CpuIsa isa,
                   KernelPool& pool, Cache& cache, double limit_s,
                   const std::atomic<bool>* cancel) {
  const Type &x = g.type(g.inputs()[0]), &w = g.type(g.inputs()[1]);
  AlignedBuffer image(size_t(x.bytes())), weights(size_t(w.bytes()));
  AlignedBuffer result(size_t(g.type(g.outputs()[0]).bytes()));
  // Ordinary numbers: zeros may be faster, and denormal ones are slower.
  for (auto [buffer, bytes] : {std::pair{&image, x.bytes()}, {&weights, w.bytes()}})
    for (int64_t i = 0; i < bytes / 4; ++i)
      static_cast<float*>(buffer->data())[i] = float(i * 7919 % 2003) / 1001.5f - 1;
  const std::vector<const void*> in{image.data(), weights.data()};
  const std::vector<void*> out{result.data()};
  std::vector<TimedModule> candidates;
  std::vector<Contestant> contestants;
  for (ConvAlgorithm a : algorithms) {
    ModuleOptions options;
    options.isa = isa;
    options.pool = &pool;
    options.cancel = cancel;
    options.plan.algorithms = {{"", name(a)}};
    candidates.push_back({Module::load(g, emit_program(g, isa, options.plan), cache, options), {}});
  }
  int64_t largest = 0;
  for (const TimedModule& c : candidates) largest = std::max(largest, c.module->prepared_bytes());
  for (TimedModule& c : candidates)
    for (size_t i = 0; i < copies_of(largest); ++i) c.weights.push_back(c.module->prepare(in));
  for (size_t i = 0; i < candidates.size(); ++i)
    contestants.push_back({name(algorithms[i]), [&, i](int) {
                             TimedModule& c = candidates[i];
                             c.turn = (c.turn + 1) % c.weights.size();
                             c.module->run(in, out, c.weights[c.turn].get());
                           }});
  MeasureOptions options;
  options.min_rounds = 7;
  options.max_rounds = 200;
  options.budget_s = std::min(0.1, limit_s);
  options.limit_s = limit_s;
  ConvCosts costs;
  for (const Timing& t : measure(contestants, options)) {
    costs.seconds[t.name] = t.min_s;
    costs.rounds = t.rounds;
  }
  double load[1] = {0};
  if (getloadavg(load, 1) == 1) costs.load = load[0];
  return costs;
}

// Of the algorithms that were measured, the fastest that `options` let a step's convolution have;
// the end where there is none.
using CostEntry = std::map<std::string, double>::const_iterator;
CostEntry fastest(const ConvCosts& costs, const Graph& laid_out, const ImageStep& step,
                  const PlanOptions& options) {
  const std::vector<WindowAxis> axes = window_axes(laid_out, laid_out.op(step.window));
  CostEntry best = costs.seconds.end();
  for (CostEntry c = costs.seconds.begin(); c != costs.seconds.end(); ++c)
    if (may_use(*conv_algorithm_from(c->first), options, axes) &&
        (best == costs.seconds.end() || c->second < best->second))
      best = c;
  return best;
}

}  // namespace

const std::string& processor_name() {
  static const std::string found = [] {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("model name"))
        return line.substr(std::min(line.find(": ") + 2, line.size()));
    return std::string("unknown");
  }();
  return found;
}

template <class Archive> void record(Archive& a, ConvCosts& c) { a(c.seconds, c.rounds, c.load); }

std::string ConvCosts::str() const { return to_text(*this); }

std::optional<ConvCosts> parse_conv_costs(const std::string& text) {
  auto costs = from_text<ConvCosts>(text);
  const auto known = [](const auto& c) { return conv_algorithm_from(c.first) && c.second > 0; };
  if (!costs || costs->seconds.empty() || !std::ranges::all_of(costs->seconds, known))
    return std::nullopt;
  return costs;
}

std::optional<ConvCosts> known_costs(const std::string& signature, CpuIsa isa, int threads,
                                     Cache& cache) {
  const auto text = cache.find_text(key_of(signature, isa, threads));
  return text ? parse_conv_costs(*text) : std::nullopt;
}

std::map<std::string, std::string> fastest_algorithms(const Graph& laid_out, CpuIsa isa,
                                                      int threads, Cache& cache,
                                                      const PlanOptions& options) {
  std::map<std::string, std::string> found;
  for (const ImageStep& step : image_steps(laid_out, isa)) {
    if (algorithms_of(laid_out, step, isa).size() < 2) continue;
    const std::string key = signature(laid_out, step);
    const auto costs = known_costs(key, isa, threads, cache);
    if (!costs) continue;
    const CostEntry best = fastest(*costs, laid_out, step, options);
    if (best != costs->seconds.end()) found[key] = best->first;
  }
  return found;
}

std::optional<double> fastest_seconds(const Graph& convolution, CpuIsa isa, int threads,
                                      Cache& cache, const PlanOptions& options) {
  const Graph laid_out = channels_last(convolution, isa);
  for (const ImageStep& step : image_steps(laid_out, isa)) {
    const auto costs = known_costs(signature(laid_out, step), isa, threads, cache);
    if (!costs) continue;
    const CostEntry best = fastest(*costs, laid_out, step, options);
    return best != costs->seconds.end() ? best->second : std::numeric_limits<double>::infinity();
  }
  return std::nullopt;
}

std::vector<std::string> describe_convolutions(const Graph& graph, CpuIsa isa, int threads,
                                               Cache& cache, PlanOptions options) {
  const Graph laid_out = channels_last(graph, isa);
  options.algorithms = fastest_algorithms(laid_out, isa, threads, cache, options);
  std::vector<std::string> lines;
  std::map<std::string, bool> seen;
  for (const ImageStep& step : image_steps(laid_out, isa)) {
    if (laid_out.op(step.window).kind != OpKind::Conv) continue;
    const std::string key = signature(laid_out, step);
    if (!seen.emplace(key, true).second) continue;
    std::string line = key + ": " + name(choose_algorithm(laid_out, step, isa, threads, options));
    const auto costs = known_costs(key, isa, threads, cache);
    if (costs) line += ", measured";
    for (const auto& [algorithm, seconds] : costs ? costs->seconds : decltype(costs->seconds)())
      line += " " + algorithm + " " + significant(seconds * 1e3, 3) + " ms";
    lines.push_back(std::move(line));
  }
  return lines;
}

ConvMeasurement measure_convolutions(const Graph& graph, CpuIsa isa, KernelPool& pool, Cache& cache,
                                     double seconds, const std::atomic<bool>* cancel) {
  const WallClock clock;
  const Graph laid_out = channels_last(graph, isa);
  std::vector<ImageStep> steps = image_steps(laid_out, isa);
  std::ranges::stable_sort(steps, [&](const ImageStep& a, const ImageStep& b) {
    const auto work = [&](const ImageStep& s) {
      const Op& op = laid_out.op(s.window);
      return op.kind == OpKind::Conv ? multiply_adds(laid_out, op) : 0;
    };
    return work(a) > work(b);
  });
  ConvMeasurement report;
  std::map<std::string, bool> seen;
  for (const ImageStep& step : steps) {
    const std::vector<ConvAlgorithm> algorithms = algorithms_of(laid_out, step, isa);
    if (algorithms.size() < 2) continue;
    const std::string key = signature(laid_out, step);
    if (!seen.emplace(key, true).second) continue;
    ++report.convolutions;
    if (known_costs(key, isa, pool.threads(), cache)) continue;
    const double left = seconds - clock.seconds();
    if (left <= 0 || (cancel != nullptr && cancel->load())) {
      report.finished = false;
      continue;
    }
    try {
      const ConvCosts costs =
          time_all(alone(laid_out, step), algorithms, isa, pool, cache, left, cancel);
      if (costs.seconds.size() < algorithms.size()) {
        report.finished = false;  // the limit left some out
        continue;
      }
      cache.store_text(key_of(key, isa, pool.threads()), costs.str());
      ++report.measured;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Cancelled) throw;
      report.finished = false;
    }
  }
  return report;
}

}  // namespace tessera
