#include "search/mugraph/wide_sums.h"

#include <algorithm>
#include <set>

#include "ir/build.h"
#include "ir/types.h"

namespace tessera::mugraph {
namespace {

bool narrow(DType d) { return is_float(d) && size_in_bytes(d) < 4; }

// The first sum that makes a tensor, apart from movement and other sums; null: it is none.
const Op* sum_of(const Graph& body, TensorId t) {
  for (const Op* sum = nullptr;;) {
    const Op& op = body.producer(t);
    const auto* a = std::get_if<AccumAttrs>(&op.attrs);
    const bool adds = is_sum(op.kind) || (op.kind == OpKind::Accum && a->kind == AccumKind::Sum);
    if (!adds && !has(op.kind, algebra::Movement)) return sum;
    if (adds) sum = &op;
    t = op.inputs[0];
  }
}

// Does a matmul read what argument `i` of the body holds? Its rows are worth more as pairs.
bool feeds_matmul(const Graph& body, size_t i) {
  const auto reads = [](const Op& op, TensorId t) {
    return std::ranges::find(op.inputs, t) != op.inputs.end();
  };
  for (const Op& iter : body.ops()) {
    if (!is_load(iter.kind) || iter.inputs[0] != body.inputs()[i]) continue;
    for (const Op& op : body.ops())
      if ((is_product(op.kind)) && reads(op, iter.result())) return true;
  }
  return false;
}

// The body with arguments and results of the types that `wide_in` and `wide_out` ask for.
Graph rewrite(const Graph& old, const std::vector<bool>& wide_in,
              const std::vector<bool>& wide_out) {
  Graph g = Graph::block(old.grid(), old.loops());
  std::vector<TensorId> to(old.tensors().size());
  std::vector<bool> widened(old.tensors().size(), false);
  for (size_t i = 0; i < wide_in.size(); ++i) widened[old.inputs()[i].index] = wide_in[i];
  const auto output = [&](TensorId t) {
    const auto at = std::ranges::find(old.outputs(), t);
    return at != old.outputs().end() && wide_out[size_t(at - old.outputs().begin())];
  };
  std::set<const Op*> sums;  // of these the terms are made wide
  for (size_t r = 0; r < wide_out.size(); ++r)
    if (wide_out[r]) sums.insert(sum_of(old, old.producer(old.outputs()[r]).inputs[0]));
  for (const Op& op : old.ops()) {
    const TensorId out = op.result();
    const std::string& name = old.tensor(out).name;
    std::vector<TensorId> in = mapped(
        op.inputs, [&](TensorId t) { return to[t.index]; });
    const auto cast = [&](TensorId t, DType dtype) {
      return g.type(t).dtype == dtype ? t : build::cast(g, t, {dtype});
    };
    if (is_input(op.kind)) {
      Type type = old.type(out);
      if (widened[out.index]) type.dtype = DType::F32;
      to[out.index] = g.add_input(type, name);
      continue;
    }
    if (is_store(op.kind)) {
      SaveAttrs a = old.attrs<SaveAttrs>(op);
      if (output(out)) a.type.dtype = DType::F32;
      to[out.index] = build::save(g, cast(in[0], a.type.dtype), a, name);
      continue;
    }
    // What is computed from a wide tensor is wide too: a cast back would round it.
    const bool wide =
        (is_sum(op.kind) && sums.count(&op) != 0) ||
        std::ranges::any_of(in, [&](TensorId t) { return g.type(t).dtype == DType::F32; });
    for (size_t i = 0; i < in.size(); ++i)
      if (op.body.valid())
        in[i] = cast(in[i], old.type(op.inputs[i]).dtype);
      else if (wide && !is_load(op.kind) && narrow(g.type(in[i]).dtype))
        in[i] = cast(in[i], DType::F32);
    std::vector<std::string> names;
    for (uint32_t r = 0; r < op.num_results; ++r) names.push_back(old.tensor(op.result(r)).name);
    const OpId id = op.body.valid() ? g.add_graph_op(op.kind, in, old.body(op), names)
                                    : g.add_op(op.kind, in, op.attrs, names);
    for (uint32_t r = 0; r < op.num_results; ++r) to[op.result(r).index] = g.op(id).result(r);
  }
  for (TensorId t : old.outputs()) g.add_output(to[t.index]);
  return g;
}

}  // namespace

Graph store_sums_wide(const Graph& old) {
  std::vector<bool> wide(old.tensors().size(), false);
  for (const Op& op : old.ops()) {
    if (!is_kernel(op.kind)) continue;
    const Graph& body = old.body(op);
    for (uint32_t r = 0; r < op.num_results; ++r) {
      const Op& save = body.producer(body.outputs()[r]);
      wide[op.result(r).index] =
          narrow(old.type(op.result(r)).dtype) && sum_of(body, save.inputs[0]) != nullptr;
    }
  }
  for (const Op& op : old.ops())
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (!is_kernel(op.kind) || feeds_matmul(old.body(op), i)) wide[op.inputs[i].index] = false;
  for (TensorId t : old.outputs()) wide[t.index] = false;
  if (std::ranges::find(wide, true) == wide.end()) return old;
  return map_kernels(old, [&](const Op& op) {
    std::vector<bool> wide_in, wide_out;
    for (TensorId t : op.inputs) wide_in.push_back(wide[t.index]);
    for (uint32_t r = 0; r < op.num_results; ++r) wide_out.push_back(wide[op.result(r).index]);
    return rewrite(old.body(op), wide_in, wide_out);
  });
}

}  // namespace tessera::mugraph
