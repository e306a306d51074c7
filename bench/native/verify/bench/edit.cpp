#include "verify/bench/edit.h"

#include "base/error.h"
#include "ir/validate.h"

namespace tessera {

std::vector<Site> all_sites(const Graph& g) {
  std::vector<Site> sites;
  for (size_t i = 0; i < g.ops().size(); i++) {
    const Op& op = g.ops()[i];
    sites.push_back({-1, OpId(i)});
    if (op.kind != OpKind::Kernel) continue;
    const Graph& body = g.body(op);
    for (size_t j = 0; j < body.ops().size(); j++) sites.push_back({int(op.body.index), OpId(j)});
  }
  return sites;
}

const Graph& graph_of(const Graph& g, const Site& site) {
  return site.body < 0 ? g : g.bodies()[size_t(site.body)];
}

const Op& op_at(const Graph& g, const Site& site) { return graph_of(g, site).op(site.op); }

std::vector<TensorId> copy_op(Graph& out, const Graph& from, const Op& op,
                              const std::vector<TensorId>& operands) {
  std::vector<std::string> names;
  for (uint32_t r = 0; r < op.num_results; r++) names.push_back(from.tensor(op.result(r)).name);
  const TensorId first(out.tensors().size());
  if (op.kind == OpKind::Input)
    out.add_input(from.type(op.result()), names[0], from.is_weight(op.result()));
  else if (op.body.valid())
    out.add_graph_op(op.kind, operands, from.body(op), names);
  else
    out.add_op(op.kind, operands, op.attrs, names);
  std::vector<TensorId> results;
  for (uint32_t r = 0; r < op.num_results; r++) results.push_back(TensorId(first.index + r));
  return results;
}

namespace {

// Copies `g`, calling `step` for every operator.
template <class Step> std::optional<Graph> copy(const Graph& g, Step step) {
  Graph out =
      g.level() == Level::Block ? Graph::block(g.grid(), g.loops()) : Graph(g.name(), g.level());
  out.set_name(g.name());
  std::vector<TensorId> to(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); i++) {
    const Op& op = g.ops()[i];
    std::vector<TensorId> operands;
    for (TensorId t : op.inputs) operands.push_back(to[t.index]);
    std::optional<std::vector<TensorId>> results = step(out, OpId(i), op, operands);
    if (!results || results->size() != op.num_results) return std::nullopt;
    for (uint32_t r = 0; r < op.num_results; r++) to[op.result(r).index] = (*results)[r];
  }
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return out;
}

std::optional<Graph> edit_flat(const Graph& g, OpId at, const Edit& edit) {
  return copy(
      g,
      [&](Graph& out, OpId id, const Op& op, const std::vector<TensorId>& operands) {
        return id == at ? edit(out, op, operands) : std::optional(copy_op(out, g, op, operands));
      });
}

}  // namespace

bool fits(const Graph& original, const Graph& edited) {
  if (original.inputs().size() != edited.inputs().size() ||
      original.outputs().size() != edited.outputs().size())
    return false;
  for (size_t i = 0; i < original.outputs().size(); i++)
    if (!(original.type(original.outputs()[i]) == edited.type(edited.outputs()[i]))) return false;
  try {
    validate(edited);
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::optional<Graph> replace_body(const Graph& g, int body, const Graph& new_body) {
  try {
    auto edited =
        copy(g, [&](Graph& out, OpId, const Op& op, const std::vector<TensorId>& operands) {
          if (int(op.body.index) != body || !op.body.valid())
            return std::optional(copy_op(out, g, op, operands));
          const TensorId first(out.tensors().size());
          out.add_graph_op(op.kind, operands, new_body);
          std::vector<TensorId> results;
          for (uint32_t r = 0; r < op.num_results; r++)
            results.push_back(TensorId(first.index + r));
          return std::optional(results);
        });
    if (edited && fits(g, *edited)) return edited;
  } catch (const Error&) {  // does not type-check: not applicable
  }
  return std::nullopt;
}

std::optional<Graph> edit_at(const Graph& g, const Site& site, const Edit& edit) {
  try {
    if (site.body >= 0) {
      auto body = edit_flat(g.bodies()[size_t(site.body)], site.op, edit);
      return body ? replace_body(g, site.body, *body) : std::nullopt;
    }
    auto edited = edit_flat(g, site.op, edit);
    if (edited && fits(g, *edited)) return edited;
  } catch (const Error&) {  // does not type-check: not applicable
  }
  return std::nullopt;
}

TensorId cut(Graph& g, TensorId x, size_t axis, int64_t start, int64_t stop) {
  SliceAttrs a;
  for (const Dim& d : g.type(x).shape) {
    a.starts.push_back(0);
    a.stops.push_back(d.extent);
    a.steps.push_back(1);
  }
  a.starts[axis] = start;
  a.stops[axis] = stop;
  return g.add(OpKind::Slice, {x}, a);
}

}  // namespace tessera
