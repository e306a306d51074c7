// Plans: sequences of kernels that together compute the targets. Any value may be a cut between
// kernels; plans grow from the outputs backwards, best first over sets of pending values.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "search/mugraph/kernels.h"

namespace tessera::mugraph {

struct Plan {
  std::vector<Kernel> kernels;  // in order of execution
  double seconds = 0;
  std::map<int, int64_t> parts;  // of split axes, by the axis of parts: how many
  // Which values each kernel loads and stores and what it loops over: plans with equal structure
  // differ only in the operations inside the kernels.
  std::string structure() const;
};

struct PlanOptions {
  int wanted = 16;        // plans to return
  int revisits = 2;       // ways to reach the same pending values that are followed
  int per_structure = 4;  // of which at most this many share their structure
  int max_kernels = 4;
  int64_t alternatives = 40;  // states expanded once the cheapest plan is known, and a quarter of
                              // those before it
  // Plans that cost more than `slack` times the best, and `launches` more, are not wanted.
  double slack = 1.03, launches = 1;
  int64_t max_steps = 400000;  // expanded states of all kernel searches together
  const std::atomic<bool>* cancel = nullptr;
  std::function<bool()> out_of_time;          // may be empty
  std::function<void(double best)> improved;  // may be empty
};

struct PlanResult {
  std::vector<Plan> plans;    // cheapest first
  std::vector<Plan> singles;  // everything in one kernel, per loop axis, cheapest first
  bool complete = true;       // false: a limit ended the search
  bool stopped = false;       // cancelled or out of time
};

// Plans that cost more than four times `start` (the program as it is), in seconds, are not wanted.
PlanResult find_plans(const Hypergraph& graph, const KernelSearch& kernels, double start,
                      const PlanOptions& options, ThreadPool* pool, KernelCounters& counters);

}  // namespace tessera::mugraph
