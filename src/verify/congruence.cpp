#include "verify/congruence.h"

#include "base/interruption.h"

#include <map>
#include <tuple>

namespace tessera {
namespace {

struct Made {  // by which operator
  const Graph* graph;
  const Op* op;
  int first;  // class of its first result
};
using Key = std::tuple<OpKind, std::vector<int>>;  // and the classes of its operands

}  // namespace

bool same_function(const Graph& a, const Op& x, const Graph& b, const Op& y) {
  interruption_point();
  if (x.kind != y.kind || is_opaque(x.kind) || x.num_results != y.num_results ||
      x.inputs.size() != y.inputs.size() || !(x.attrs == y.attrs) ||
      x.body.valid() != y.body.valid())
    return false;
  for (uint32_t r = 0; r < x.num_results; r++)
    if (!(a.type(x.result(r)) == b.type(y.result(r)))) return false;
  return !x.body.valid() || a.body(x) == b.body(y);
}

Congruence::Congruence(const Graph& spec, const Graph& candidate,
                       const std::vector<ValuePair>& proved)
    : spec_graph_(&spec), candidate_graph_(&candidate), spec_(spec.tensors().size(), -1),
      candidate_(candidate.tensors().size(), -1) {
  std::map<Key, std::vector<Made>> made;
  int classes = 0;
  auto number = [&](const Graph& g, std::vector<int>& class_of,
                    const std::vector<int>& known) {  // by tensor: its class already, or −1
    for (size_t k = 0; k < g.inputs().size(); k++) class_of[g.inputs()[k].index] = int(k);
    for (const Op& op : g.ops()) {
      if (is_input(op.kind)) continue;
      Key key{op.kind, {}};
      for (TensorId t : op.inputs) std::get<1>(key).push_back(class_of[t.index]);
      std::vector<Made>& alike = made[key];
      int first = -1;
      for (const Made& m : alike)
        if (same_function(*m.graph, *m.op, g, op)) {
          first = m.first;
          break;
        }
      if (first < 0) {
        first = classes;
        classes += int(op.num_results);
        alike.push_back({&g, &op, first});
      }
      for (uint32_t r = 0; r < op.num_results; r++) {
        const TensorId t = op.result(r);
        class_of[t.index] = known[t.index] >= 0 ? known[t.index] : first + int(r);
      }
    }
  };
  classes = int(spec.inputs().size());
  number(spec, spec_, std::vector<int>(spec.tensors().size(), -1));
  std::vector<int> known(candidate.tensors().size(), -1);
  for (const ValuePair& p : proved)
    if (p.axes.empty() && spec.type(p.spec) == candidate.type(p.candidate))
      known[p.candidate.index] = spec_[p.spec.index];
  number(candidate, candidate_, known);
  first_.resize(size_t(classes));
  for (size_t i = spec_.size(); i-- > 0;)
    if (spec_[i] >= 0) first_[size_t(spec_[i])] = TensorId(i);
  made_.assign(size_t(classes), false);
  for (int c : candidate_)
    if (c >= 0) made_[size_t(c)] = true;
}

std::optional<TensorId> Congruence::of_candidate(TensorId candidate) const {
  const int c = candidate_[candidate.index];
  if (c < 0 || !first_[size_t(c)].valid()) return std::nullopt;
  return first_[size_t(c)];
}

bool Congruence::shared(const ValuePair& p) const {
  return made_[size_t(spec_[p.spec.index])] || of_candidate(p.candidate);
}

bool Congruence::complete() const {
  for (size_t k = 0; k < spec_graph_->outputs().size(); k++)
    if (!equal(spec_graph_->outputs()[k], candidate_graph_->outputs()[k])) return false;
  return true;
}

Graph without_repetition(const Graph& g) {
  const Congruence same(g, g);
  Graph out(g.name());
  std::vector<TensorId> to(g.tensors().size());
  for (const Op& op : g.ops()) {
    copy_op(g, op, out, to);
    for (uint32_t r = 0; r < op.num_results; r++)
      if (const auto first = same.of_candidate(op.result(r)); first && to[first->index].valid())
        to[op.result(r).index] = to[first->index];
  }
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

}  // namespace tessera
