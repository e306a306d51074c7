#include <algorithm>
#include <map>
#include <set>

#include "search/patterns/axes.h"
#include "search/patterns/loops.h"

// Primitives 1 to 3 and 5 as one rule that knows no order: a loop over an axis is shared by the
// operators of a parent that are joined by values having that axis, at the same *stage*, which
// counts how many loops over the axis had to end before. A producer and its consumer are at one
// stage unless the producer folds the axis (1, 2 against 3), and two producers meet through their
// consumer (5).
namespace tessera::patterns {
namespace {

constexpr size_t kMaxDerivedOps = 512;

struct Item {
  OpId id;
  std::vector<int> path;      // classes of axes, outermost first
  std::set<int> folded;       // of these, which it reduces over
  std::map<int, int> stages;  // by class
};

struct Node {
  Loop loop;
  std::vector<int> axes;
  std::set<uint32_t> tensors;  // that have the axis
};

class Deriver {
 public:
  Deriver(const Graph& g, std::vector<OpId> ops) : g_(g), axes_(g, ops) {
    std::ranges::sort(ops);
    ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
    for (OpId id : ops)
      if (!is_leaf(g.op(id).kind)) items_.push_back({id, {}, {}, {}});
  }

  Derived run() {
    Derived result;
    if (items_.size() > kMaxDerivedOps) return {{}, "more than 512 operators"};
    for (const Item& i : items_)
      if (!has_loops(g_, g_.op(i.id)))
        return {{}, std::string(name(g_.op(i.id).kind)) + " has no loop structure"};
    place();
    std::vector<size_t> all(items_.size());
    for (size_t i = 0; i < all.size(); i++) all[i] = i;
    std::vector<Node> roots = children(all, 0);
    if (!why_.empty()) return {{}, why_};
    for (Node& n : roots) result.loops.push_back(std::move(n.loop));
    return result;
  }

 private:
  // Iteration spaces, their order (axes of the hub as its loops are nested, then parallel ones of
  // one's own, then others), stages, and who depends on whom.
  void place() {
    std::map<uint32_t, size_t> producer;  // tensor → item
    for (size_t n = 0; n < items_.size(); n++) {
      Item& item = items_[n];
      const Op& op = g_.op(item.id);
      const std::vector<int> parallel = axes_.of(op.result());
      const std::vector<int> folded = axes_.folded(op);
      item.folded.insert(folded.begin(), folded.end());
      std::set<int> space(parallel.begin(), parallel.end());
      space.insert(folded.begin(), folded.end());
      space.erase(-1);

      std::vector<int> hub;
      depends_.emplace_back(items_.size(), false);
      for (TensorId t : op.inputs) {
        const auto found = producer.find(t.index);
        if (found == producer.end()) continue;
        const Item& from = items_[found->second];
        depends_[n][found->second] = true;
        for (size_t k = 0; k < items_.size(); k++)
          if (depends_[found->second][k]) depends_[n][k] = true;
        for (const auto& [axis, stage] : from.stages)
          item.stages[axis] = std::max(item.stages[axis], stage + int(from.folded.count(axis)));
        std::vector<int> shared;
        const std::vector<int> of = axes_.of(t);
        for (int a : from.path)
          if (space.count(a) && std::ranges::find(of, a) != of.end()) shared.push_back(a);
        if (shared.size() > hub.size()) hub = std::move(shared);
      }
      const auto add = [&](int axis) {
        if (axis >= 0 && std::ranges::find(item.path, axis) == item.path.end())
          item.path.push_back(axis);
      };
      for (int a : hub) add(a);
      for (int a : parallel) add(a);
      for (int a : folded) add(a);
      for (int a : item.path) item.stages[a];
      producer[op.result().index] = n;
    }
    sink();
  }

  // What is computed of smaller tensors alone (1 + gamma) is computed again in its consumer's
  // loops.
  void sink() {
    const auto pointwise = [&](size_t n) {
      return tessera::has(g_.op(items_[n].id).kind, algebra::Pointwise);
    };
    for (size_t n = items_.size(); n-- > 0;) {
      bool sinks = pointwise(n);
      for (size_t k = 0; k < n; k++) sinks = sinks && (!depends_[n][k] || pointwise(k));
      const TensorId result = g_.op(items_[n].id).result();
      for (size_t user = n + 1; sinks && user < items_.size(); user++) {
        const std::vector<TensorId>& reads = g_.op(items_[user].id).inputs;
        if (!pointwise(user) || !std::ranges::count(reads, result)) continue;
        const std::vector<int>& path = items_[user].path;
        if (path.size() <= items_[n].path.size() ||
            !std::ranges::all_of(items_[n].path,
                                 [&](int a) { return std::ranges::count(path, a) > 0; }))
          continue;
        items_[n].path = path;
        items_[n].stages = items_[user].stages;
        break;
      }
    }
  }

  // The loops that `members`, which share all outer loops, have at this depth.
  std::vector<Node> children(const std::vector<size_t>& members, size_t depth) {
    std::vector<std::vector<size_t>> groups;
    std::vector<size_t> group_of(items_.size(), SIZE_MAX);
    for (size_t m : members) {
      if (items_[m].path.size() <= depth) continue;
      group_of[m] = groups.size();
      groups.push_back({m});
    }
    const auto same_loop = [&](size_t a, size_t b) {
      const int axis = items_[a].path[depth];
      return axis == items_[b].path[depth] && items_[a].stages[axis] == items_[b].stages[axis];
    };
    // Join along values; the tensor between them has the axis, as neither folded it before.
    for (size_t consumer : members) {
      if (group_of[consumer] == SIZE_MAX) continue;
      for (TensorId t : g_.op(items_[consumer].id).inputs) {
        for (size_t m : members) {
          if (group_of[m] == SIZE_MAX || g_.op(items_[m].id).result().index != t.index) continue;
          const size_t a = group_of[m], b = group_of[consumer];
          if (a == b || !same_loop(m, consumer)) continue;
          for (size_t moved : groups[b]) group_of[moved] = a;
          groups[a].insert(groups[a].end(), groups[b].begin(), groups[b].end());
          groups[b].clear();
        }
      }
    }
    std::erase_if(groups, [](const auto& group) { return group.empty(); });
    std::vector<Node> nodes;
    for (std::vector<size_t>& group : groups) {
      std::ranges::sort(group);
      nodes.push_back(node(group, depth));
    }
    return ordered(std::move(nodes), groups);
  }

  Node node(const std::vector<size_t>& group, size_t depth) {
    const int axis = items_[group[0]].path[depth];
    Node n;
    n.axes = {axis};
    n.loop.size = {axes_.extent(axis)};
    std::vector<size_t> own;
    for (size_t m : group) {
      const Op& op = g_.op(items_[m].id);
      if (items_[m].folded.count(axis)) n.loop.parallel = false;
      // An operator's name stands with the innermost loop it folds, or with its innermost loop.
      if (items_[m].path.size() == depth + 1) own.push_back(m);
      if (label_depth(items_[m]) == depth) n.loop.ops.push_back(loop_op(op.kind));
      for (TensorId t : op.inputs)
        if (axes_.has(t, axis)) n.tensors.insert(t.index);
      if (axes_.has(op.result(), axis)) n.tensors.insert(op.result().index);
    }
    touch(own.empty() ? group : own, n.loop);
    std::vector<Node> inner = children(group, depth + 1);
    if (inner.size() == 1 && own.empty() && n.loop.ops.empty() &&
        inner[0].loop.parallel == n.loop.parallel && inner[0].tensors == n.tensors) {
      // Primitive 4.
      Node merged = std::move(inner[0]);
      merged.loop.size.insert(merged.loop.size.begin(), n.loop.size.begin(), n.loop.size.end());
      return merged;
    }
    for (Node& child : inner) n.loop.children.push_back(std::move(child.loop));
    return n;
  }

  static size_t label_depth(const Item& item) {
    for (size_t d = item.path.size(); d-- > 0;)
      if (item.folded.count(item.path[d])) return d;
    return item.path.size() - 1;
  }

  // What the operators read from elsewhere and what of theirs is read elsewhere.
  void touch(const std::vector<size_t>& members, Loop& loop) const {
    std::set<uint32_t> made, read_outside;
    for (size_t m : members) made.insert(g_.op(items_[m].id).result().index);
    for (TensorId t : g_.outputs()) read_outside.insert(t.index);
    for (uint32_t i = 0; i < g_.ops().size(); i++) {
      const Op& op = g_.op(OpId(i));
      if (op.num_results == 1 && made.count(op.result().index)) continue;
      for (TensorId t : op.inputs) read_outside.insert(t.index);
    }
    std::set<uint32_t> seen;
    for (size_t m : members) {
      const Op& op = g_.op(items_[m].id);
      for (TensorId t : op.inputs)
        if (!made.count(t.index) && !g_.op(g_.tensor(t).producer).constant() &&
            seen.insert(t.index).second)
          loop.inputs.push_back(t);
      if (read_outside.count(op.result().index)) loop.outputs.push_back(op.result());
    }
  }

  // Loops that need others' values come later; those that may come in either order, by their text.
  std::vector<Node> ordered(std::vector<Node> nodes,
                            const std::vector<std::vector<size_t>>& groups) {
    const size_t n = nodes.size();
    std::vector<std::vector<bool>> needs(n, std::vector<bool>(n, false));
    for (size_t a = 0; a < n; a++)
      for (size_t b = 0; b < n; b++)
        for (size_t x : groups[a])
          for (size_t y : groups[b])
            if (a != b && depends_[x][y]) needs[a][b] = true;
    std::vector<Node> result;
    std::vector<bool> done(n, false);
    while (result.size() < n) {
      size_t best = n;
      std::string text;
      for (size_t i = 0; i < n; i++) {
        if (done[i]) continue;
        bool ready = true;
        for (size_t k = 0; k < n; k++) ready = ready && (done[k] || !needs[i][k]);
        if (!ready) continue;
        std::string mine = print({nodes[i].loop});
        if (best != n && mine >= text) continue;
        best = i;
        text = std::move(mine);
      }
      if (best == n) {
        why_ = "no order of its loops respects the data flow";
        return {};
      }
      done[best] = true;
      result.push_back(std::move(nodes[best]));
    }
    return result;
  }

  const Graph& g_;
  Axes axes_;
  std::vector<Item> items_;
  std::vector<std::vector<bool>> depends_;  // transitively, by item
  std::string why_;
};

}  // namespace

Derived derive(const Graph& g, const std::vector<OpId>& ops) { return Deriver(g, ops).run(); }

Derived derive(const Graph& g) { return derive(g, all_ops(g)); }

}  // namespace tessera::patterns
