#include "search/synth/synth.h"

#include <gtest/gtest.h>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/reroll.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

struct Synthesis {
  SearchReport report;
  std::vector<Candidate> candidates;
};
Synthesis synthesize(const Graph& g, uint64_t seed = 0) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  context.seed = seed;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  CollectingSink sink;
  Synthesis s;
  s.report = Synth().run(Subprogram{g}, context, budget, sink);
  s.candidates = std::move(sink.candidates);
  return s;
}

// The best program for `text`: proved equal and cheaper.
Graph best(const char* text) {
  const Graph g = parse(text);
  const Synthesis s = synthesize(g);
  if (s.candidates.empty()) {
    ADD_FAILURE() << "nothing found: " << s.report.detail << "\n" << text;
    return g;
  }
  const Graph& found = s.candidates[0].graph;
  validate(found);
  EXPECT_TRUE(verify(g, found).equal()) << print(found);
  EXPECT_LT(s.candidates[0].cost, s.report.original_cost) << print(found);
  return found;
}

TEST(Synth, ProductsOfWhichADiagonalIsLeftAreNotComputed) {
  const Graph g = best(R"(graph g {
  A = input : f32[90,70]
  B = input : f32[70,90]
  C = matmul A, B
  r = reshape C {shape=[8100]}
  d = slice r {starts=[0], stops=[8100], steps=[91]}
  return d
})");
  EXPECT_EQ(count(g, OpKind::Matmul), 0) << print(g);
  EXPECT_EQ(count(g, OpKind::Sum), 1) << print(g);
}

TEST(Synth, ChainsAreReassociated) {
  const Graph g = best(R"(graph g {
  A = input : f32[300,400]
  B = input : f32[400,500]
  v = input : f32[500]
  C = matmul A, B
  w = unsqueeze v {axes=[1]}
  x = matmul C, w
  y = squeeze x {axes=[1]}
  return y
})");
  EXPECT_EQ(count(g, OpKind::Matmul), 2) << print(g);
  for (const Op& op : g.ops()) {
    if (op.kind != OpKind::Matmul) continue;
    EXPECT_EQ(extents(g.type(op.result()).shape).back(), 1) << print(g);
  }
}

TEST(Synth, FactorsAndConstantsAreGathered) {
  // 3·A·B + A·B·2 − A·B = 4·A·B: the 4 stands nowhere.
  const Graph g = best(R"(graph g {
  A = input : f32[64,64]
  B = input : f32[64,64]
  t = const {value=3} : f32[]
  u = const {value=2} : f32[]
  p = mul A, B
  x = mul t, p
  y = mul p, u
  z = add x, y
  w = sub z, p
  return w
})");
  EXPECT_LE(computing_ops(g), 2) << print(g);
}

TEST(Synth, PowersAndRootsCancel) {
  const Graph g = best(R"(graph g {
  A = input : f32[64,64]
  r = sqrt A
  s = add r, r
  p = pow s {exponent=6}
  q = pow s {exponent=4}
  y = div p, q
  return y
})");
  EXPECT_EQ(computing_ops(g), 1) << print(g);
}

TEST(Synth, ScalingsLeaveSums) {
  const Graph g = best(R"(graph g {
  A = input : f32[200,300]
  x = input : f32[300]
  p = mul A, x
  s = sum p {axes=[0]}
  return s
})");
  ASSERT_EQ(count(g, OpKind::Mul), 1) << print(g);
  for (const Op& op : g.ops()) {
    if (op.kind != OpKind::Mul) continue;
    EXPECT_EQ(g.type(op.result()).rank(), 1) << print(g);
  }
}

TEST(Synth, MaximaOfStacks) {
  const Graph g = best(R"(graph g {
  A = input : f32[64,64]
  B = input : f32[64,64]
  s = stack A, B {axis=0}
  m = reduce_max s {axes=[0]}
  return m
})");
  EXPECT_EQ(count(g, OpKind::Max), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Stack), 0) << print(g);
}

TEST(Synth, BranchesBecomeMaxima) {
  const Graph g = parse(R"(graph g {
  x = input : f32[1000]
  zero = const {value=0} : f32[]
  six = const {value=6} : f32[]
  low = gt x, zero
  high = lt x, six
  upper = where high, x, six
  y = where low, upper, zero
  return y
})");
  // Not all of them can be proved: in a field x can be below 0 and above 6.
  bool proved = false;
  for (const Candidate& c : synthesize(g).candidates)
    proved = proved || (computing_ops(c.graph) == 2 && count(c.graph, OpKind::Where) == 0 &&
                        verify(g, c.graph).equal());
  EXPECT_TRUE(proved);
  const Graph positive = best(R"(graph g {
  x = input : f32[1000]
  a = abs x
  s = add x, a
  two = const {value=2} : f32[]
  y = div s, two
  return y
})");
  EXPECT_EQ(computing_ops(positive), 1) << print(positive);  // max(x, 0), and 0 is nowhere in it
}

TEST(Synth, TiledRowsAreBroadcast) {
  const Graph g = best(R"(graph g {
  x = input : f32[200]
  A = input : f32[300,200]
  row = reshape x {shape=[1,200]}
  rows = repeat row {repeats=[300,1]}
  y = mul rows, A
  return y
})");
  EXPECT_EQ(count(g, OpKind::Repeat), 0) << print(g);
  EXPECT_EQ(computing_ops(g), 1) << print(g);
}

TEST(Synth, WhatWasFoundRightIsNotBlamedLater) {
  // One pass over X (a sum of squares less a square of sums) loses digits and is refused; the
  // diagonal that was saved before must not go with it.
  const Graph g = best(R"(graph g {
  X = input : f64[500,40]
  m = mean X {axes=[0]}
  D = sub X, m
  T = transpose D {perm=[1,0]}
  C = matmul T, D
  n = const {value=499} : f64[]
  S = div C, n
  r = reshape S {shape=[1600]}
  d = slice r {starts=[0], stops=[1600], steps=[41]}
  t = sum d {axes=[0]}
  return t
})");
  EXPECT_EQ(count(g, OpKind::Matmul), 0) << print(g);
}

TEST(Synth, OutputsShareTheirWork) {
  const Graph g = best(R"(graph g {
  A = input : f32[64,64]
  B = input : f32[64,64]
  p = mul A, B
  q = mul B, A
  r = add p, A
  s = add q, B
  return r, s
})");
  EXPECT_EQ(computing_ops(g), 3) << print(g);
}

TEST(Synth, WhatItDoesNotKnowStaysInPlace) {
  const Graph g = best(R"(graph g {
  A = input : f32[40,30]
  a = add A, A
  b = sub a, A
  c = cumsum b {axis=1}
  d = add c, c
  e = sub d, c
  return e
})");
  EXPECT_EQ(count(g, OpKind::Cumsum), 1) << print(g);
  EXPECT_EQ(computing_ops(g), 1) << print(g);
}

TEST(Synth, ProgramsWithNothingToGainAreLeftAlone) {
  const Synthesis s = synthesize(parse(R"(graph g {
  A = input : f32[64,64]
  v = input : f32[64]
  B = add A, v
  return B
})"));
  EXPECT_EQ(s.report.stop, StopReason::Exhausted) << s.report.detail;
  for (const Candidate& c : s.candidates)
    EXPECT_GE(c.cost, s.report.original_cost) << print(c.graph);
}

TEST(Synth, EqualSizesAreNotEqualAxes) {
  // A and Aᵀ have one shape here, and are not the same.
  const Graph g = parse(R"(graph g {
  A = input : f32[50,50]
  s = sum A {axes=[0]}
  t = sum A {axes=[1]}
  d = sub s, t
  return d
})");
  for (const Candidate& c : synthesize(g).candidates)
    EXPECT_TRUE(verify(g, c.graph).equal()) << print(c.graph);
}

TEST(Synth, IsDeterministic) {
  const Graph g = parse(R"(graph g {
  A = input : f32[64,64]
  B = input : f32[64,64]
  C = input : f32[64,64]
  p = mul A, B
  q = mul C, B
  r = add p, q
  return r
})");
  const Synthesis a = synthesize(g), b = synthesize(g);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(print(a.candidates[i].graph), print(b.candidates[i].graph));
    EXPECT_EQ(a.candidates[i].cost, b.candidates[i].cost);
  }
  EXPECT_EQ(a.report.values, b.report.values);
}

TEST(Synth, SymbolsAreRefused) {
  EXPECT_EQ(synthesize(parse("graph g {\n  a = input : f32[N]\n  b = add a, a\n  return b\n}"))
                .report.stop,
            StopReason::Unsupported);
}

// --- loops ------------------------------------------------------------------------------------

// A loop over rows, as tracing writes it: `row` is the body, with R for the row and T for its
// result.
Graph unrolled(int rows, const std::string& body, const std::string& end, bool reversed = false) {
  std::string text =
      "graph g {\n  A = input : f32[" + std::to_string(rows) + ",8]\n  x = input : f32[8]\n";
  std::string results;
  for (int i = 0; i < rows; ++i) {
    const std::string n = std::to_string(i), at = std::to_string(reversed ? rows - 1 - i : i),
                      next = std::to_string((reversed ? rows - 1 - i : i) + 1);
    text += "  s" + n + " = slice A {starts=[" + at + ",0], stops=[" + next + ",8], steps=[1,1]}\n";
    text += "  R" + n + " = squeeze s" + n + " {axes=[0]}\n";
    for (char c : body) {
      text += c;
      if (c == 'R' || c == 'T' || c == 'U') text += n;
    }
    results += (i ? ", T" : "T") + n;
  }
  const size_t at = end.find("RESULTS");
  return parse(text + end.substr(0, at) + results + end.substr(at + 7));
}

TEST(Reroll, RowsOfAStackBecomeOneBroadcast) {
  const Graph g = unrolled(9, "  U = mul R, x\n  T = sub U, R\n",
                           "  y = stack RESULTS {axis=1}\n  return y\n}");
  const auto rolled = synth::reroll(g);
  ASSERT_TRUE(rolled);
  EXPECT_TRUE(verify(g, rolled->graph).equal()) << print(rolled->graph);
  EXPECT_EQ(count(rolled->graph, OpKind::Mul), 1) << print(rolled->graph);
  EXPECT_EQ(count(rolled->graph, OpKind::Stack), 0) << print(rolled->graph);
}

TEST(Reroll, RowsOfReductionsAndProducts) {
  const Graph g =
      unrolled(5, "  U = unsqueeze R {axes=[0]}\n  T = sum U {axes=[1], keepdims=true}\n",
               "  y = concat RESULTS {axis=0}\n  return y\n}");
  const auto rolled = synth::reroll(g);
  ASSERT_TRUE(rolled);
  EXPECT_TRUE(verify(g, rolled->graph).equal()) << print(rolled->graph);
  EXPECT_EQ(count(rolled->graph, OpKind::Sum), 1) << print(rolled->graph);
}

TEST(Reroll, RowsInAnotherOrderStay) {
  const Graph g =
      unrolled(5, "  T = mul R, x\n", "  y = stack RESULTS {axis=0}\n  return y\n}", true);
  EXPECT_FALSE(synth::reroll(g));
}

TEST(Reroll, TermsOfALongSum) {
  std::string text = "graph g {\n  A = input : f32[6,8]\n";
  std::string sum;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i), next = std::to_string(i + 1);
    text += "  s" + n + " = slice A {starts=[" + n + ",0], stops=[" + next + ",8], steps=[1,1]}\n" +
            "  q" + n + " = sqr s" + n + "\n";
    if (i > 0)
      text +=
          "  a" + n + " = add " + (i == 1 ? "q0" : "a" + std::to_string(i - 1)) + ", q" + n + "\n";
  }
  const Graph g = parse(text + "  return a5\n}");
  const auto rolled = synth::reroll(g);
  ASSERT_TRUE(rolled);
  EXPECT_TRUE(verify(g, rolled->graph).equal()) << print(rolled->graph);
  EXPECT_EQ(count(rolled->graph, OpKind::Add), 0) << print(rolled->graph);
}

TEST(Reroll, DifferentRowsStay) {
  EXPECT_FALSE(synth::reroll(parse(R"(graph g {
  A = input : f32[2,8]
  a = slice A {starts=[0,0], stops=[1,8], steps=[1,1]}
  b = slice A {starts=[1,0], stops=[2,8], steps=[1,1]}
  c = sqr a
  d = neg b
  y = stack c, d {axis=0}
  return y
})")));
}

}  // namespace
}  // namespace tessera
