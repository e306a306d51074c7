#include "search/fold/fold.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

// The first folding; proved equal.
Graph folded(const char* text, const std::string& rule) {
  const Graph g = parse(text);
  const std::vector<Folding> all = fold_weights(g);
  if (all.empty()) {
    ADD_FAILURE() << "nothing folded";
    return g;
  }
  EXPECT_NE(all[0].derivation.find(rule), std::string::npos) << all[0].derivation;
  EXPECT_LT(work_per_call(all[0].graph), work_per_call(g));
  for (const Folding& f : all) EXPECT_TRUE(verify(g, f.graph).equal()) << print(f.graph);
  return all[0].graph;
}

TEST(Fold, GainsMoveIntoTheMatrix) {
  const Graph g = folded(R"(graph rms {
  X = input : f32[4,32]
  G = input {weight=true} : f32[32]
  W = input {weight=true} : f32[32,16]
  S = sqr X : f32[4,32]
  M = mean S {axes=[1], keepdims=true} : f32[4,1]
  R = sqrt M : f32[4,1]
  N = div X, R : f32[4,32]
  A = mul N, G : f32[4,32]
  Y = matmul A, W : f32[4,16]
  return Y
}
)",
                         "(x*g) W = x (g*W)");
  EXPECT_NE(print(g).find("mul W"), std::string::npos) << print(g);
}

TEST(Fold, LowRankUpdatesMerge) {
  const Graph g = folded(R"(graph lora {
  X = input : f32[4,32]
  W = input {weight=true} : f32[32,16]
  A = input {weight=true} : f32[32,2]
  B = input {weight=true} : f32[2,16]
  P = matmul X, W : f32[4,16]
  Q = matmul X, A : f32[4,2]
  R = matmul Q, B : f32[4,16]
  Y = add P, R : f32[4,16]
  return Y
}
)",
                         "x A + x B");
  int per_call = 0;
  for (const Op& op : g.ops())
    per_call += op.kind == OpKind::Matmul && op.inputs[0] == g.inputs()[0];
  EXPECT_EQ(per_call, 1) << print(g);
}

TEST(Fold, ScalesBehindAndWeightsOnTheLeft) {
  folded(R"(graph behind {
  X = input : f32[4,32]
  W = input {weight=true} : f32[32,16]
  C = input {weight=true} : f32[16]
  P = matmul X, W : f32[4,16]
  Y = div P, C : f32[4,16]
  return Y
}
)",
         "(x W)*c = x (W*c)");
  folded(R"(graph left {
  X = input : f32[32,6]
  W = input {weight=true} : f32[16,32]
  G = input {weight=true} : f32[32,1]
  C = input {weight=true} : f32[16,1]
  S = mul G, X : f32[32,6]
  P = matmul W, S : f32[16,6]
  Y = mul P, C : f32[16,6]
  return Y
}
)",
         "W (g*x) = (W*g) x");
}

TEST(Fold, OnlyWhatPaysAndOnlyWeights) {
  // A product of small factors is not multiplied out, and nothing moves without weights.
  const char* const kThin = R"(graph thin {
  X = input : f32[4,64]
  A = input {weight=true} : f32[64,2]
  B = input {weight=true} : f32[2,64]
  P = matmul X, A : f32[4,2]
  Y = matmul P, B : f32[4,64]
  return Y
}
)";
  EXPECT_TRUE(fold_weights(parse(kThin)).empty());
  const char* const kPlain = R"(graph plain {
  X = input : f32[4,32]
  C = input : f32[16]
  W = input {weight=true} : f32[32,16]
  P = matmul X, W : f32[4,16]
  Y = mul P, C : f32[4,16]
  return Y
}
)";
  EXPECT_TRUE(fold_weights(parse(kPlain)).empty());
  // g varies along the rows: no scaling of the contracted axis. x/g is one, g/x is none.
  const char* const kRows = R"(graph rows {
  X = input : f32[4,32]
  G = input {weight=true} : f32[4,1]
  H = input {weight=true} : f32[32]
  W = input {weight=true} : f32[32,16]
  S = mul X, G : f32[4,32]
  D = div H, S : f32[4,32]
  Y = matmul D, W : f32[4,16]
  return Y
}
)";
  EXPECT_TRUE(fold_weights(parse(kRows)).empty());
}

}  // namespace
}  // namespace tessera
