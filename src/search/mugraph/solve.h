// Plans of one region of a program: its values are saturated under every formulation, alone and
// with reductions split, and kernels and plans extracted from each.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "search/mugraph/plans.h"
#include "search/mugraph/run.h"

namespace tessera::mugraph {

// One way to see a region: a cap on multiplying out sums, and whether shifts by a maximum stay.
struct Formulation {
  FormOptions options;
  std::string note;
  bool program_only = false;  // the program's own operations, only fused: no algebra
};

// A saturated formulation.
struct World {
  Region region;
  Formulation formulation;
  std::unique_ptr<NormalForms> forms;
  RegionForms region_forms;
  Hypergraph graph;
  std::string note;
  bool drops_shift = false;  // maxima in exponents cancelled: exponents are carried
  bool as_written = false;   // no algebra: safe wherever the program is
  // By the numbers of parts of split axes (plans choose them); one entry where nothing is split.
  std::map<std::map<int, int64_t>, std::unique_ptr<KernelSearch>> kernels;
};

// One plan of a region, with what is needed to lower it.
struct Choice {
  Plan plan;
  size_t world = 0;  // index into RegionResult::worlds
};

struct RegionResult {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<Choice> choices;  // cheapest first
};

// The plans that compute `outputs` from tensors for which `given` is true. Where the run stops
// early, those found so far.
RegionResult solve_region(Run& run, const std::vector<TensorId>& outputs,
                          const std::vector<bool>& given);

}  // namespace tessera::mugraph
