#include "driver/partition.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "ir/weights.h"

namespace tessera {
namespace {

// Reshapes that only add or drop unit dimensions keep every axis.
bool keeps_axes(const Graph& g, const Op& op) {
  auto real = [](const Shape& s) {
    Shape r;
    for (const Dim& d : s)
      if (!d.is_one()) r.push_back(d);
    return r;
  };
  return real(g.type(op.inputs[0]).shape) == real(g.type(op.result()).shape);
}

bool computes(const Graph& g, const Op& op) {
  if (has(op.kind, algebra::Pointwise)) return true;
  if (op.kind == OpKind::Reshape) return keeps_axes(g, op);
  static const std::vector<OpKind> others = {
      OpKind::Const,     OpKind::Sum,     OpKind::Mean,        OpKind::ReduceMax,
      OpKind::ReduceMin, OpKind::Matmul,  OpKind::Transpose,   OpKind::Broadcast,
      OpKind::Unsqueeze, OpKind::Squeeze, OpKind::ConcatMatmul};
  return std::find(others.begin(), others.end(), op.kind) != others.end();
}

struct UnionFind {
  std::vector<size_t> parent;
  explicit UnionFind(size_t n) : parent(n) { std::iota(parent.begin(), parent.end(), size_t(0)); }
  size_t find(size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  }
  void join(size_t a, size_t b) { parent[std::max(find(a), find(b))] = std::min(find(a), find(b)); }
};

Part extract(const Graph& g, std::vector<OpId> ops) {
  const std::vector<bool> once = computed_once(g, true);
  Part part;
  part.ops = std::move(ops);
  part.graph = Graph(g.name());
  std::vector<TensorId> to(g.tensors().size());
  std::vector<bool> inside(g.ops().size(), false);
  for (OpId id : part.ops) inside[id.index] = true;
  for (OpId id : part.ops)
    for (TensorId t : g.op(id).inputs) {
      if (inside[g.tensor(t).producer.index] || to[t.index].valid()) continue;
      part.inputs.push_back(t);
      const bool weight = g.is_weight(t) || once[g.tensor(t).producer.index];
      to[t.index] = part.graph.add_input(g.type(t), g.tensor(t).name, weight);
    }
  for (OpId id : part.ops) {
    const Op& op = g.op(id);
    std::vector<TensorId> inputs;
    for (TensorId t : op.inputs) inputs.push_back(to[t.index]);
    to[op.result().index] = part.graph.add(op.kind, inputs, op.attrs, g.tensor(op.result()).name);
  }
  std::vector<bool> escapes(g.tensors().size(), false);
  for (size_t i = 0; i < g.ops().size(); i++)
    if (!inside[i])
      for (TensorId t : g.ops()[i].inputs) escapes[t.index] = true;
  for (TensorId t : g.outputs()) escapes[t.index] = true;
  for (OpId id : part.ops) {
    TensorId t = g.op(id).result();
    if (!escapes[t.index] || g.op(id).kind == OpKind::Const)
      continue;  // constants also stay outside
    part.outputs.push_back(t);
    part.graph.add_output(to[t.index]);
  }
  return part;
}

}  // namespace

std::vector<Part> partition(const Graph& g) {
  CHECK(g.level() == Level::Kernel) << "partition of a " << name(g.level()) << " graph";
  // level: how often a path from the inputs goes from computing to other operators, at most.
  // Levels never fall along an edge and rise where a path leaves, so a connected set of computing
  // operators of one level is convex.
  size_t n = g.ops().size();
  std::vector<int> level(n, 0);
  std::vector<bool> compute(n, false);
  UnionFind groups(n);
  const std::vector<bool> once = computed_once(g, true);
  for (size_t i = 0; i < n; i++) {
    const Op& op = g.ops()[i];
    if (op.kind == OpKind::Input) continue;
    // What depends on weights alone is computed once: it stays outside, and parts see its results
    // as weights.
    compute[i] = computes(g, op) && !once[i];
    for (TensorId t : op.inputs) {
      size_t p = g.tensor(t).producer.index;
      const OpKind kind = g.ops()[p].kind;
      if (kind == OpKind::Input || kind == OpKind::Const) continue;
      level[i] = std::max(level[i], level[p] + (compute[p] && !compute[i]));
    }
    for (TensorId t : op.inputs) {
      size_t p = g.tensor(t).producer.index;
      bool constant = g.ops()[p].kind == OpKind::Const;
      if (compute[i] && compute[p] && !constant && level[i] == level[p]) groups.join(i, p);
    }
  }
  std::map<size_t, std::vector<OpId>> members;
  for (size_t i = 0; i < n; i++)
    if (compute[i] && g.ops()[i].kind != OpKind::Const) members[groups.find(i)].push_back(OpId(i));
  std::vector<Part> parts;
  for (auto& [root, ops] : members) {
    bool worth = ops.size() > 1 || (!has(g.op(ops[0]).kind, algebra::Pointwise) &&
                                    !has(g.op(ops[0]).kind, algebra::Movement));
    if (!worth) continue;
    // Constants belong to every part that uses them.
    std::vector<OpId> all = ops;
    for (OpId id : ops)
      for (TensorId t : g.op(id).inputs)
        if (g.producer(t).kind == OpKind::Const) all.push_back(g.tensor(t).producer);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    parts.push_back(extract(g, std::move(all)));
  }
  return parts;
}

Graph splice(const Graph& g, const std::vector<Part>& parts,
             const std::vector<Graph>& replacements) {
  CHECK(parts.size() == replacements.size()) << "one replacement per part";
  std::vector<int> part_of(g.ops().size(), -1);
  for (size_t p = 0; p < parts.size(); p++)
    for (OpId id : parts[p].ops)
      if (g.op(id).kind != OpKind::Const) part_of[id.index] = int(p);

  Graph out(g.name());
  std::vector<TensorId> to(g.tensors().size());
  std::vector<bool> done(parts.size(), false), placed(g.ops().size(), false);

  auto copy_op = [](Graph& into, const Graph& from, const Op& op, std::vector<TensorId>& map) {
    std::vector<TensorId> inputs;
    for (TensorId t : op.inputs) inputs.push_back(map[t.index]);
    std::vector<std::string> names;
    for (uint32_t r = 0; r < op.num_results; r++) names.push_back(from.tensor(op.result(r)).name);
    TensorId first(into.tensors().size());
    if (op.body.valid())
      into.add_graph_op(op.kind, inputs, from.body(op), names);
    else
      into.add_op(op.kind, inputs, op.attrs, names);
    for (uint32_t r = 0; r < op.num_results; r++)
      map[op.result(r).index] = TensorId(first.index + r);
  };
  auto insert = [&](size_t p) {
    const Part& part = parts[p];
    const Graph& r = replacements[p];
    bool same =
        r.inputs().size() == part.inputs.size() && r.outputs().size() == part.outputs.size();
    for (size_t i = 0; same && i < part.inputs.size(); i++)
      same = r.type(r.inputs()[i]) == g.type(part.inputs[i]);
    for (size_t i = 0; same && i < part.outputs.size(); i++)
      same = r.type(r.outputs()[i]) == g.type(part.outputs[i]);
    if (!same)
      throw Error(ErrorKind::BadInput, "a replacement's interface differs from its part's");
    std::vector<TensorId> map(r.tensors().size());
    for (size_t i = 0; i < part.inputs.size(); i++)
      map[r.inputs()[i].index] = to[part.inputs[i].index];
    for (const Op& op : r.ops())
      if (op.kind != OpKind::Input) copy_op(out, r, op, map);
    for (size_t i = 0; i < part.outputs.size(); i++)
      to[part.outputs[i].index] = map[r.outputs()[i].index];
    done[p] = true;
  };

  // Emits whatever has its operands, in program order, until everything is placed: a part waits for
  // all its inputs, which convexity guarantees to arrive.
  size_t left = g.ops().size();
  while (left > 0) {
    size_t before = left;
    for (size_t i = 0; i < g.ops().size(); i++) {
      if (placed[i]) continue;
      const Op& op = g.ops()[i];
      if (op.kind == OpKind::Input) {
        to[op.result().index] = out.add_input(g.type(op.result()), g.tensor(op.result()).name,
                                              g.is_weight(op.result()));
      } else if (part_of[i] >= 0) {
        size_t p = size_t(part_of[i]);
        if (!done[p]) {
          bool ready = std::all_of(parts[p].inputs.begin(), parts[p].inputs.end(),
                                   [&](TensorId t) { return to[t.index].valid(); });
          if (!ready) continue;
          insert(p);
        }
      } else {
        bool ready = std::all_of(op.inputs.begin(), op.inputs.end(),
                                 [&](TensorId t) { return to[t.index].valid(); });
        if (!ready) continue;
        copy_op(out, g, op, to);
      }
      placed[i] = true;
      left--;
    }
    CHECK(left < before) << "parts are not convex";
  }
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

}  // namespace tessera
