// The kernel of one row group, as a block graph: how its rows and columns are cut over the grid,
// and how its operands and results lie.
#pragma once

#include "plan/row_groups.h"

namespace tessera {

// A program in the making: what the tensors of another have become in it.
struct FusedProgram {
  explicit FusedProgram(const Graph& of) : graph(of.name()), map(of.tensors().size()) {}
  Graph graph;
  std::vector<TensorId> map;
  std::map<std::pair<uint32_t, std::vector<Extents>>, TensorId> parts;

  TensorId reshaped(TensorId t, const Shape& shape);
  // The part of a tensor that is read, in the shape in which it is; each once.
  TensorId part(TensorId t, const Reading& reading);
};
// What was read, with the operand's axes in their order.
TensorId permuted(Graph& graph, TensorId tile, const Reading& reading);

std::vector<TensorId> operands_in_memory(const RowGroup& group);
// The order of the group's axes (rows and columns) in which a tensor has a value of it; nullopt
// where it is no such rearrangement.
std::optional<std::vector<int>> arranged(const RowGroups& found, const RowGroup& group, TensorId t);
// Appends the kernel that makes these values of a group. False where none is written for it.
bool emit_kernel(const RowGroups& found, const FusionRules& rules, const RowGroup& group,
                 const std::vector<TensorId>& results, FusedProgram& to);

}  // namespace tessera
