// Which layout every reader of a tensor gets, as an integer program (Mirage, OSDI'25, §6, tensor
// layouts): a copy in another layout costs time in every call, for weights only memory.
#pragma once

#include <vector>

#include "cost/target.h"
#include "ir/graph.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace tessera {

struct LayoutOption {
  Layout layout;
  double seconds = 0;  // of the reader, per call
};

// An operand that can be read in several layouts; one of them is row-major.
struct LayoutDemand {
  int user = 0, operand = 0;  // for the caller's own use
  TensorId tensor;
  std::vector<LayoutOption> options;
};

struct LayoutChoice {
  std::vector<Layout> layouts;  // one per demand
};

// `plan` tells what is constant from call to call; `compared`: see PlanOptions.
LayoutChoice choose_layouts(const Graph& graph, const PlanBuilder& plan,
                            const std::vector<LayoutDemand>& demands, const Target& target,
                            bool compared);

}  // namespace tessera
