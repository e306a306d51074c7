// Lowering: kernels of a plan become graph-defined operators with grid, loop, iterators, operators,
// accumulators and savers. Scalars that edges carry become multiplications, placed where they cost
// least (a factor before a square root rather than on the whole result).
#pragma once
#include <string>
#include <vector>

#include "search/mugraph/plans.h"

namespace tessera::mugraph {

// Appends the kernels of `plan` to `graph` and sets `tensors[t]` of every target tensor t of the
// region; `tensors` already maps what the region loads. Returns false where a plan cannot be
// expressed.
bool lower_plan(const Plan& plan, const Hypergraph& values, const Region& region,
                const RegionForms& forms, const KernelSearch& kernels, const Graph& program,
                Graph& graph, std::vector<TensorId>& tensors);

// One line per kernel: what it loops over, its grid, and its operations in order.
std::string describe(const Plan& plan, const Hypergraph& values, const Region& region,
                     const NormalForms& nf, const RegionForms& forms);

}  // namespace tessera::mugraph
