// The persistent costs of convolutions: every algorithm timed once per machine, number of threads
// and signature, interleaved, least of several runs; kept in the cache.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/runtime.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace tessera {

// What measurements are kept under: folders of caches may be shared between machines.
const std::string& processor_name();

struct ConvCosts {
  std::map<std::string, double> seconds;  // by algorithm
  int rounds = 0;
  double load = 0;  // of the machine while they were timed: processes that wanted to run
  std::string str() const;
};
// None where a text is not what str() writes.
std::optional<ConvCosts> parse_conv_costs(const std::string& text);

// What is known of a signature; nothing is measured.
std::optional<ConvCosts> known_costs(const std::string& signature, CpuIsa isa, int threads,
                                     Cache& cache);

// By signature, the fastest algorithm, of those that `options` let it have, of the convolutions of
// a program (as channels_last gives it) that were measured before.
std::map<std::string, std::string> fastest_algorithms(const Graph& laid_out, CpuIsa isa,
                                                      int threads, Cache& cache,
                                                      const PlanOptions& options = {});

// Of a program of one convolution: what that algorithm took.
std::optional<double> fastest_seconds(const Graph& convolution, CpuIsa isa, int threads,
                                      Cache& cache, const PlanOptions& options);

// A line for each different convolution of a program (as it is before channels_last): what computes
// it under `options`, and what the algorithms took.
std::vector<std::string> describe_convolutions(const Graph& graph, CpuIsa isa, int threads,
                                               Cache& cache, PlanOptions options);

struct ConvMeasurement {
  int convolutions = 0, measured = 0;  // different ones; those that were timed now
  bool finished = true;                // nothing was left for want of time
};
// Times what is not known of a program's convolutions, the most expensive first, until `seconds`
// are over or `cancel` is set.
ConvMeasurement measure_convolutions(const Graph& graph, CpuIsa isa, KernelPool& pool, Cache& cache,
                                     double seconds, const std::atomic<bool>* cancel = nullptr);

}  // namespace tessera
