// Programs of static slices, said in other ways before they are searched.
#include <gtest/gtest.h>

#include <algorithm>

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

// The elements of the largest result of an operator of this kind.
int64_t largest(const Graph& g, OpKind kind) {
  int64_t n = 0;
  for (const Op& op : g.ops())
    if (op.kind == kind) n = std::max(n, num_elements(g.type(op.result()).shape));
  return n;
}

TEST(SynthSlices, ComeBeforeProductsOfBatches) {
  const Graph g = form("x = input : f32[4,6,8]\nw = input : f32[8,5]\nb = input : f32[5]\n"
                       "p = matmul x, w\ns = add p, b\n"
                       "t = slice s {starts=[0,5,0], stops=[4,6,5], steps=[1,1,1]}\n"
                       "y = squeeze t {axes=[1]}\nreturn y");
  EXPECT_EQ(largest(g, OpKind::Matmul), 4 * 5) << print(g);
  // The same where a Linear's batch and rows are one axis.
  const Graph h = form("x = input : f32[4,6,8]\nw = input : f32[8,5]\n"
                       "m = reshape x {shape=[24,8]}\np = matmul m, w\ne = exp p\n"
                       "r = reshape e {shape=[4,6,5]}\n"
                       "y = slice r {starts=[0,5,0], stops=[4,6,5], steps=[1,1,1]}\nreturn y");
  EXPECT_EQ(largest(h, OpKind::Matmul), 4 * 5) << print(h);
}

TEST(SynthSlices, TheLastQueryAlone) {
  const Graph g = form("q = input : f32[2,6,4]\nk = input : f32[2,4,6]\nv = input : f32[2,6,4]\n"
                       "s = matmul q, k\nm = reduce_max s {axes=[2], keepdims=true}\n"
                       "d = sub s, m\ne = exp d\nz = sum e {axes=[2], keepdims=true}\n"
                       "p = div e, z\no = matmul p, v\n"
                       "y = slice o {starts=[0,5,0], stops=[2,6,4], steps=[1,1,1]}\nreturn y");
  EXPECT_EQ(largest(g, OpKind::Matmul), 2 * 6) << print(g);
  EXPECT_EQ(largest(g, OpKind::Exp), 2 * 6) << print(g);
}

TEST(SynthSlices, OfWhatWasMovedOrFilledUp) {
  const std::string in = "x = input : f32[4,6]\nz = input : f32[3,6]\n";
  const Graph joined = form(in + "c = concat x, z {axis=0}\ne = exp c\n"
                                 "y = slice e {starts=[1,0], stops=[4,6], steps=[1,1]}\nreturn y");
  EXPECT_EQ(count(joined, OpKind::Concat), 0) << print(joined);
  const Graph stacked = form(in + "a = exp x\nb = tanh x\nc = stack a, b, a {axis=1}\n"
                                  "y = slice c {starts=[0,1,0], stops=[4,2,6], steps=[1,1,1]}\n"
                                  "return y");
  EXPECT_EQ(count(stacked, OpKind::Exp), 0) << print(stacked);
  const Graph cropped = form(in + "p = pad x {low=[1,2], high=[1,0], value=0}\nt = tanh p\n"
                                  "y = slice t {starts=[1,2], stops=[5,8], steps=[1,1]}\nreturn y");
  EXPECT_EQ(cropped.ops().size(), 3u) << print(cropped);  // z is not used
  const Graph steps = form(in + "p = pad x {low=[3,0], high=[2,0], value=1}\nt = tanh p\n"
                                "y = slice t {starts=[1,0], stops=[9,6], steps=[3,2]}\nreturn y");
  EXPECT_EQ(largest(steps, OpKind::Tanh), 3 * 3) << print(steps);
  const Graph wide = form("x = input : f32[6]\nt = exp x\nb = broadcast t {shape=[5,6]}\n"
                          "u = tanh b\n"
                          "y = slice u {starts=[1,2], stops=[3,4], steps=[1,1]}\nreturn y");
  EXPECT_EQ(largest(wide, OpKind::Exp), 2) << print(wide);
}

TEST(SynthSlices, OfConvolutions) {
  const std::string in = "x = input : f32[1,2,9,9]\nw = input : f32[4,2,3,3]\n"
                         "c = conv x, w {strides=[2,1], low=[1,1], high=[1,1]}\n";
  // All of these are [1,4,5,9].
  const Graph inner = form(in + "y = slice c {starts=[0,0,2,3], stops=[1,4,4,5], "
                                "steps=[1,1,1,1]}\nreturn y");
  EXPECT_EQ(largest(inner, OpKind::Slice), 2 * 5 * 4) << print(inner);
  EXPECT_EQ(largest(inner, OpKind::Conv), 4 * 2 * 2) << print(inner);
  const Graph corner = form(in + "y = slice c {starts=[0,0,0,0], stops=[1,4,5,9], "
                                 "steps=[1,1,2,4]}\nreturn y");
  EXPECT_EQ(largest(corner, OpKind::Conv), 4 * 3 * 3) << print(corner);
  const Graph filters = form(in + "y = slice c {starts=[0,1,0,0], stops=[1,3,5,9], "
                                  "steps=[1,1,1,1]}\nreturn y");
  EXPECT_EQ(largest(filters, OpKind::Conv), 2 * 5 * 9) << print(filters);
}

TEST(SynthSlices, SoAreRowsAtIndices) {
  const std::string in = "x = input : f32[40,6]\nw = input : f32[6,5]\ni = input : i64[3]\n"
                         "j = input : i64[2,2]\nk = input : i64[]\n";
  const Graph g = form(in + "t = tanh x\ne = exp t\ny = gather e, i {axis=0}\nreturn y");
  EXPECT_EQ(largest(g, OpKind::Tanh), 3 * 6) << print(g);
  const Graph p = form(in + "t = tanh x\np = matmul t, w\nn = neg i\nm = neg n\n"
                            "y = gather p, m {axis=0}\nreturn y");
  EXPECT_EQ(largest(p, OpKind::Tanh), 3 * 6) << print(p);
  const Graph s = form(in + "e = exp x\ns = sum e {axes=[1]}\ny = gather s, j {axis=0}\n"
                            "return y");
  EXPECT_EQ(largest(s, OpKind::Exp), 4 * 6) << print(s);
  const Graph one = form(in + "p = matmul x, w\ny = gather p, k {axis=0}\nreturn y");
  EXPECT_EQ(largest(one, OpKind::Matmul), 5) << print(one);
}

TEST(SynthSlices, AnIndexIsCheckedAgainstAsManyRows) {
  const std::string in = "x = input : f32[40,6]\nv = input : f32[6]\ni = input : i64[3]\n";
  // Of the first five rows, and of a row that is repeated: not of more, and not at all. (Of parts
  // of inputs the verifier knows no gathers.)
  const Graph part = parse("graph g {\n" + in +
                           "e = exp x\n"
                           "s = slice e {starts=[0,0], stops=[5,6], steps=[1,1]}\n"
                           "y = gather s, i {axis=0}\nreturn y\n}");
  for (const synth::Retold& r : synth::reslice(part))
    EXPECT_EQ(largest(r.graph, OpKind::Slice), 5 * 6) << print(r.graph);
  EXPECT_TRUE(forms(in + "e = exp v\nb = broadcast e {shape=[40,6]}\n"
                         "y = gather b, i {axis=0}\nreturn y")
                  .empty());
  // Indices that are not asked for are still indices.
  EXPECT_TRUE(forms(in + "g = gather x, i {axis=0}\ne = exp g\n"
                         "y = slice e {starts=[0,0], stops=[1,6], steps=[1,1]}\nreturn y, e")
                  .empty());
  const Graph h = form(in + "g = gather x, i {axis=0}\ne = exp g\n"
                            "y = slice e {starts=[0,0], stops=[1,6], steps=[1,1]}\nreturn y");
  EXPECT_EQ(largest(h, OpKind::Gather), 3 * 6) << print(h);
  EXPECT_EQ(largest(h, OpKind::Exp), 6) << print(h);
}

TEST(SynthSlices, PartsThatAreAllOfAProductStayOne) {
  EXPECT_TRUE(forms("x = input : f32[4,8]\nw = input : f32[8,6]\np = matmul x, w\n"
                    "a = slice p {starts=[0,0], stops=[4,2], steps=[1,1]}\n"
                    "b = slice p {starts=[0,2], stops=[4,6], steps=[1,1]}\n"
                    "t = tanh a\nreturn t, b")
                  .size() < 2);
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
