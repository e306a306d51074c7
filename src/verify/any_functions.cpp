#include "verify/any_functions.h"

#include <algorithm>
#include <vector>

#include "ir/walk.h"

namespace tessera {
namespace {

std::vector<const Op*> opaque_operators(const Graph& g) {
  std::vector<const Op*> found;
  for (const Op& op : g.ops())
    if (is_opaque(op.kind)) found.push_back(&op);
  return found;
}

bool is_same(const Graph& a, const Op& x, const Graph& b, const Op& y) {
  bool same =
      x.attrs == y.attrs && x.inputs.size() == y.inputs.size() && x.num_results == y.num_results;
  for (size_t i = 0; same && i < x.inputs.size(); i++)
    same = a.type(x.inputs[i]) == b.type(y.inputs[i]);
  for (uint32_t r = 0; same && r < x.num_results; r++)
    same = a.type(x.result(r)) == b.type(y.result(r));
  return same;
}

// The program with these operators' results and operands as inputs and results.
Graph cut_at(const Graph& g, const std::vector<const Op*>& cuts) {
  Graph out(g.name());
  std::vector<TensorId> map(g.tensors().size());
  for (TensorId t : g.inputs())
    map[t.index] = out.add_input(g.type(t), g.tensor(t).name, g.is_weight(t));
  for (const Op* op : cuts)
    for (uint32_t r = 0; r < op->num_results; r++)
      map[op->result(r).index] = out.add_input(g.type(op->result(r)));
  for (const Op& op : g.ops())
    if (!is_input(op.kind) && !is_opaque(op.kind)) copy_op(g, op, out, map);
  for (TensorId t : g.outputs()) out.add_output(map[t.index]);
  for (const Op* op : cuts)
    for (TensorId t : op->inputs) out.add_output(map[t.index]);
  return out;
}

}  // namespace

std::optional<std::pair<Graph, Graph>> with_any_functions(const Graph& spec,
                                                          const Graph& candidate) {
  const Graph a = without_dead_code(spec), b = without_dead_code(candidate);
  const std::vector<const Op*> theirs = opaque_operators(a);
  std::vector<const Op*> left = opaque_operators(b), mine;
  if (theirs.empty() || theirs.size() != left.size()) return std::nullopt;
  for (const Op* op : theirs) {  // of several alike, in the order in which they come
    const auto it = std::ranges::find_if(left, [&](const Op* o) { return is_same(a, *op, b, *o); });
    if (it == left.end()) return std::nullopt;
    mine.push_back(*it);
    left.erase(it);
  }
  return std::pair{cut_at(a, theirs), cut_at(b, mine)};
}

}  // namespace tessera
