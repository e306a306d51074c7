#include "search/synth/egraph.h"

#include "base/interruption.h"

namespace tessera::synth {

void EGraph::each_arg(const Node& node, const std::function<void(ValueId)>& f) const {
  for (int i = 0; i < node.arity; ++i) f(node.arg[size_t(i)]);
  if (node.form == Form::Kept || node.form == Form::Stack)
    for (ValueId v : world_.kept_ops()[node.attr].args) f(v);
}

double EGraph::node_seconds(const Node& node, const Dims& result) const {
  return rates_.seconds(
      world_, node, result,
      [&](ValueId v) {
        return std::pair(&classes_[v].sample.dims, classes_[v].nodes.front().form);
      });
}

ValueId EGraph::add(const Node& node, const Dims* shape) {
  interruption_point();
  const Sample* args[3] = {};
  for (int i = 0; i < node.arity; ++i) args[i] = &classes_[node.arg[size_t(i)]].sample;
  const std::optional<Sample> value = world_.eval(node, args, shape);
  return value ? add(node, *value) : kNone;
}

ValueId EGraph::add(const Node& node, const Sample& value) {
  interruption_point();
  if (const ValueId known = find(value.hash); known != kNone) {
    add_way(known, node);
    return known;
  }
  const ValueId id = ValueId(classes_.size());
  by_hash_.put(value.hash, id);
  classes_.push_back({store_.keep(value), {}, {}});
  classes_.back().nodes.push_back(node);
  classes_.back().seconds.push_back(node_seconds(node, value.dims));
  return id;
}

bool EGraph::add_way(ValueId id, const Node& node) {
  interruption_point();
  Class& c = classes_[id];
  bool itself = false;
  each_arg(node, [&](ValueId v) { itself = itself || v == id; });
  if (itself) return false;
  for (const Node& n : c.nodes)
    if (same_operation(n, node) && n.dtype == node.dtype) return false;
  const double seconds = node_seconds(node, c.sample.dims);
  c.nodes.push_back(node);
  c.seconds.push_back(seconds);
  return true;
}

void EGraph::forbid(ValueId id, uint32_t way) { classes_[id].seconds[way] = kInfinite; }

std::vector<ValueId> EGraph::order(const Choice& choice,
                                   const std::vector<ValueId>& outputs) const {
  enum : uint8_t { New, Open, Done };
  std::vector<uint8_t> state(classes_.size(), New);
  std::vector<ValueId> result;
  bool cyclic = false;
  std::function<void(ValueId)> visit = [&](ValueId v) {
    interruption_point();
    if (state[v] == Done || cyclic) return;
    if (state[v] == Open || v >= choice.size() || choice[v] == kNone) {
      cyclic = true;
      return;
    }
    state[v] = Open;
    each_arg(classes_[v].nodes[choice[v]], visit);
    state[v] = Done;
    result.push_back(v);
  };
  for (ValueId v : outputs) visit(v);
  if (cyclic) result.clear();
  return result;
}

double EGraph::seconds(const Choice& choice, const std::vector<ValueId>& outputs) const {
  interruption_point();
  const std::vector<ValueId> used = order(choice, outputs);
  if (used.empty()) return outputs.empty() ? 0 : kInfinite;
  double total = sum_of<double>(used, [&](ValueId v) { return classes_[v].seconds[choice[v]]; });
  return total + loop_seconds(choice, outputs);
}

double EGraph::loop_seconds(const Choice& choice, const std::vector<ValueId>& outputs) const {
  interruption_point();
  if (rates_.kind != CostKind::Fused) return 0;
  const std::vector<ValueId> used = order(choice, outputs);
  auto fuses = [&](ValueId v) { return Rates::fuses(classes_[v].nodes[choice[v]].form); };
  std::vector<bool> written(classes_.size(), false);
  for (ValueId v : outputs) written[v] = true;
  for (ValueId v : used) {
    const Node& node = classes_[v].nodes[choice[v]];
    // Reductions run in the loop that makes their operand; products and what is kept read arrays.
    if (node.form != Form::Dot && node.form != Form::Kept) continue;
    each_arg(node, [&](ValueId a) { written[a] = true; });
  }
  double total = 0;
  for (ValueId v : used)
    if (written[v] && fuses(v)) total += rates_.loop_seconds(world_, classes_[v].sample.dims);
  return total;
}

Choice EGraph::extract(const std::vector<ValueId>& outputs,
                       const std::function<bool()>& stopped) const {
  // Least trees by relaxation; costs are positive, so what is chosen has no cycles.
  constexpr double kLeast = 1e-12;
  std::vector<double> tree(classes_.size(), kInfinite);
  Choice choice(classes_.size(), kNone);
  for (bool changed = true; changed;) {
    changed = false;
    for (ValueId v = 0; v < classes_.size(); ++v) {
      const Class& c = classes_[v];
      for (uint32_t n = 0; n < c.nodes.size(); ++n) {
        double total = c.seconds[n] + kLeast;
        each_arg(c.nodes[n], [&](ValueId a) { total += tree[a]; });
        if (total >= tree[v] * (1 - 1e-9)) continue;
        tree[v] = total;
        choice[v] = n;
        changed = true;
      }
    }
  }
  improve(choice, outputs, stopped);
  return choice;
}

void EGraph::improve(Choice& choice, const std::vector<ValueId>& outputs,
                     const std::function<bool()>& stopped) const {
  choice.resize(classes_.size(), kNone);
  double best = seconds(choice, outputs);
  for (bool changed = true; changed;) {
    changed = false;
    for (ValueId v : order(choice, outputs)) {
      if (stopped && stopped()) return;
      const uint32_t before = choice[v];
      uint32_t winner = before;
      for (uint32_t n = 0; n < classes_[v].nodes.size(); ++n) {
        if (n == before) continue;
        choice[v] = n;
        const double total = seconds(choice, outputs);
        if (total < best * (1 - 1e-9)) {
          best = total;
          winner = n;
        }
      }
      choice[v] = winner;
      changed = changed || winner != before;
    }
  }
}

Entered enter(EGraph& graph, const Spec& spec, const std::vector<Sample>& values,
              const std::set<ValueId>& apart) {
  interruption_point();
  Entered r;
  std::vector<bool> used(spec.nodes.size(), false);
  for (ValueId v : spec.outputs) used[v] = true;
  for (size_t v = spec.nodes.size(); v-- > 0;) {
    if (!used[v]) continue;
    const Node& n = spec.nodes[v];
    for (int i = 0; i < n.arity; ++i) used[n.arg[size_t(i)]] = true;
    if (n.form == Form::Kept || n.form == Form::Stack)
      for (ValueId a : spec.kept[n.attr].args) used[a] = true;
  }
  r.classes.resize(spec.nodes.size());
  for (ValueId v = 0; v < spec.nodes.size(); ++v) {
    Node node = spec.nodes[v];
    for (int i = 0; i < node.arity; ++i) node.arg[size_t(i)] = r.classes[node.arg[size_t(i)]];
    if (node.form == Form::Kept || node.form == Form::Stack) {
      KeptOp op = spec.kept[node.attr];
      for (ValueId& a : op.args) a = r.classes[a];
      node.attr = graph.world().kept(std::move(op));
    }
    const size_t before = graph.size();
    Sample value = values[v];
    if (apart.count(v)) value.hash = derive_key(value.hash, v);
    r.classes[v] = graph.add(node, value);
    r.choice.resize(graph.size(), kNone);
    if (graph.size() > before) r.choice[r.classes[v]] = 0;
    if (used[v]) r.seconds += graph.node_seconds(node, values[v].dims);
  }
  for (ValueId v : spec.outputs) r.outputs.push_back(r.classes[v]);
  return r;
}

}  // namespace tessera::synth
