#include "search/mugraph/threads.h"

#include <algorithm>
#include <map>

#include "ir/block.h"

namespace tessera::mugraph {
namespace {

bool fuses(OpKind kind) { return has(kind, algebra::Pointwise) && !is_extremum(kind); }

// The group of each operator, named by its last member; -1: none.
std::vector<int> group(const Graph& g) {
  const std::vector<Phase> phase = phases(g);
  std::vector<std::vector<int>> users(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); ++i)
    for (TensorId t : g.ops()[i].inputs) users[t.index].push_back(int(i));
  std::vector<int> groups(g.ops().size(), -1);
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    if (!fuses(op.kind)) continue;
    groups[i] = int(i);
    const std::vector<int>& uses = users[op.result().index];
    const int to = uses.empty() ? -1 : groups[size_t(uses[0])];
    const bool one =
        to >= 0 && std::ranges::all_of(uses, [&](int u) { return groups[size_t(u)] == to; });
    if (!one) continue;
    const TensorId end = g.ops()[size_t(to)].result(), mine = op.result();
    if (g.type(mine).shape == g.type(end).shape && phase[mine.index] == phase[end.index])
      groups[i] = to;
  }
  return groups;
}

Graph fuse_block(const Graph& old) {
  const std::vector<int> groups = group(old);
  std::map<int, std::vector<const Op*>> members;
  for (size_t i = 0; i < old.ops().size(); ++i)
    if (groups[i] >= 0) members[groups[i]].push_back(&old.ops()[i]);
  Graph g = Graph::block(old.grid(), old.loops());
  std::vector<TensorId> now(old.tensors().size());
  for (size_t i = 0; i < old.ops().size(); ++i) {
    const Op& op = old.ops()[i];
    const bool chain = groups[i] >= 0 && members[groups[i]].size() > 1;
    if (chain && groups[i] != int(i)) continue;  // written with the last member
    if (!chain) {
      copy_op(old, op, g, now);
      continue;
    }
    std::vector<TensorId> in;
    Graph body = Graph::thread();
    std::map<uint32_t, TensorId> inside;
    for (const Op* member : members[groups[i]]) {
      std::vector<TensorId> operands;
      for (TensorId t : member->inputs) {
        auto [it, fresh] = inside.try_emplace(t.index);
        if (fresh) {
          const Op& from = old.producer(t);
          if (from.constant()) {
            it->second = body.add_const(*from.constant(), old.type(t));
          } else {
            it->second = body.add_input(old.type(t), old.tensor(t).name);
            in.push_back(now[t.index]);
          }
        }
        operands.push_back(it->second);
      }
      inside[member->result().index] =
          body.add(member->kind, operands, member->attrs, old.tensor(member->result()).name);
    }
    body.add_output(inside.at(op.result().index));
    if (in.empty()) return old;  // of constants only
    const OpId id =
        g.add_graph_op(OpKind::Thread, in, std::move(body), {old.tensor(op.result()).name});
    now[op.result().index] = g.op(id).result();
  }
  for (TensorId t : old.outputs()) g.add_output(now[t.index]);
  return without_dead_code(g);
}

}  // namespace

Graph form_thread_graphs(const Graph& graph) {
  return map_kernels(
      graph, [&](const Op& op) { return fuse_block(graph.body(op)); });
}

}  // namespace tessera::mugraph
