// Programs of static slices, said in other ways before they are searched.
#include <gtest/gtest.h>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/slices.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

// The forms of a program, each proved equal to it.
std::vector<Graph> forms(const std::string& body) {
  const Graph g = parse("graph g {\n" + body + "\n}");
  std::vector<Graph> result;
  for (synth::Retold& r : synth::reslice(g)) {
    validate(r.graph);
    const Verdict v = verify(g, r.graph);
    EXPECT_TRUE(v.equal()) << v.str() << print(r.graph);
    EXPECT_FALSE(r.derivation.empty());
    result.push_back(std::move(r.graph));
  }
  return result;
}
// The one form that computes nothing twice.
Graph form(const std::string& body) {
  std::vector<Graph> all = forms(body);
  EXPECT_GE(all.size(), 1u) << body;
  return all.empty() ? Graph() : std::move(all[0]);
}

const std::string kSlicedParts = "x = input : f64[40]\n"
                                 "a = slice x {starts=[0], stops=[15], steps=[1]}\n"
                                 "b = slice x {starts=[15], stops=[40], steps=[1]}\n";
const std::string kNeighbours = "x = input : f64[40]\n"
                                "a = slice x {starts=[0], stops=[39], steps=[1]}\n"
                                "b = slice x {starts=[1], stops=[40], steps=[1]}\n";

TEST(SynthSlices, SumsOverPartsAreSumsOverTheWhole) {
  const Graph g = form(kSlicedParts + "s = sum a {axes=[0]}\nt = sum b {axes=[0]}\n"
                                      "y = add s, t\nreturn y");
  EXPECT_EQ(count(g, OpKind::Slice), 0) << print(g);
  EXPECT_EQ(count(g, OpKind::Sum), 1) << print(g);
  // Every second element and the others.
  const Graph h = form("x = input : f32[40]\na = slice x {starts=[0], stops=[39], steps=[2]}\n"
                       "b = slice x {starts=[1], stops=[40], steps=[2]}\n"
                       "s = sum a {axes=[0]}\nt = sum b {axes=[0]}\ny = add s, t\nreturn y");
  EXPECT_EQ(count(h, OpKind::Slice), 0) << print(h);
}

TEST(SynthSlices, PartsOfWhatIsComputedOfParts) {
  const Graph g = form("u = input : f64[40]\nv = input : f64[40]\n"
                       "a = slice u {starts=[0], stops=[15], steps=[1]}\n"
                       "b = slice u {starts=[15], stops=[40], steps=[1]}\n"
                       "c = slice v {starts=[0], stops=[15], steps=[1]}\n"
                       "d = slice v {starts=[15], stops=[40], steps=[1]}\n"
                       "p = mul a, c\nq = mul b, d\ns = sum p {axes=[0]}\nt = sum q {axes=[0]}\n"
                       "y = add s, t\nreturn y");
  EXPECT_EQ(count(g, OpKind::Mul), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Slice), 0) << print(g);
}

TEST(SynthSlices, DifferencesCancelAlongTheAxis) {
  const Graph g = form(kNeighbours + "d = sub b, a\ny = sum d {axes=[0]}\nreturn y");
  EXPECT_EQ(count(g, OpKind::Sum), 0) << print(g);  // x[39] - x[0]
  EXPECT_EQ(count(g, OpKind::Sub), 1) << print(g);
  // The inner ones are counted twice, and the sums of neighbours halved.
  const Graph h = form(kNeighbours + "two = const {value=2} : f64[]\nd = add b, a\n"
                                     "h = div d, two\ny = sum h {axes=[0]}\nreturn y");
  EXPECT_EQ(count(h, OpKind::Sum), 1) << print(h);
  EXPECT_EQ(count(h, OpKind::Div), 0) << print(h);
}

TEST(SynthSlices, MaximaOfPartsAreMaxima) {
  const std::string rest = "s = reduce_max a {axes=[0]}\nt = reduce_max b {axes=[0]}\n"
                           "y = max s, t\nreturn y";
  const Graph g = form(kSlicedParts + rest);
  EXPECT_EQ(count(g, OpKind::ReduceMax), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Slice), 0) << print(g);
  EXPECT_TRUE(forms(kNeighbours + rest).empty());  // nothing is proved of these
}

TEST(SynthSlices, BlocksOfAProduct) {
  const std::string in = "A = input : f64[12,10]\nB = input : f64[10,8]\n";
  const Graph inner = form(in + "a = slice A {starts=[0,0], stops=[12,4], steps=[1,1]}\n"
                                "b = slice A {starts=[0,4], stops=[12,10], steps=[1,1]}\n"
                                "c = slice B {starts=[0,0], stops=[4,8], steps=[1,1]}\n"
                                "d = slice B {starts=[4,0], stops=[10,8], steps=[1,1]}\n"
                                "p = matmul a, c\nq = matmul b, d\ny = add p, q\nreturn y");
  EXPECT_EQ(count(inner, OpKind::Matmul), 1) << print(inner);
  EXPECT_EQ(count(inner, OpKind::Slice), 0) << print(inner);
  const Graph rows =
      form(in + "a = slice A {starts=[0,0], stops=[4,10], steps=[1,1]}\n"
                "b = slice A {starts=[4,0], stops=[12,10], steps=[1,1]}\n"
                "p = matmul a, B\nq = matmul b, B\ny = concat p, q {axis=0}\nreturn y");
  EXPECT_EQ(rows.ops().size(), 3u) << print(rows);
  const Graph row = form(in + "p = matmul A, B\n"
                              "y = slice p {starts=[3,0], stops=[4,8], steps=[1,1]}\nreturn y");
  EXPECT_EQ(num_elements(row.type(row.outputs()[0]).shape), 8) << print(row);
  EXPECT_EQ(num_elements(row.type(row.producer(row.outputs()[0]).inputs[0]).shape), 10)
      << print(row);
}

TEST(SynthSlices, DotProductsOfPartsAreOne) {
  const Graph g = form("x = input : f64[40]\ny = input : f64[40]\n"
                       "a = slice x {starts=[0], stops=[15], steps=[1]}\n"
                       "b = slice x {starts=[15], stops=[40], steps=[1]}\n"
                       "c = slice y {starts=[0], stops=[15], steps=[1]}\n"
                       "d = slice y {starts=[15], stops=[40], steps=[1]}\n"
                       "a1 = unsqueeze a {axes=[0]}\nb1 = unsqueeze b {axes=[0]}\n"
                       "c1 = unsqueeze c {axes=[1]}\nd1 = unsqueeze d {axes=[1]}\n"
                       "p = matmul a1, c1\nq = matmul b1, d1\ns = squeeze p {axes=[0,1]}\n"
                       "t = squeeze q {axes=[0,1]}\nr = add s, t\nreturn r");
  EXPECT_EQ(count(g, OpKind::Matmul), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Slice), 0) << print(g);
}

TEST(SynthSlices, WhatIsPutTogetherAgainWasNeverCut) {
  const Graph g = form(kSlicedParts + "e = exp a\nf = exp b\ny = concat e, f {axis=0}\nreturn y");
  EXPECT_EQ(g.ops().size(), 2u) << print(g);
  // In another order it is something else.
  EXPECT_TRUE(forms(kSlicedParts + "y = concat b, a {axis=0}\nreturn y").empty());
}

TEST(SynthSlices, SlicesComeFirstWhereThatIsLess) {
  const std::string f = "x = input : f64[40]\ne = exp x\n";
  const Graph head = form(f + "y = slice e {starts=[0], stops=[5], steps=[1]}\nreturn y");
  EXPECT_EQ(num_elements(head.type(head.outputs()[0]).shape), 5);
  EXPECT_EQ(head.producer(head.outputs()[0]).kind, OpKind::Exp) << print(head);
  // Of neighbours nearly all would be computed twice: that is another form, and not the first.
  const std::string twice = f + "a = slice e {starts=[0], stops=[39], steps=[1]}\n"
                                "b = slice e {starts=[1], stops=[40], steps=[1]}\n"
                                "y = sub b, a\nreturn y";
  const std::vector<Graph> both = forms(twice);
  ASSERT_EQ(both.size(), 1u);
  EXPECT_EQ(count(both[0], OpKind::Exp), 2) << print(both[0]);
  // What is needed as a whole stays.
  EXPECT_TRUE(forms(f + "y = slice e {starts=[0], stops=[5], steps=[1]}\nreturn y, e").empty());
}

TEST(SynthSlices, TheSearchGoesOnFromThere) {
  const Graph g = parse("graph g {\n" + kNeighbours +
                        "c = const {value=3} : f64[]\np = mul b, c\nq = mul a, c\nd = sub p, q\n"
                        "y = sum d {axes=[0]}\nreturn y\n}");
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 100'000;
  CollectingSink sink;
  const SearchReport report = Synth().run(Subprogram{g}, context, budget, sink);
  ASSERT_FALSE(sink.candidates.empty());
  const Candidate& best = sink.candidates[0];
  EXPECT_TRUE(verify(g, best.graph).equal()) << print(best.graph);
  EXPECT_EQ(count(best.graph, OpKind::Sum), 0) << print(best.graph);
  EXPECT_EQ(count(best.graph, OpKind::Mul), 1) << print(best.graph);
  EXPECT_LT(best.cost, report.original_cost);
  EXPECT_NE(best.derivation.find("slices"), std::string::npos) << best.derivation;
}

}  // namespace
}  // namespace tessera
