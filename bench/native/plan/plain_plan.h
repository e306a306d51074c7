// Plans of graphs for which no code is chosen, as tests and measurements of other parts need them.
#pragma once
#include "plan/plan.h"

namespace tessera {

// The plan with one task per operator and row-major arrays: what is decided without knowing code.
Plan plan_kernel_graph(const Graph& graph, const PlanOptions& options = {});

}  // namespace tessera
