// Every rule that ships fires on its own left side, and what it makes of it is accepted.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "places.h"
#include "search/rules/instance.h"
#include "search/rules/library.h"
#include "search/rules/saturate.h"
#include "search/synth/inputs.h"

namespace tessera::rules {
namespace {

// A left side, and sums of variables of one shape: extents that nothing in the left side makes
// equal (those of sum(A) + sum(B), say) are one in the e-graph only where the program makes them
// so.
std::optional<Graph> program_of(const Rule& rule, const Assignment& at) {
  Rule more = rule;
  std::vector<ValueId> outputs{rule.left};
  for (ValueId v = 0; v < rule.nodes.size(); ++v) {
    for (ValueId w = 0; w < v; ++w) {
      const synth::Node &a = rule.nodes[v], &b = rule.nodes[w];
      if (a.form != synth::Form::Leaf || b.form != synth::Form::Leaf) continue;
      if (rule.variables[a.attr].boolean || rule.variables[b.attr].boolean) continue;
      if (at.shapes[a.attr] != at.shapes[b.attr]) continue;
      synth::Node sum;
      sum.form = synth::Form::Pointwise;
      sum.kind = OpKind::Max;
      sum.arity = 2;
      sum.arg = {v, w, synth::kNone};
      outputs.push_back(add_node(more, sum));
    }
  }
  return build(more, outputs, at, DType::F32);
}

struct Fired {
  int matches = 0;
  int64_t dropped = 0;  // right sides that were another value
};

std::optional<Fired> fire(const Rule& rule, const Graph& program) {
  const std::optional<synth::Spec> spec = synth::parse(program);
  if (!spec) return std::nullopt;
  synth::World world(spec->table, spec->with_q, 0);
  for (const Rational& c : spec->constants) world.constant(c);
  synth::SampleStore store;
  const auto values = synth::evaluate(world, *spec, store);
  if (!values) return std::nullopt;
  const synth::Rates rates;
  synth::EGraph graph(world, rates);
  synth::enter(graph, *spec, *values);
  const RuleSet set({rule});
  Fired fired;
  for (ValueId v = 0; v < graph.size(); ++v) {
    for (uint32_t w = 0; w < graph[v].nodes.size(); ++w) {
      for (uint32_t r : set.starting_with(graph[v].nodes[w]))
        set.match(graph, r, {v, w}, [&](const Match&) { return ++fired.matches < 100; });
    }
  }
  fired.dropped = saturate(graph, set, {}, [] { return false; }).dropped;
  return fired;
}

// What equals a part of itself is one class from the start (x + 0, |x·x|): such a rule has nothing
// to say there, but says it to people and to other matchers.
bool within(const Rule& rule) {
  std::vector<ValueId> open = operands(rule, rule.left);
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    if (v == rule.right) return true;
    for (ValueId a : operands(rule, v)) open.push_back(a);
  }
  return false;
}

TEST(RuleLibrary, EveryRuleFiresOnItsOwnLeftSide) {
  int rules = 0, fired_rules = 0;
  for (const Rule& rule : load_rules(source_dir() + "/rules")) {
    ++rules;
    Rng rng(5);
    bool fired = false, known = false;
    std::string last;
    for (Sizes kind : {Sizes::Unlike, Sizes::Bare, Sizes::Unlike, Sizes::Bare}) {
      const std::optional<Graph> program = program_of(rule, draw(rule, kind, rng));
      if (!program) continue;
      const std::optional<Fired> f = fire(rule, *program);
      if (!f) continue;
      last = print(*program);
      // At some sizes nothing is summed, which an e-graph has no node for.
      fired = fired || (f->matches > 0 && f->dropped == 0);
      known = known || within(rule);
    }
    EXPECT_TRUE(fired || known) << "never fired:\n" << print(rule) << last;
    fired_rules += fired;
  }
  EXPECT_GT(fired_rules, rules * 9 / 10);
}

}  // namespace
}  // namespace tessera::rules
