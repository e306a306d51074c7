#include "plan/plan.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace tessera {
namespace {

// Same elements in the same order as the operand: no code, the same memory.
bool only_renames(OpKind kind) {
  return kind == OpKind::Reshape || kind == OpKind::Squeeze || kind == OpKind::Unsqueeze;
}

// For each tensor the one whose memory it lives in.
std::vector<uint32_t> memory_roots(const Graph& graph) {
  std::vector<bool> is_output(graph.tensors().size(), false);
  for (TensorId t : graph.outputs()) is_output[t.index] = true;
  std::vector<uint32_t> root(graph.tensors().size());
  for (uint32_t i = 0; i < root.size(); ++i) root[i] = i;
  for (const Op& op : graph.ops()) {
    // A result the caller gets is written to the caller's array.
    if (only_renames(op.kind) && !is_output[op.result().index]) {
      root[op.result().index] = root[op.inputs[0].index];
    }
  }
  return root;
}

std::vector<bool> live_ops(const Graph& graph) {
  std::vector<bool> live(graph.ops().size(), false), wanted(graph.tensors().size(), false);
  for (TensorId t : graph.outputs()) wanted[t.index] = true;
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    for (uint32_t r = 0; r < op.num_results; ++r) live[i] = live[i] || wanted[op.result(r).index];
    if (!live[i]) continue;
    for (TensorId t : op.inputs) wanted[t.index] = true;
  }
  return live;
}

// Intermediates between operators, for the question how much is alive when.
struct Liveness {
  explicit Liveness(const Graph& graph)
      : root(memory_roots(graph)), bytes(graph.tensors().size(), 0) {
    std::vector<bool> is_output(graph.tensors().size(), false);
    for (TensorId t : graph.outputs()) is_output[t.index] = true;
    for (const Op& op : graph.ops()) {
      if (op.kind == OpKind::Input || op.kind == OpKind::Const) continue;
      for (uint32_t r = 0; r < op.num_results; ++r) {
        const uint32_t t = op.result(r).index;
        if (root[t] == t && !is_output[t]) bytes[t] = graph.type(op.result(r)).bytes();
      }
    }
  }
  std::vector<uint32_t> root;
  std::vector<int64_t> bytes;  // of tensors with memory of their own in the arena
};

}  // namespace

int64_t peak_live_bytes(const Graph& graph, const std::vector<OpId>& order) {
  const Liveness live(graph);
  std::vector<size_t> last(graph.tensors().size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    for (TensorId t : graph.op(order[i]).inputs) last[live.root[t.index]] = i;
  }
  int64_t now = 0, peak = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Op& op = graph.op(order[i]);
    for (uint32_t r = 0; r < op.num_results; ++r) {
      now += live.bytes[op.result(r).index];
      last[op.result(r).index] = std::max(last[op.result(r).index], i);
    }
    peak = std::max(peak, now);
    for (size_t t = 0; t < last.size(); ++t) {
      // Each tensor dies once: at its last use, which is not before its birth.
      if (live.bytes[t] == 0 || last[t] != i) continue;
      const OpId producer = graph.tensors()[t].producer;
      const bool born = std::find(order.begin(), order.begin() + static_cast<long>(i) + 1,
                                  producer) != order.begin() + static_cast<long>(i) + 1;
      if (born) now -= live.bytes[t];
    }
  }
  return peak;
}

std::vector<OpId> schedule(const Graph& graph) {
  const std::vector<bool> live = live_ops(graph);
  std::vector<OpId> ops;  // as given
  std::vector<int> position(graph.ops().size(), -1);
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    if (!live[i] || graph.ops()[i].kind == OpKind::Input) continue;
    position[i] = static_cast<int>(ops.size());
    ops.push_back(OpId(i));
  }
  const size_t n = ops.size();
  constexpr size_t kExact = 16;
  if (n < 3 || n > kExact) return ops;
  // Least peak over all orders, by dynamic programming over the set of operators already run.
  const Liveness liveness(graph);
  std::vector<uint32_t> needs(n, 0);
  for (size_t i = 0; i < n; ++i) {
    for (TensorId t : graph.op(ops[i]).inputs) {
      const int p = position[graph.tensor(t).producer.index];
      if (p >= 0) needs[i] |= 1u << p;
    }
  }
  // Operators reading the memory of each result; it is alive until all of them have run.
  std::vector<uint32_t> readers(graph.tensors().size(), 0);
  for (size_t i = 0; i < n; ++i) {
    for (TensorId t : graph.op(ops[i]).inputs) readers[liveness.root[t.index]] |= 1u << i;
  }
  const auto alive = [&](uint32_t set) {
    int64_t sum = 0;
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) == 0) continue;
      const Op& op = graph.op(ops[i]);
      for (uint32_t r = 0; r < op.num_results; ++r) {
        const uint32_t t = op.result(r).index;
        if ((readers[t] & ~set) != 0) sum += liveness.bytes[t];
      }
    }
    return sum;
  };
  const auto own = [&](size_t i) {
    int64_t sum = 0;
    const Op& op = graph.op(ops[i]);
    for (uint32_t r = 0; r < op.num_results; ++r) sum += liveness.bytes[op.result(r).index];
    return sum;
  };
  const uint32_t all = (1u << n) - 1;
  std::vector<int64_t> best(all + 1, INT64_MAX);
  std::vector<int8_t> choice(all + 1, -1);
  best[0] = 0;
  for (uint32_t set = 0; set < all; ++set) {
    if (best[set] == INT64_MAX) continue;
    const int64_t before = alive(set);
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) != 0 || (needs[i] & ~set) != 0) continue;
      const uint32_t next = set | 1u << i;
      const int64_t peak = std::max(best[set], before + own(i));
      // On a tie the operator that comes later in the given order runs last.
      if (peak < best[next] || (peak == best[next] && static_cast<int>(i) > choice[next])) {
        best[next] = peak;
        choice[next] = static_cast<int8_t>(i);
      }
    }
  }
  std::vector<OpId> order(n);
  uint32_t set = all;
  for (size_t k = n; k-- > 0;) {
    const size_t i = static_cast<size_t>(choice[set]);
    order[k] = ops[i];
    set &= ~(1u << i);
  }
  return order;
}

Plan plan_kernel_graph(const Graph& graph) {
  CHECK(graph.level() == Level::Kernel);
  Plan plan;
  const std::vector<OpId> order = schedule(graph);
  const std::vector<uint32_t> root = memory_roots(graph);
  plan.tensors.resize(graph.tensors().size());
  plan.peak_live_bytes = peak_live_bytes(graph, order);
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    plan.tensors[graph.inputs()[i].index] = {Place::Input, static_cast<int>(i), 0, -1, {}};
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const TensorId t = graph.outputs()[i];
    TensorPlan& p = plan.tensors[t.index];
    const OpKind producer = graph.producer(t).kind;
    if (p.place != Place::Arena || producer == OpKind::Input) {
      plan.copies.push_back({t, static_cast<int>(i)});
    } else {
      p = {Place::Output, static_cast<int>(i), 0, -1, {}};
    }
  }
  std::vector<MemoryRequest> requests;
  std::map<uint32_t, size_t> request_of;
  for (size_t i = 0; i < order.size(); ++i) {
    const Op& op = graph.op(order[i]);
    const int now = static_cast<int>(i);
    for (TensorId t : op.inputs) {
      const auto it = request_of.find(root[t.index]);
      if (it != request_of.end()) requests[it->second].death = now;
    }
    for (uint32_t r = 0; r < op.num_results; ++r) {
      const TensorId t = op.result(r);
      TensorPlan& p = plan.tensors[t.index];
      if (root[t.index] != t.index) {
        p.alias = static_cast<int>(root[t.index]);
        continue;
      }
      if (p.place == Place::Output) continue;
      if (op.kind == OpKind::Const) {
        p.place = Place::Constant;
        continue;
      }
      const std::string& name = graph.tensor(t).name;
      request_of[t.index] = requests.size();
      requests.push_back(
          {name.empty() ? "t" + std::to_string(t.index) : name, graph.type(t).bytes(), now, now});
    }
    const bool renames = plan.tensors[op.result().index].alias >= 0;
    const bool constant = plan.tensors[op.result().index].place == Place::Constant;
    if (!renames && !constant) plan.order.push_back(order[i]);
  }
  const MemoryPlan memory = plan_memory(requests);
  for (const auto& [tensor, request] : request_of)
    plan.tensors[tensor].offset = memory.offsets[request];
  plan.arena_bytes = memory.bytes;
  plan.arena_lower_bound = memory.lower_bound;
  return plan;
}

std::string Plan::str(const Graph& graph) const {
  const auto tensor_name = [&](size_t i) {
    const std::string& name = graph.tensors()[i].name;
    return name.empty() ? "t" + std::to_string(i) : name;
  };
  std::string out = "plan " + graph.name() + "\n";
  for (OpId id : order) {
    const Op& op = graph.op(id);
    out += std::string("  run ") + name(op.kind);
    for (TensorId t : op.inputs) out += " " + tensor_name(t.index);
    out += " ->";
    for (uint32_t r = 0; r < op.num_results; ++r) out += " " + tensor_name(op.result(r).index);
    out += "\n";
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorPlan& p = tensors[i];
    out += "  tensor " + tensor_name(i) + " " + graph.tensors()[i].type.str() + " ";
    if (p.alias >= 0) {
      out += "is " + tensor_name(static_cast<size_t>(p.alias)) + "\n";
      continue;
    }
    switch (p.place) {
    case Place::Input: out += "input " + std::to_string(p.index); break;
    case Place::Output: out += "output " + std::to_string(p.index); break;
    case Place::Arena: out += "arena " + std::to_string(p.offset); break;
    case Place::Constant: out += "constant"; break;
    }
    out += "\n";
  }
  for (const Copy& c : copies) {
    out += "  copy " + tensor_name(c.from.index) + " -> output " + std::to_string(c.output) + "\n";
  }
  out += "  arena " + std::to_string(arena_bytes) + " bytes, lower bound " +
         std::to_string(arena_lower_bound) + ", peak live " + std::to_string(peak_live_bytes) +
         "\n";
  return out;
}

}  // namespace tessera
