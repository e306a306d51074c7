#include "verify/any_functions.h"

#include <algorithm>
#include <set>
#include <vector>

#include "ir/walk.h"
#include "verify/congruence.h"

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

bool returns_whole_numbers(const Graph& g, const Op& op) {
  for (uint32_t r = 0; r < op.num_results; r++)
    if (!is_float(g.type(op.result(r)).dtype)) return true;
  return false;
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
    for (TensorId t : op->inputs) {
      const TensorId given = map[t.index];
      out.add_output(given);
      if (is_float(out.type(given).dtype) && returns_whole_numbers(g, *op))
        out.add_output(out.add(OpKind::Floor, {given}));
    }
  return out;
}

}  // namespace

bool calls_any_functions(const Graph& g) { return !opaque_operators(without_dead_code(g)).empty(); }

Graph AnyFunctions::operands(const Graph& g) const {
  Graph only = g;
  only.set_outputs({g.outputs().begin() + long(outputs), g.outputs().end()});
  return only;
}

bool AnyFunctions::follow_alike() const {
  const Congruence alike(spec, candidate);
  const auto follows = [&](const Graph& g, TensorId output) {
    const std::set<TensorId> needed = made_of(g, {output});
    return std::any_of(g.inputs().begin() + long(inputs), g.inputs().end(),
                       [&](TensorId t) { return needed.count(t) != 0; });
  };
  for (size_t k = 0; k < spec.outputs().size(); k++) {
    const TensorId x = spec.outputs()[k], y = candidate.outputs()[k];
    if ((follows(spec, x) || follows(candidate, y)) && !alike.equal(x, y)) return false;
  }
  return true;
}

std::optional<AnyFunctions> with_any_functions(const Graph& spec, const Graph& candidate) {
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
  return AnyFunctions{cut_at(a, theirs), cut_at(b, mine), spec.inputs().size(),
                      spec.outputs().size()};
}

}  // namespace tessera
