// A whole kernel graph as one C++ translation unit and the plan of tasks that run it.
// The source includes nothing and is meant to be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/pack.h"
#include "backend/host_calls.h"
#include "cost/target.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace tessera::patterns {
struct Pattern;
}

namespace tessera {

// What a step may touch to be short: over in some ten microseconds, where data that change from one
// core's cache to another's cost more than unequal progress.
inline constexpr int64_t kShortBytes = 1 << 20;

// A unit of what a library does, with the arguments and the scratch area of its worker.
using LibraryStage = std::function<void(void** arguments, int64_t unit, char* scratch)>;

// How a task of the plan is executed. Arguments are the slots it reads, then those it writes, then
// its workspace.
struct Step {
  std::string symbol;    // generated function; empty: `library` alone, or `pack`
  LibraryStage library;  // comes first in each unit
  // Instead of all of these: runs on the calling thread while nothing else does.
  std::optional<HostStep> host;
  std::vector<int> arguments;
  int64_t units = 1;          // blocks of the grid, slabs of the output, or pieces to pack
  int64_t together = 1;       // neighbouring units that share work if one call runs them
  bool streams = false;       // takes as long as its operands and results take to be moved
  int64_t scratch_bytes = 0;  // per worker
  PackJob pack;
};

struct Program {
  Plan plan;
  std::string source;
  std::vector<Step> steps;    // one per task of the plan
  int64_t scratch_bytes = 0;  // the most of any step, per worker
  // Slots of the caller's arrays whose addresses code wants to be multiples of so many bytes.
  std::vector<std::pair<size_t, int64_t>> aligned;
  // > 0: some convolution mixes neighbours, see CheckOptions::normwise (backend/check.h)
  double normwise = 0;
};

// `target` has the costs that decide about layouts; threads and instruction sets are not read from
// it. Kernels whose sources are among `written` are those texts (backend/written.h). With
// `exact` every operator of every kernel rounds by itself, as before_jumps says of some. Throws
// Error{Unsupported} naming the operator that cannot be generated.
Program emit_program(const Graph& graph, CpuIsa isa, const PlanOptions& options = {},
                     const Target& target = default_cpu_target(),
                     const std::map<std::string, patterns::Pattern>* written = nullptr,
                     bool exact = false);

}  // namespace tessera
