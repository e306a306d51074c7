// What the stages of one µGraph search share: the program, limits, and what was counted so far.
#pragma once
#include <string>

#include "base/thread_pool.h"
#include "base/wall_clock.h"
#include "cost/analytical.h"
#include "search/engine.h"
#include "search/mugraph/kernels.h"
#include "search/mugraph/mugraph.h"

namespace tessera::mugraph {

struct Run {
  Run(const MugraphOptions& o, const Graph& p, Context& c, const Budget& b)
      : options(o), program(p), context(c), budget(b), analytical(*c.target),
        machine(analytical.machine()), model(c.cost ? *c.cost : analytical),
        pool(std::max(1, c.threads)) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const MugraphOptions& options;
  const Graph& program;
  Context& context;
  const Budget& budget;
  AnalyticalModel analytical;
  const Machine& machine;
  const CostModel& model;
  ThreadPool pool;
  double resident = 0;         // bytes that compete with the program's inputs for the caches
  double memory_share = 1;     // of a block's memory that tiles may use
  double program_seconds = 0;  // of the program as it is, by the target's model
  // Seconds of the best plans of the regions before; nothing is known of a program as a whole until
  // its last region has a plan.
  double before_seconds = 0;
  bool last_region = true;
  int64_t regions = 0;   // that share the budget's steps
  bool stopped = false;  // cancelled or out of time
  bool limited = false;  // a limit of steps ended a part of the search
  std::string detail;    // why nothing was found
  SearchReport report;

  bool rule(const char* name) const { return options.ablate.count(name) == 0; }
  double seconds() const { return clock_.seconds(); }
  bool out_of_time() const { return seconds() > budget.seconds; }
  bool interrupted() {
    if (context.cancelled() || out_of_time()) stopped = true;
    return stopped;
  }
  void merge(const KernelCounters& c) { add(report, c); }
  // Tells the caller; `running`: what is not merged yet.
  void progress(const KernelCounters& running) const {
    if (!context.progress) return;
    SearchReport r = report;
    r.seconds = seconds();
    add(r, running);
    context.progress(r);
  }

 private:
  static void add(SearchReport& to, const KernelCounters& c) {
    to.graphs += c.graphs;
    to.tilings += c.tilings;
    for (const auto& [name, n] : c.pruned) to.pruned[name] += n;
  }

  WallClock clock_;
};

}  // namespace tessera::mugraph
