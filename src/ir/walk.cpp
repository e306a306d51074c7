#include "ir/walk.h"

#include "base/interruption.h"

namespace tessera {

std::set<TensorId> made_of(const Graph& g, const std::vector<TensorId>& some,
                           const std::set<TensorId>& stops) {
  interruption_point();
  std::set<TensorId> seen;
  std::vector<TensorId> todo = some;
  while (!todo.empty()) {
    const TensorId t = todo.back();
    todo.pop_back();
    if (!seen.insert(t).second || stops.count(t) != 0) continue;
    const Op& op = g.producer(t);
    todo.insert(todo.end(), op.inputs.begin(), op.inputs.end());
  }
  return seen;
}

std::vector<bool> made_of_inputs(const Graph& g) {
  std::vector<bool> made(g.tensors().size(), false);
  for (const Op& op : g.ops()) {
    bool any = is_input(op.kind);
    for (TensorId t : op.inputs) any = any || made[t.index];
    for (uint32_t r = 0; r < op.num_results; r++) made[op.result(r).index] = any;
  }
  return made;
}

}  // namespace tessera
