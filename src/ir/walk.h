// What depends on what in a graph.
#pragma once
#include <set>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// The tensors that some are made of, themselves included. Those in `stops` are among them, but not
// what they are made of.
std::set<TensorId> made_of(const Graph& graph, const std::vector<TensorId>& some,
                           const std::set<TensorId>& stops = {});
// Whether it is so of any operator, in bodies too: f(its graph, operator).
template <class F> bool any_op(const Graph& graph, F f) {
  for (const Op& op : graph.ops())
    if (f(graph, op) || (op.body.valid() && any_op(graph.body(op), f))) return true;
  return false;
}
// By tensor: whether it is made of an input of the graph, or is one.
std::vector<bool> made_of_inputs(const Graph& graph);

}  // namespace tessera
