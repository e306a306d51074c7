// A program that the verifier refuses does not end the search.
#include <gtest/gtest.h>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

struct Answer {
  SearchReport report;
  std::vector<Candidate> candidates;
  int asked = 0;
};
Answer ask(const Graph& g, const std::function<bool(const Graph&)>& refuses) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  Answer a;
  SynthOptions options;
  options.accepts = [&](const Graph& original, const Graph& found) {
    ++a.asked;
    return !refuses(found) && verify(original, found).equal();
  };
  CollectingSink sink;
  a.report = Synth(options).run(Subprogram{g}, context, budget, sink);
  a.candidates = std::move(sink.candidates);
  return a;
}
// Two gains that have nothing to do with each other: a·c + b·c = (a + b)·c, and √y / √z = √(y / z).
constexpr const char* kTwoGains = R"(graph g {
  a = input : f32[100,100]
  b = input : f32[100,100]
  c = input : f32[100,100]
  y = input : f32[100,100]
  z = input : f32[100,100]
  ac = mul a, c
  bc = mul b, c
  s = add ac, bc
  p = sqrt y
  q = sqrt z
  e = div p, q
  return s, e
})";

TEST(SynthRefusal, ValuesThatAreEqualAtPositiveInputsAloneAreKeptApart) {
  const Answer a = ask(parse(R"(graph g {
  a = input : f32[100,100]
  b = input : f32[100,100]
  c = input : f32[100,100]
  q = mul c, c
  r = sqrt q
  ac = mul a, r
  bc = mul b, r
  s = add ac, bc
  return s
})"),
                       [](const Graph&) { return false; });
  ASSERT_FALSE(a.candidates.empty());
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Mul), 2);  // and |c| is not taken for c
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Sqrt), 1);
}

TEST(SynthRefusal, WhatIsAcceptedIsAskedOnce) {
  const Answer a = ask(parse(kTwoGains), [](const Graph&) { return false; });
  ASSERT_FALSE(a.candidates.empty());
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Mul), 1);
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Sqrt), 1);
  EXPECT_TRUE(a.report.refused.empty());
  EXPECT_EQ(a.asked, 1);
}

TEST(SynthRefusal, OneRefusedEqualityIsToldApartFromTheOthers) {
  // As if √y / √z = √(y / z) could not be proved: the other gain stays, and the refused one is
  // told.
  const Answer a = ask(parse(kTwoGains), [](const Graph& g) { return count(g, OpKind::Sqrt) < 2; });
  ASSERT_FALSE(a.candidates.empty());
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Mul), 1) << print(a.candidates[0].graph);
  EXPECT_EQ(count(a.candidates[0].graph, OpKind::Sqrt), 2) << print(a.candidates[0].graph);
  ASSERT_FALSE(a.report.refused.empty());
  for (const std::string& equality : a.report.refused)  // a, b and c have no part in it
    EXPECT_TRUE(equality.starts_with("sqrt(y) / sqrt(z)  =  ")) << equality;
}

TEST(SynthRefusal, TheNextBestOfTheSameValueIsTried) {
  // (a + b)·c is refused in whatever order: c·a + c·b is all that is left of it, and of its
  // three operations none is spared; twice the sum is.
  const Graph g = parse(R"(graph g {
  a = input : f32[100,100]
  b = input : f32[100,100]
  c = input : f32[100,100]
  ac = mul a, c
  bc = mul b, c
  s = add ac, bc
  t = add s, ac
  u = add t, bc
  return u
})");
  const Answer a = ask(g, [](const Graph& found) { return count(found, OpKind::Mul) < 2; });
  ASSERT_FALSE(a.candidates.empty());
  EXPECT_LT(a.candidates[0].cost, a.report.original_cost);
  EXPECT_GE(count(a.candidates[0].graph, OpKind::Mul), 2) << print(a.candidates[0].graph);
  EXPECT_GE(a.report.refused.size(), 1u);
}

TEST(SynthRefusal, WhereAllIsRefusedNothingIsOffered) {
  const Graph g = parse(kTwoGains);
  const Answer a = ask(g, [&](const Graph& found) { return !(found == g); });
  EXPECT_TRUE(a.candidates.empty());
  EXPECT_GE(a.report.refused.size(), 2u);
}

TEST(SynthRefusal, WhereTheProgramItselfIsNotProvedNothingIsBlamed) {
  const Answer a = ask(parse(kTwoGains), [](const Graph&) { return true; });
  EXPECT_TRUE(a.candidates.empty());
  EXPECT_TRUE(a.report.refused.empty());
}

}  // namespace
}  // namespace tessera
