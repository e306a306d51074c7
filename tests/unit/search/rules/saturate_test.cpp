#include "search/rules/saturate.h"

#include <gtest/gtest.h>

#include "counting.h"
#include "ir/text.h"
#include "search/rules/sign.h"
#include "search/synth/inputs.h"
#include "search/synth/lower.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera::rules {
namespace {

using synth::Choice;
using synth::Entered;
using synth::Rates;

// A program in an e-graph of its own.
struct Program {
  explicit Program(const char* text)
      : graph(parse(text)), spec(*synth::parse(graph)), world(spec.table, spec.with_q, 0),
        egraph(world, rates) {
    for (const Rational& c : spec.constants) world.constant(c);
    values = *synth::evaluate(world, spec, store);
    entered = enter(egraph, spec, values);
  }
  Saturation apply(const RuleSet& rules, const SaturateLimits& limits = {}) {
    return saturate(egraph, rules, limits, [] { return false; });
  }
  // The cheapest program: proved equal.
  Graph best() const {
    const Choice choice = egraph.extract(entered.outputs);
    const Graph found = lower(graph, egraph, choice, entered.outputs);
    EXPECT_TRUE(verify(graph, found).equal()) << print(found);
    return found;
  }

  Graph graph;
  synth::Spec spec;
  synth::World world;
  Rates rates;
  synth::EGraph egraph;
  synth::SampleStore store;
  std::vector<synth::Sample> values;
  Entered entered;
};

RuleSet rules(const std::string& text) { return RuleSet(parse_rules(text, "test.rules")); }

// Matches of one rule in the program as it is.
int matches(const Program& p, const RuleSet& set) {
  int n = 0;
  for (ValueId v = 0; v < p.egraph.size(); ++v) {
    for (uint32_t w = 0; w < p.egraph[v].nodes.size(); ++w) {
      for (uint32_t r : set.starting_with(p.egraph[v].nodes[w]))
        set.match(p.egraph, r, {v, w}, [&](const Match&) { return ++n < 100; });
    }
  }
  return n;
}

const char* const kDistribute = R"(graph g {
  A = input : f32[64,48]
  B = input : f32[64,48]
  C = input : f32[48]
  p = mul C, A
  q = mul B, C
  s = add p, q
  return s
})";

TEST(RuleMatch, OperandsOfSumsAndProductsComeInEitherOrder) {
  const Program p(kDistribute);
  // Both orders of the sum: X and Y are A and B, or B and A.
  EXPECT_EQ(matches(p, rules("rule d\n  X [...], Y [...], Z [...]\n  X*Z + Y*Z = (X + Y) * Z\n")),
            2);
  // The same variable twice is the same value twice.
  EXPECT_EQ(matches(p, rules("rule d\n  X [...]\n  X*X + X*X = 2 * X * X\n")), 0);
  EXPECT_EQ(matches(p, rules("rule d\n  X [...], Y [...]\n  X - Y = -(Y - X)\n")), 0);
}

TEST(RuleMatch, ShapesAreThoseOfTheRule) {
  const Program p(R"(graph g {
  A = input : f32[30,40]
  B = input : f32[40,50]
  v = input : f32[50]
  C = matmul A, B
  w = unsqueeze v {axes=[1]}
  x = matmul C, w
  y = squeeze x {axes=[1]}
  t = sum A {axes=[0]}
  return y, t
})");
  EXPECT_EQ(matches(p, rules("rule a\n  A [m k], B [k n], v [n]\n  (A @ B) @ v = A @ (B @ v)\n")),
            1);
  EXPECT_EQ(matches(p, rules("rule a\n  A [m k], B [k n], v [1 n]\n  (A @ B) @ v = A @ (B @ v)\n")),
            0);
  EXPECT_EQ(matches(p, rules("rule a\n  A [m m], B [m n]\n  A @ B = A @ (B + B - B)\n")), 0);
  EXPECT_EQ(matches(p, rules("rule s\n  A [m n]\n  sum(A, axis=-2) = sum(A + A - A, axis=-2)\n")),
            1);
  EXPECT_EQ(matches(p, rules("rule s\n  A [m n]\n  sum(A, axis=-1) = sum(A + A - A, axis=-1)\n")),
            0);
}

TEST(RuleSaturate, RulesFindWhatTheySay) {
  Program p(kDistribute);
  const Saturation s =
      p.apply(rules("rule d\n  X [...], Y [...], Z [...]\n  X*Z + Y*Z = (X + Y) * Z\n"));
  EXPECT_EQ(s.stop, Saturation::Stop::Saturated);
  EXPECT_EQ(s.dropped, 0);
  ASSERT_FALSE(s.applications.empty());
  const Graph found = p.best();
  EXPECT_EQ(count(found, OpKind::Mul), 1) << print(found);
}

TEST(RuleSaturate, RulesBuildOnEachOther) {
  // trace(A @ B): the diagonal's sum, and the product it need not be.
  Program p(R"(graph g {
  A = input : f32[60,70]
  B = input : f32[70,60]
  C = matmul A, B
  r = reshape C {shape=[3600]}
  d = slice r {starts=[0], stops=[3600], steps=[61]}
  s = sum d {axes=[0]}
  return s
})");
  const RuleSet set =
      rules("rule diagonal\n  A [m k], B [k m]\n"
            "  diagonal(A @ B) = sum(A * transpose(B), axis=-1)\n"
            "rule sums\n  A [...s m n]\n  sum(sum(A, axis=-1), axis=-1) = sum(A, axis=(-2, -1))\n");
  const Saturation s = p.apply(set);
  const Graph found = p.best();
  EXPECT_EQ(count(found, OpKind::Matmul), 0) << print(found);
  EXPECT_EQ(count(found, OpKind::Sum), 1) << print(found);
  // The derivation names both, the first first.
  const Choice choice = p.egraph.extract(p.entered.outputs);
  const std::vector<uint32_t> steps = needed(s, p.egraph, choice, p.entered.outputs);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(set.rules()[s.applications[steps[0]].rule].name, "diagonal");
  EXPECT_EQ(set.rules()[s.applications[steps[1]].rule].name, "sums");
}

TEST(RuleSaturate, NumbersAreBoundAndComputed) {
  Program p(R"(graph g {
  A = input : f32[64,48]
  a = pow A {exponent=2}
  b = pow A {exponent=3}
  c = mul a, b
  return c
})");
  p.apply(rules("rule p\n  A [...], c constant, d constant\n  A**c * A**d = A**(c + d)\n"));
  const Graph found = p.best();
  ASSERT_EQ(count(found, OpKind::Pow), 1) << print(found);
  for (const Op& op : found.ops())
    if (op.kind == OpKind::Pow) {
      EXPECT_EQ(found.attrs<PowAttrs>(op).exponent, Rational(5));
    }
}

TEST(RuleSaturate, WrongRulesDoNothing) {
  Program p(kDistribute);
  const size_t before = p.egraph.size();
  const Saturation s = p.apply(rules("rule wrong\n  X [...], Y [...]\n  X * Y = X + Y\n"));
  EXPECT_GT(s.dropped, 0);
  EXPECT_TRUE(s.applications.empty());
  EXPECT_EQ(p.egraph.size(), before);
}

TEST(RuleSaturate, ConditionsHaveToBeKnown) {
  const RuleSet set = rules("rule root\n  X [...], Y [...]\n  sqrt(X * Y) = sqrt(X) * sqrt(Y)\n"
                            "  where X >= 0\n  where Y + 1 > 0\n");
  // Of A and B nothing is known, though they are positive where the e-graph looks.
  Program unknown(R"(graph g {
  A = input : f32[64,48]
  B = input : f32[64,48]
  p = mul A, B
  r = sqrt p
  return r
})");
  const Saturation none = unknown.apply(set);
  EXPECT_EQ(none.conditional, 2);
  EXPECT_TRUE(none.applications.empty());
  Program known(R"(graph g {
  A = input : f32[64,48]
  B = input : f32[64,48]
  e = exp A
  s = sqr B
  p = mul s, e
  r = sqrt p
  return r
})");
  const Saturation s = known.apply(set);
  EXPECT_EQ(s.conditional, 0);
  EXPECT_EQ(s.applications.size(), 1u);  // the other order of the product gives nothing new
}

TEST(RuleSaturate, StrictRefusesLargerDomains) {
  const char* const text = R"(graph g {
  A = input : f32[64,48]
  B = input : f32[64,48]
  C = input : f32[64,48]
  p = mul A, B
  q = mul B, C
  r = div p, q
  return r
})";
  const RuleSet set = rules("rule cancel\n  X [...], Y [...], Z [...]\n  X * Y / (Y * Z) = X / Z\n"
                            "  assumes Y != 0\n");
  EXPECT_EQ(Program(text).apply(set).applications.size(), 1u);
}

TEST(RuleSaturate, LimitsHoldAndExplosiveRulesSitOut) {
  const char* const text = R"(graph g {
  A = input : f32[6,5]
  B = input : f32[6,5]
  C = input : f32[6,5]
  D = input : f32[6,5]
  E = input : f32[6,5]
  a = add A, B
  b = add a, C
  c = add b, D
  d = add c, E
  return d
})";
  const RuleSet set =
      rules("rule associate\n  X [...], Y [...], Z [...]\n  X + Y + Z = X + (Y + Z)\n"
            "rule double\n  X [...]\n  X + X = 2 * X\n");
  SaturateLimits limits;
  limits.matches = 5;
  Program p(text);
  const Saturation s = p.apply(set, limits);
  EXPECT_GT(s.backed_off, 0);
  EXPECT_LE(s.rounds, limits.rounds);
  limits.matches = 1000;
  limits.evaluations = 10;
  Program few(text);
  EXPECT_EQ(few.apply(set, limits).stop, Saturation::Stop::Evaluations);
  limits = {};
  limits.classes = few.egraph.size();
  EXPECT_EQ(few.apply(set, limits).stop, Saturation::Stop::Classes);
  // All sums of some of five values: 2⁵ − 1, and the same without limits in any order of rules.
  limits = {};
  limits.rounds = 100;
  Program all(text);
  EXPECT_EQ(all.apply(set, limits).stop, Saturation::Stop::Saturated);
  EXPECT_EQ(all.egraph.size(), 31u);
}

TEST(RuleSign, FollowsFromOperations) {
  Program p(R"(graph g {
  A = input : f32[6,5]
  e = exp A
  s = sqr A
  t = add e, s
  r = sqrt t
  m = sum r {axes=[0]}
  n = neg m
  d = sub e, s
  return n, d
})");
  auto sign = [&](size_t v) { return sign_of(p.egraph, p.entered.classes[v]); };
  EXPECT_FALSE(sign(0).nonnegative || sign(0).nonzero);
  EXPECT_TRUE(sign(1).nonnegative && sign(1).nonzero);
  EXPECT_TRUE(sign(2).nonnegative && !sign(2).nonzero);
  EXPECT_TRUE(sign(3).nonnegative && sign(3).nonzero);
  EXPECT_TRUE(sign(5).nonnegative && sign(5).nonzero);
  EXPECT_TRUE(!sign(6).nonnegative && sign(6).nonzero);
  EXPECT_FALSE(sign(7).nonnegative || sign(7).nonzero);
}

TEST(RuleSaturate, TheEngineSaysWhichRuleMadeEachStep) {
  const RuleSet set = rules("rule diagonal-of-product\n  A [m k], B [k m]\n"
                            "  diagonal(A @ B) = sum(A * transpose(B), axis=-1)\n");
  const Graph g = parse(R"(graph g {
  A = input : f32[90,70]
  B = input : f32[70,90]
  C = matmul A, B
  r = reshape C {shape=[8100]}
  d = slice r {starts=[0], stops=[8100], steps=[91]}
  return d
})");
  SynthOptions options;
  options.rules = &set;
  options.windows = false;
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  CollectingSink sink;
  const SearchReport report = Synth(options).run(Subprogram{g}, context, Budget{}, sink);
  ASSERT_FALSE(sink.candidates.empty());
  EXPECT_EQ(count(sink.candidates[0].graph, OpKind::Matmul), 0);
  EXPECT_NE(sink.candidates[0].derivation.find(
                "diagonal(A @ B)  =  sum(A * B.T, axis=1)  [rule diagonal-of-product]"),
            std::string::npos)
      << sink.candidates[0].derivation;
  EXPECT_EQ(report.figures.at("rules_fired"), 1);
  EXPECT_EQ(report.graphs, 0);  // no windows
}

}  // namespace
}  // namespace tessera::rules
