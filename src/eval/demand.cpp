#include "eval/demand.h"

#include "base/check.h"

namespace tessera {
namespace {

// What exp needs of its argument for components `m` of its result.
Components inside_exp(Components m) { return Components(((m << 1) | (m & 4)) & 7); }

// The demand on operand `i` for demand `m` on the result (of the operators that have one result).
Components operand_demand(const Graph& g, const Op& op, size_t i, Components m) {
  if (!is_float(g.type(op.inputs[i]).dtype)) return 1;
  if (!is_float(g.type(op.result()).dtype)) return 1;  // comparisons and conversions look at p
  if (is_opaque(op.kind)) return 1;
  if (op.kind == OpKind::Atan2) return i == 0 ? m : Components(m | 1);
  if (op.kind == OpKind::AccumRescale) return i == 0 ? m : Components(inside_exp(m) | 1);
  if (op.kind == OpKind::Power) return m | inside_exp(m) | 1;
  if (has(op.kind, algebra::Exponential))
    return inside_exp(m) | (has(op.kind, algebra::Gate) ? m : Components(0));
  return decides(op) ? m | 1 : m;
}

}  // namespace

bool Demand::any(const Op& op) const {
  for (uint32_t i = 0; i < op.num_results; ++i)
    if (of(op.result(i)) != 0) return true;
  return op.body.valid() && bodies[op.body.index].live;
}

Demand find_demand(const Graph& g, const std::vector<Components>& outputs) {
  Demand d;
  d.tensors.assign(g.tensors().size(), 0);
  d.bodies.resize(g.bodies().size());
  CHECK(outputs.size() == g.outputs().size()) << outputs.size() << " demands";
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorId t = g.outputs()[i];
    d.tensors[t.index] |= is_float(g.type(t).dtype) ? outputs[i] : Components(outputs[i] != 0);
  }
  for (size_t n = g.ops().size(); n-- > 0;) {
    const Op& op = g.ops()[n];
    if (!d.any(op)) continue;
    // An extremum is folded by comparing with what it holds, so the accumulator itself needs p.
    if (op.kind == OpKind::Accum && is_float(g.type(op.result()).dtype) && decides(op))
      d.tensors[op.result().index] |= 1;
    if (op.body.valid()) {
      const Graph& body = g.body(op);
      std::vector<Components> results;
      for (uint32_t i = 0; i < op.num_results; ++i) results.push_back(d.of(op.result(i)));
      Demand inner = find_demand(body, results);
      for (size_t i = 0; i < op.inputs.size(); ++i)
        d.tensors[op.inputs[i].index] |= inner.of(body.inputs()[i]);
      d.bodies[op.body.index] = std::move(inner);
      continue;
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      Components all = 0;
      for (uint32_t r = 0; r < op.num_results; ++r)
        if (d.of(op.result(r)) != 0) all |= operand_demand(g, op, i, d.of(op.result(r)));
      d.tensors[op.inputs[i].index] |= all;
    }
  }
  return d;
}

bool is_root(const Graph& g, const Op& op) {
  return op.kind == OpKind::Sqrt || op.kind == OpKind::Rsqrt ||
         (op.kind == OpKind::Pow && !g.attrs<PowAttrs>(op).exponent.is_integer());
}

void demand_roots(const Graph& g, const std::vector<Components>& present, Demand& demand) {
  std::vector<Components> known(g.tensors().size(), 0);
  for (size_t i = 0; i < g.inputs().size(); ++i) known[g.inputs()[i].index] = present[i];
  for (const Op& op : g.ops()) {
    if (is_input(op.kind) || op.body.valid()) continue;
    for (uint32_t r = 0; r < op.num_results; ++r) {
      Components& out = known[op.result(r).index];
      for (Components m : {Components(1), Components(2), Components(4)}) {
        bool all = true;
        for (size_t i = 0; i < op.inputs.size(); ++i)
          all = all && (operand_demand(g, op, i, m) & ~known[op.inputs[i].index]) == 0;
        if (all) out |= m;
      }
    }
  }
  for (size_t n = g.ops().size(); n-- > 0;) {
    const Op& op = g.ops()[n];
    if (op.body.valid()) continue;
    if (is_root(g, op)) demand.tensors[op.result().index] |= known[op.result().index];
    for (size_t i = 0; i < op.inputs.size(); ++i)
      for (uint32_t r = 0; r < op.num_results; ++r)
        if (const Components m = demand.of(op.result(r)))
          demand.tensors[op.inputs[i].index] |= operand_demand(g, op, i, m);
  }
}

Demand find_demand(const Graph& g, Components outputs) {
  return find_demand(g, std::vector<Components>(g.outputs().size(), outputs));
}

std::vector<Components> needed_components(const Graph& graph, Components outputs) {
  const Demand d = find_demand(graph, outputs);
  return mapped(graph.inputs(), [&](TensorId t) { return d.of(t); });
}

}  // namespace tessera
