#include "driver/partition.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/interruption.h"
#include "base/union_find.h"
#include "ir/build.h"
#include "ir/weights.h"
#include "search/axis_classes.h"
#include "search/mugraph/refine.h"

namespace tessera {
namespace {

bool computes(const Graph& g, const Op& op) {
  if (has(op.kind, algebra::Pointwise)) return true;
  if (op.kind == OpKind::Reshape)  // keeps every axis where it only adds or drops unit dimensions
    return only_units_differ(g.type(op.inputs[0]).shape, g.type(op.result()).shape);
  return op.constant() || is_reduction(op.kind) || is_product(op.kind) || arranges(op.kind);
}

// The most operators of parts joined across reshapes. Larger programs have layers, and equal layers
// are searched once only where they are parts of their own.
constexpr size_t kMostJoined = 48;

class Partition {
 public:
  explicit Partition(const Graph& g, const std::vector<bool>& apart = {})
      : g_(g), compute_(g.ops().size(), false), groups_(g.ops().size()) {
    CHECK(g.level() == Level::Kernel) << "partition of a " << name(g.level()) << " graph";
    // level: how often a path from the inputs goes from computing to other operators, at most.
    // Levels never fall along an edge and rise where a path leaves, so a connected set of computing
    // operators of one level is convex.
    const size_t n = g.ops().size();
    std::vector<int> level(n, 0);
    const std::vector<bool> once = computed_once(g, true);
    for (size_t i = 0; i < n; i++) {
      const Op& op = g.ops()[i];
      if (is_input(op.kind)) continue;
      // What depends on weights alone is computed once: it stays outside, and parts see its results
      // as weights.
      compute_[i] = computes(g, op) && !once[i] && (apart.empty() || !apart[i]);
      for (TensorId t : op.inputs) {
        const size_t p = producer(t);
        if (is_source(p)) continue;
        level[i] = std::max(level[i], level[p] + (compute_[p] && !compute_[i]));
      }
      for (TensorId t : op.inputs) {
        const size_t p = producer(t);
        const bool constant = g.ops()[p].constant();
        if (compute_[i] && compute_[p] && !constant && level[i] == level[p]) groups_.join(i, p);
      }
    }
  }

  // Merges come first: what was merged is often contracted at once, and then need not be stored.
  void join_across_reshapes() {
    std::vector<size_t> joined;
    for (bool merges : {true, false}) {
      for (size_t i = 0; i < g_.ops().size(); i++) {
        const Op& op = g_.ops()[i];
        if (op.kind != OpKind::Reshape || compute_[i]) continue;
        const Type &from = g_.type(op.inputs[0]), &to = g_.type(op.result());
        if (merges != (to.shape.size() < from.shape.size()) || !is_float(to.dtype)) continue;
        if (mugraph::merges_or_splits(from.shape, to.shape) && join_across(i)) joined.push_back(i);
      }
    }
    // What these reshapes kept apart: other operands, at a lower level only because of them.
    for (size_t i = 0; i < g_.ops().size(); i++) {
      if (!compute_[i]) continue;
      for (TensorId t : g_.ops()[i].inputs) {
        const size_t p = producer(t), mine = groups_.find(i);
        const bool beside =
            std::ranges::any_of(joined, [&](size_t r) { return groups_.find(r) == mine; });
        if (!beside || !compute_[p] || is_source(p) || groups_.find(p) == mine) continue;
        const UnionFind before = groups_;
        groups_.join(i, p);
        if (!fits(i)) groups_ = before;
      }
    }
  }

  std::vector<Part> parts() {
    std::map<size_t, std::vector<OpId>> members;
    for (size_t i = 0; i < g_.ops().size(); i++)
      if (compute_[i] && !g_.ops()[i].constant()) members[groups_.find(i)].push_back(OpId(i));
    std::vector<Part> parts;
    for (auto& [root, ops] : members) {
      bool worth = ops.size() > 1 || (!has(g_.op(ops[0]).kind, algebra::Pointwise) &&
                                      !has(g_.op(ops[0]).kind, algebra::Movement));
      if (!worth) continue;
      parts.push_back(part_of(g_, std::move(ops)));
    }
    return parts;
  }

 private:
  size_t producer(TensorId t) const { return g_.tensor(t).producer.index; }
  bool is_source(size_t i) const { return is_given(g_.ops()[i].kind); }

  // Makes one group of the reshape, of what it reads and of what reads it; false where it may not.
  bool join_across(size_t reshape) {
    interruption_point();
    const size_t from = producer(g_.ops()[reshape].inputs[0]);
    if (!compute_[from] || is_source(from)) return false;
    const UnionFind before = groups_;
    bool read = false;
    for (size_t u = 0; u < g_.ops().size(); u++) {
      for (TensorId t : g_.ops()[u].inputs) {
        if (producer(t) != reshape || !compute_[u]) continue;
        groups_.join(reshape, u);
        read = true;
      }
    }
    groups_.join(reshape, from);
    compute_[reshape] = true;
    if (read && fits(reshape)) return true;
    groups_ = before;
    compute_[reshape] = false;
    return false;
  }

  // Whether the operator's group may be a part.
  bool fits(size_t op) {
    interruption_point();
    const size_t group = groups_.find(op);
    size_t n = 0;
    for (size_t i = 0; i < g_.ops().size(); i++) n += groups_.find(i) == group;
    return n <= kMostJoined && ordered();
  }

  // Whether groups can be computed one after another.
  bool ordered() {
    interruption_point();
    const size_t n = g_.ops().size();
    std::vector<std::vector<size_t>> next(n);
    std::vector<int> waits(n, 0);
    for (size_t i = 0; i < n; i++) {
      for (TensorId t : g_.ops()[i].inputs) {
        const size_t a = groups_.find(producer(t)), b = groups_.find(i);
        if (a == b || is_source(producer(t))) continue;
        next[a].push_back(b);
        ++waits[b];
      }
    }
    std::vector<size_t> ready;
    size_t groups = 0, done = 0;
    for (size_t i = 0; i < n; i++) {
      if (groups_.find(i) != i) continue;
      ++groups;
      if (waits[i] == 0) ready.push_back(i);
    }
    for (; !ready.empty(); ++done) {
      const size_t a = ready.back();
      ready.pop_back();
      for (size_t b : next[a])
        if (--waits[b] == 0) ready.push_back(b);
    }
    return done == groups;
  }

  const Graph& g_;
  std::vector<bool> compute_;
  UnionFind groups_;
};

}  // namespace

Part part_of(const Graph& g, std::vector<OpId> ops) {
  interruption_point();
  std::set<OpId> all(ops.begin(), ops.end());
  for (OpId id : ops)
    for (TensorId t : g.op(id).inputs)
      if (g.producer(t).constant()) all.insert(g.tensor(t).producer);
  ops.assign(all.begin(), all.end());
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
  for (OpId id : part.ops) copy_op(g, g.op(id), part.graph, to);
  std::vector<bool> escapes(g.tensors().size(), false);
  for (size_t i = 0; i < g.ops().size(); i++)
    if (!inside[i])
      for (TensorId t : g.ops()[i].inputs) escapes[t.index] = true;
  for (TensorId t : g.outputs()) escapes[t.index] = true;
  for (OpId id : part.ops) {
    TensorId t = g.op(id).result();
    if (!escapes[t.index] || g.op(id).constant()) continue;  // constants also stay outside
    part.outputs.push_back(t);
    part.graph.add_output(to[t.index]);
  }
  return part;
}

std::vector<Part> partition(const Graph& g) { return Partition(g).parts(); }

std::vector<Part> partition_across_reshapes(const Graph& g, const std::vector<bool>& apart) {
  Partition p(g, apart);
  p.join_across_reshapes();
  return p.parts();
}

Graph splice(const Graph& g, const std::vector<Part>& parts,
             const std::vector<Graph>& replacements) {
  CHECK(parts.size() == replacements.size()) << "one replacement per part";
  std::vector<int> part_of(g.ops().size(), -1);
  for (size_t p = 0; p < parts.size(); p++)
    for (OpId id : parts[p].ops)
      if (!g.op(id).constant()) part_of[id.index] = int(p);

  Graph out(g.name());
  std::vector<TensorId> to(g.tensors().size());
  std::vector<bool> done(parts.size(), false), placed(g.ops().size(), false);

  auto insert = [&](size_t p) {
    const Part& part = parts[p];
    const Graph& r = replacements[p];
    bool same =
        r.inputs().size() == part.inputs.size() && r.outputs().size() == part.outputs.size();
    for (size_t i = 0; same && i < part.inputs.size(); i++)
      same = r.type(r.inputs()[i]) == g.type(part.inputs[i]);
    for (size_t i = 0; same && i < part.outputs.size(); i++)
      same = r.type(r.outputs()[i]) == g.type(part.outputs[i]);
    if (!same) bad_input("a replacement's interface differs from its part's");
    std::vector<TensorId> inputs = mapped(part.inputs, [&](TensorId t) { return to[t.index]; });
    const std::vector<TensorId> outputs = build::graph(out, r, inputs);
    for (size_t i = 0; i < outputs.size(); i++) to[part.outputs[i].index] = outputs[i];
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
      if (part_of[i] >= 0) {
        size_t p = size_t(part_of[i]);
        if (!done[p]) {
          bool ready =
              std::ranges::all_of(parts[p].inputs, [&](TensorId t) { return to[t.index].valid(); });
          if (!ready) continue;
          insert(p);
        }
      } else {
        bool ready =
            std::ranges::all_of(op.inputs, [&](TensorId t) { return to[t.index].valid(); });
        if (!ready) continue;
        copy_op(g, op, out, to);
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
