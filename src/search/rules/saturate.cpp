#include "search/rules/saturate.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/interruption.h"
#include "search/rules/sign.h"

namespace tessera::rules {

using synth::Choice, synth::Class, synth::Dims, synth::Form, synth::kNone, synth::Node;
using synth::Sample, synth::SampleStore;

namespace {

// Of a node of a rule, as matched.
Sign rule_sign(const EGraph& graph, const Rule& rule, const Match& match, ValueId v) {
  if (match.classes[v] != kNone) return sign_of(graph, match.classes[v]);
  const Node& n = rule.nodes[v];
  std::optional<Rational> constant;
  if (has_constant(n)) {
    constant = value(rule, uint32_t(n.attr), match.constants);
    if (!constant) return {};
  }
  return sign_of(n, constant ? &*constant : nullptr,
                 [&](int i) { return rule_sign(graph, rule, match, n.arg[size_t(i)]); });
}

uint64_t key_of(const Match& m) {
  uint64_t key = derive_key(m.rule, m.root);
  for (ValueId v : m.classes) key = derive_key(key, v);
  for (const auto& c : m.constants)
    if (c) key = derive_key(derive_key(key, uint64_t(c->num())), uint64_t(c->den()));
  return key;
}

class Saturator {
 public:
  Saturator(EGraph& graph, const RuleSet& rules, const SaturateLimits& limits,
            const std::function<bool()>& stopped)
      : graph_(graph), rules_(rules), limits_(limits), stopped_(stopped),
        bans_(rules.rules().size()), until_(rules.rules().size()) {}

  Saturation run() {
    while (true) {
      if (result_.rounds == limits_.rounds) return stop(Saturation::Stop::Rounds);
      const std::vector<Match> matches = collect();
      ++result_.rounds;
      if (stopped_()) return stop(Saturation::Stop::Stopped);
      bool changed = false;
      for (const Match& m : matches) {
        if (graph_.size() >= limits_.classes) return stop(Saturation::Stop::Classes);
        if (result_.evaluations >= limits_.evaluations) return stop(Saturation::Stop::Evaluations);
        if (stopped_()) return stop(Saturation::Stop::Stopped);
        changed = apply(m) || changed;
      }
      if (changed) continue;
      // Nothing new, except perhaps from those that sat out.
      bool waiting = false;
      for (int& u : until_) {
        waiting = waiting || u > result_.rounds;
        u = 0;
      }
      if (!waiting) return stop(Saturation::Stop::Saturated);
    }
  }

 private:
  Saturation stop(Saturation::Stop why) {
    result_.stop = why;
    return std::move(result_);
  }

  // New matches, those of rules with too many left out.
  std::vector<Match> collect() {
    std::vector<std::vector<Match>> by_rule(rules_.rules().size());
    for (ValueId v = 0; v < graph_.size(); ++v) {
      const Class& c = graph_[v];
      for (uint32_t w = 0; w < c.nodes.size(); ++w) {
        if (stopped_()) return {};
        for (uint32_t r : rules_.starting_with(c.nodes[w])) {
          const Rule& rule = rules_.rules()[r];
          if (until_[r] > result_.rounds) continue;
          if (!(is_float(number_type(graph_, {v, w})) ? rule.real : rule.integer)) continue;
          std::vector<Match>& found = by_rule[r];
          const size_t most = limits_.matches << bans_[r];
          if (found.size() > most) continue;
          rules_.match(graph_, r, {v, w}, [&](const Match& m) {
            if (done_.count(key_of(m)) == 0) found.push_back(m);
            return found.size() <= most;
          });
        }
      }
    }
    std::vector<Match> all;
    for (uint32_t r = 0; r < by_rule.size(); ++r) {
      if (by_rule[r].size() > limits_.matches << bans_[r]) {
        const int rounds = 1 << bans_[r];
        until_[r] = result_.rounds + 1 + rounds;
        result_.backed_off += rounds;
        ++bans_[r];
        continue;
      }
      for (Match& m : by_rule[r])
        if (done_.insert(key_of(m)).second) all.push_back(std::move(m));
    }
    result_.matches += int64_t(all.size());
    return all;
  }

  bool holds(const Match& m) const {
    interruption_point();
    const Rule& rule = rules_.rules()[m.rule];
    for (const Condition& c : rule.conditions) {
      if (c.implied) continue;
      const Sign s = rule_sign(graph_, rule, m, c.value);
      const bool known = c.kind == Condition::Kind::Nonzero       ? s.nonzero
                         : c.kind == Condition::Kind::NonNegative ? s.nonnegative
                                                                  : s.nonnegative && s.nonzero;
      if (!known) return false;
    }
    return true;
  }

  // Adds the right side; whether anything was new.
  bool apply(const Match& m) {
    interruption_point();
    if (!holds(m)) {
      ++result_.conditional;
      return false;
    }
    const Rule& rule = rules_.rules()[m.rule];
    const std::vector<ValueId>& order = rules_.right_nodes(m.rule);
    // Evaluated apart, so that what is dropped leaves nothing behind.
    SampleStore store;
    std::vector<Sample> samples(rule.nodes.size());
    std::vector<Node> nodes(rule.nodes.size());
    for (ValueId v = 0; v < rule.nodes.size(); ++v)
      if (m.classes[v] != kNone) samples[v] = graph_[m.classes[v]].sample;
    for (ValueId v : order) {
      const Sample* args[3] = {};
      const Dims* dims[3] = {};
      const Node& pattern = rule.nodes[v];
      for (int i = 0; i < pattern.arity; ++i) {
        args[i] = &samples[pattern.arg[size_t(i)]];
        dims[i] = &args[i]->dims;
      }
      const auto instance = rules_.instantiate(m, graph_.world(), v, dims);
      std::optional<Sample> value;
      if (instance) {
        ++result_.evaluations;
        nodes[v] = instance->node;
        value = graph_.world().eval(instance->node, args,
                                    instance->shape ? &*instance->shape : nullptr);
      }
      if (!value || double(graph_.world().dims().elements(value->dims)) > limits_.elements) {
        ++result_.dropped;
        return false;
      }
      samples[v] = store.keep(*value);
    }
    if (!same_numbers(samples[rule.right], graph_[m.root].sample)) {
      ++result_.dropped;
      return false;
    }
    Application a;
    a.rule = m.rule;
    a.root = m.root;
    a.left = m.ways;
    std::vector<ValueId> classes = m.classes;
    for (ValueId v = 0; v < rule.nodes.size(); ++v)
      if (rule.nodes[v].form == Form::Leaf && classes[v] != kNone)
        a.variables.push_back(classes[v]);
    for (ValueId v : order) {
      for (int i = 0; i < nodes[v].arity; ++i)
        nodes[v].arg[size_t(i)] = classes[rule.nodes[v].arg[size_t(i)]];
      const ValueId known = v == rule.right ? m.root : graph_.find(samples[v].hash);
      const size_t ways = known == kNone ? 0 : graph_[known].nodes.size();
      // Neither order of a sum or product is another way than the other.
      if (known != kNone && commutes(nodes[v]) && way_of(known, nodes[v]) == kNone) {
        Node swapped = nodes[v];
        std::swap(swapped.arg[0], swapped.arg[1]);
        if (way_of(known, swapped) != kNone) nodes[v] = swapped;
      }
      classes[v] = known == kNone ? graph_.add(nodes[v], samples[v]) : known;
      if (known != kNone) graph_.add_way(known, nodes[v]);
      const bool fresh = graph_[classes[v]].nodes.size() > ways;
      const uint32_t way = way_of(classes[v], nodes[v]);
      if (way == kNone) continue;
      a.right.push_back({classes[v], way});
      if (fresh) a.added.push_back({classes[v], way});
    }
    const bool changed = !a.added.empty();
    if (changed) result_.applications.push_back(std::move(a));
    return changed;
  }
  uint32_t way_of(ValueId id, const Node& node) const {
    const std::vector<Node>& nodes = graph_[id].nodes;
    for (uint32_t w = 0; w < nodes.size(); ++w)
      if (same_operation(nodes[w], node)) return w;
    return kNone;  // it would have been its own operand
  }

  EGraph& graph_;
  const RuleSet& rules_;
  const SaturateLimits& limits_;
  const std::function<bool()>& stopped_;
  std::vector<int> bans_, until_;  // by rule: how often it sat out, and until which round
  std::unordered_set<uint64_t> done_;
  Saturation result_;
};

}  // namespace

Saturation saturate(EGraph& graph, const RuleSet& rules, const SaturateLimits& limits,
                    const std::function<bool()>& stopped) {
  return Saturator(graph, rules, limits, stopped).run();
}

std::vector<uint32_t> needed(const Saturation& saturation, const EGraph& graph,
                             const Choice& choice, const std::vector<ValueId>& outputs) {
  auto open = mapped(graph.order(choice, outputs), [&](ValueId v) { return Way{v, choice[v]}; });
  std::set<uint32_t> found;
  std::set<std::pair<ValueId, uint32_t>> seen;
  while (!open.empty()) {
    const Way way = open.back();
    open.pop_back();
    if (!seen.insert({way.id, way.way}).second) continue;
    for (uint32_t i = 0; i < saturation.applications.size(); ++i) {
      const Application& a = saturation.applications[i];
      if (std::ranges::find(a.added, way) == a.added.end()) continue;
      if (found.insert(i).second) open.insert(open.end(), a.left.begin(), a.left.end());
      break;
    }
  }
  return {found.begin(), found.end()};
}

}  // namespace tessera::rules
