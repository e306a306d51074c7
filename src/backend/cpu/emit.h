// A whole kernel graph as one C++ translation unit and the list of calls that run it.
// The source includes nothing and is meant to be read.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace tessera {

// One call of a generated function. Arguments are tensors of the graph, then the workspace.
struct Step {
  std::string symbol;
  std::vector<TensorId> arguments;
  int64_t units = 1;          // blocks of the grid, or slabs of the output
  int64_t chunk = 0;          // units handed out at a time; 0: the pool chooses
  int64_t scratch_bytes = 0;  // per worker
  bool workspace = false;     // takes Program::workspace_bytes of shared memory as last argument
};

struct Program {
  Plan plan;
  std::string source;
  std::vector<Step> steps;
  int64_t scratch_bytes = 0;    // the most of any step, per worker
  int64_t workspace_bytes = 0;  // shared by all workers
};

// Throws Error{Unsupported} naming the operator that cannot be generated.
Program emit_program(const Graph& graph, CpuIsa isa);

}  // namespace tessera
