// What synthesis builds of forms that no operator of the program stands for.
#include <gtest/gtest.h>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

// The best program offered, proved equal and cheaper; `derivation` tells how it came about.
Graph best_form(const char* text, std::string* derivation = nullptr) {
  const Graph g = parse(text);
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  CollectingSink sink;
  const SearchReport report = Synth().run(Subprogram{g}, context, budget, sink);
  if (sink.candidates.empty()) {
    ADD_FAILURE() << "nothing found: " << report.detail;
    return g;
  }
  const Candidate& c = sink.candidates[0];
  validate(c.graph);
  const Verdict verdict = verify(g, c.graph);
  EXPECT_TRUE(verdict.equal()) << verdict.str() << print(c.graph);
  EXPECT_LT(c.cost, report.original_cost) << print(c.graph);
  if (derivation) *derivation = c.derivation;
  return c.graph;
}

TEST(SynthForms, MeansOfProductsAreDotProductsByTheirCount) {
  std::string derivation;
  const Graph g = best_form(R"(graph g {
  y = input : f32[1000]
  t = input : f32[1000]
  d = sub y, t
  s = sqr d
  m = mean s {axes=[0]}
  return m
})",
                            &derivation);
  EXPECT_EQ(count(g, OpKind::Mean), 0) << print(g);
  EXPECT_EQ(count(g, OpKind::Matmul), 1) << print(g);
  EXPECT_NE(derivation.find("/ 1000"), std::string::npos) << derivation;
}

TEST(SynthForms, CountsOfManyAxesAreNotConfused) {
  // More axes than sizes to tell them apart.
  std::string text = "graph g {\n  x = input : f64[600]\n", outputs;
  for (int k = 1; k < 7; ++k) {
    const std::string n = std::to_string(k), at = std::to_string(600 - k);
    text += "  a" + n + " = slice x {starts=[0], stops=[" + at + "], steps=[1]}\n";
    text += "  b" + n + " = slice x {starts=[" + n + "], stops=[600], steps=[1]}\n";
    text += "  p" + n + " = mul a" + n + ", b" + n + "\n";
    text += "  m" + n + " = mean p" + n + " {axes=[0]}\n";
    outputs += (k > 1 ? ", m" : "m") + n;
  }
  const Graph g = best_form((text + "  return " + outputs + "\n}").c_str());
  EXPECT_EQ(count(g, OpKind::Mean), 0) << print(g);
}

TEST(SynthForms, DiagonalMatricesScaleRowsAndColumns) {
  std::string derivation;
  const Graph g = best_form(R"(graph g {
  A = input : f64[80,60]
  d = input : f64[60]
  c = reshape d {shape=[60,1]}
  p = pad c {low=[0,0], high=[0,60]}
  f = reshape p {shape=[3660]}
  s = slice f {starts=[0], stops=[3600], steps=[1]}
  D = reshape s {shape=[60,60]}
  r = matmul A, D
  return r
})",
                            &derivation);
  EXPECT_EQ(count(g, OpKind::Matmul), 0) << print(g);
  EXPECT_EQ(count(g, OpKind::Pad), 0) << print(g);
  EXPECT_NE(derivation.find("diag(d)"), std::string::npos) << derivation;
}

TEST(SynthForms, DiagonalMatricesThatAreNeededStay) {
  const Graph g = best_form(R"(graph g {
  A = input : f64[60,60]
  d = input : f64[60]
  c = reshape d {shape=[60,1]}
  p = pad c {low=[0,0], high=[0,60]}
  f = reshape p {shape=[3660]}
  s = slice f {starts=[0], stops=[3600], steps=[1]}
  D = reshape s {shape=[60,60]}
  u = add A, D
  v = add u, u
  w = sub v, A
  x = sub w, D
  return x
})");
  EXPECT_EQ(count(g, OpKind::Pad), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Add), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Sub), 0) << print(g);
}

TEST(SynthForms, IdentityMatricesDropOut) {
  const Graph g = best_form(R"(graph g {
  A = input : f64[60,60]
  r = iota {axis=0} : i64[60,60]
  c = iota {axis=1} : i64[60,60]
  e = eq r, c
  I = cast e {dtype=f64}
  p = matmul A, I
  q = add p, A
  t = mul q, I
  return t
})");
  EXPECT_EQ(count(g, OpKind::Matmul), 0) << print(g);
}

TEST(SynthForms, TracesOfBatches) {
  std::string derivation;
  const Graph g = best_form(R"(graph g {
  A = input : f64[50,8,9]
  B = input : f64[50,9,8]
  C = matmul A, B
  f = reshape C {shape=[50,64]}
  d = slice f {starts=[0,0], stops=[50,64], steps=[1,9]}
  t = sum d {axes=[1]}
  return t
})",
                            &derivation);
  EXPECT_EQ(count(g, OpKind::Matmul), 0) << print(g);
  EXPECT_NE(derivation.find("diagonal("), std::string::npos) << derivation;
}

TEST(SynthForms, OtherSlicesOfBatchesAreNoDiagonals) {
  const Graph g = parse(R"(graph g {
  A = input : f64[5,8,8]
  f = reshape A {shape=[5,64]}
  d = slice f {starts=[0,0], stops=[4,64], steps=[1,9]}
  e = add d, d
  r = sub e, d
  return r
})");
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  CollectingSink sink;
  Synth().run(Subprogram{g}, context, Budget{}, sink);
  ASSERT_FALSE(sink.candidates.empty());
  for (const Candidate& c : sink.candidates) EXPECT_TRUE(verify(g, c.graph).equal());
}

}  // namespace
}  // namespace tessera
