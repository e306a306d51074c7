#include "search/fold/fold.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "ir/weights.h"
#include "ir/window.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

// The first folding; proved equal.
Graph folded(const char* text, const std::string& rule, Accuracy level = Accuracy::Close) {
  const Graph g = parse(text);
  const std::vector<Folding> all = fold_weights(g);
  if (all.empty()) {
    ADD_FAILURE() << "nothing folded";
    return g;
  }
  EXPECT_NE(all[0].derivation.find(rule), std::string::npos) << all[0].derivation;
  EXPECT_LT(work_per_call(all[0].graph), work_per_call(g));
  VerifyOptions options;
  options.level = level;
  for (const Folding& f : all) EXPECT_TRUE(verify(g, f.graph, options).equal()) << print(f.graph);
  return all[0].graph;
}

// Products and convolutions of a program that are not computed once.
int products_per_call(const Graph& g) {
  const std::vector<bool> once = computed_once(g);
  int count = 0;
  for (size_t i = 0; i < g.ops().size(); ++i)
    count += !once[i] && (g.ops()[i].kind == OpKind::Matmul || is_convolution(g.ops()[i].kind));
  return count;
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
                         "x A*a + x B*b");
  EXPECT_EQ(products_per_call(g), 1) << print(g);
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
         "x A*a + x B*b");
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

TEST(Fold, ShiftsPassProducts) {
  const Graph g = folded(R"(graph layers {
  X = input : f32[4,8]
  A = input {weight=true} : f32[8,32]
  B = input {weight=true} : f32[32]
  C = input {weight=true} : f32[32,8]
  D = input {weight=true} : f32[8]
  P = matmul X, A : f32[4,32]
  Q = sub P, B : f32[4,32]
  R = matmul Q, C : f32[4,8]
  Y = add R, D : f32[4,8]
  return Y
}
)",
                         "(y + b) W = y W + b W");
  EXPECT_NE(print(g).find("matmul A, C"), std::string::npos) << print(g);
}

TEST(Fold, SumsPassProducts) {
  folded(R"(graph mean {
  X = input : f32[2,4,8]
  A = input {weight=true} : f32[8,16]
  B = input {weight=true} : f32[16]
  H = const {value=0.5} : f32[]
  P = matmul X, A : f32[2,4,16]
  Q = add P, B : f32[2,4,16]
  R = sub Q, H : f32[2,4,16]
  S = div R, H : f32[2,4,16]
  Y = mean S {axes=[2], keepdims=true} : f32[2,4,1]
  return Y
}
)",
         "L(x W) = x L(W)");
  folded(R"(graph windows {
  X = input : f32[4,8]
  A = input {weight=true} : f32[8,16]
  B = input {weight=true} : f32[16]
  P = matmul X, A : f32[4,16]
  Q = add P, B : f32[4,16]
  R = unsqueeze Q {axes=[1,2]} : f32[4,1,1,16]
  Y = pool_sum R {size=[1,3], strides=[1,2], dilations=[1,2], low=[0,1], high=[0,2]} : f32[4,1,1,8]
  return Y
}
)",
         "L(x W) = x L(W)");
}

TEST(Fold, SumsOfOneRowAndOfOneNumberAreNoError) {
  const std::string head =
      "graph odd {\n  X = input : f32[1,8]\n  A = input {weight=true} : "
      "f32[8,16]\n  B = input {weight=true} : f32[1,16]\n  N = input : f32[]\n";
  for (const std::string body :
       {"  P = matmul X, A : f32[1,16]\n  Q = squeeze P {axes=[0]} : f32[16]\n",
        "  P = matmul X, A : f32[1,16]\n  R = add P, B : f32[1,16]\n"
        "  Q = squeeze R {axes=[0]} : f32[16]\n",
        "  Q = reshape N {shape=[1]} : f32[1]\n"}) {
    const Graph g = parse(head + body + "  Y = sum Q {axes=[0]} : f32[]\n  return Y\n}\n");
    for (const Folding& f : fold_weights(g)) EXPECT_TRUE(verify(g, f.graph).equal());
  }
}

TEST(Fold, SumsOfImagesPassConvolutions) {
  const std::string head = R"(graph image {
  X = input : f32[2,3,9,7]
  B = input {weight=true} : f32[4,1,1]
)";
  for (const auto& [conv, shape] : std::vector<std::pair<std::string, std::string>>{
           {"W = input {weight=true} : f32[4,3,3,2]\n  P = conv X, W {strides=[2,1], "
            "dilations=[1,3], low=[1,0], high=[2,1]}",
            "[2,4,5,5]"},
           {"W = input {weight=true} : f32[3,4,3,2]\n  P = conv_transpose X, W {strides=[2,3], "
            "dilations=[2,1], low=[1,2], high=[0,3]}",
            "[2,4,20,15]"}})
    for (const std::string total :
         {"mean P2 {axes=[2,3], keepdims=true} : f32[2,4,1,1]", "sum P2 {axes=[2,3]} : f32[2,4]"})
      folded((head + "  " + conv + " : f32" + shape + "\n  P2 = add P, B : f32" + shape +
              "\n  Y = " + total + "\n  return Y\n}\n")
                 .c_str(),
             "L(conv(x, w)) = (sums of x) w");
}

TEST(Fold, ConvolutionsInTurnAreOne) {
  const std::string head = R"(graph image {
  X = input : f32[2,3,9,7]
  A = input {weight=true} : f32[16,3,3,2]
  B = input {weight=true} : f32[4,16,1,1]
  C = input {weight=true} : f32[16,1,1]
  D = input {weight=true} : f32[16,3,1,1]
  E = input {weight=true} : f32[2,16,3,2]
)";
  const std::string windows = "{strides=[2,1], dilations=[1,3], low=[1,0], high=[2,1]}";
  folded(
      (head + "  P = conv X, A " + windows + "\n  Q = add P, C\n  Y = conv Q, B\n  return Y\n}\n")
          .c_str(),
      "(x * A) * B = x * (B A)");
  folded((head + "  P = conv X, D\n  Y = conv P, E " + windows + "\n  return Y\n}\n").c_str(),
         "(x * A) * B = x * (B A)");
  // Padding is of zeros, not of what is added: the edges differ.
  const Graph g =
      folded((head + "  P = conv X, D\n  Q = mul P, C\n  R = add Q, C\n  Y = conv R, E " + windows +
              "\n  return Y\n}\n")
                 .c_str(),
             "(y + b) W = y W + b W");
  EXPECT_EQ(products_per_call(g), 1) << print(g);
}

TEST(Fold, SumsOfConvolutionsAreOne) {
  const std::string head = R"(graph branches {
  X = input : f32[2,8,9,7]
  A = input {weight=true} : f32[8,8,3,3]
  B = input {weight=true} : f32[8,8,1,1]
  C = input {weight=true} : f32[8,1,1]
  D = input {weight=true} : f32[8,1,1]
  E = input {weight=true} : f32[8,2,3,1]
  F = input {weight=true} : f32[8,2,1,1]
)";
  const std::string end = "\n  return Y\n}\n";
  const auto check = [&](const std::string& body, Accuracy level) {
    const Graph g = folded((head + body + end).c_str(), "x A*a + x B*b", level);
    EXPECT_EQ(products_per_call(g), 1) << print(g);
  };
  // Scales and shifts, and the image itself; groups.
  check("  P = conv X, B\n  P2 = mul P, C\n  P3 = add P2, D\n  Q = conv X, B\n  Q2 = add Q, D\n"
        "  Q3 = div Q2, C\n  R = sub X, D\n  S = sub R, P3\n  Y = sub S, Q3",
        Accuracy::Close);
  check("  P = conv X, F {groups=4}\n  Y = add X, P", Accuracy::Close);
  // Fewer taps than in the other, whose digits are lost where they are large; taps that lie apart.
  check("  P = conv X, A {low=[1,1], high=[1,1]}\n  Q = conv X, B\n  R = mul X, C\n"
        "  S = sub Q, P\n  Y = add R, S",
        Accuracy::Fast);
  check("  P = conv X, E {low=[2,0], high=[2,0], dilations=[2,1], groups=4}\n"
        "  Q = conv X, F {groups=4}\n  R = add P, Q\n  Y = add X, R",
        Accuracy::Fast);
  check("  P = conv_transpose X, A {low=[1,1], high=[0,0], strides=[2,1]}\n"
        "  Q = conv_transpose X, B {low=[0,0], high=[-1,-1], strides=[2,1]}\n  R = mul Q, C\n"
        "  Y = sub R, P",
        Accuracy::Fast);
  // The program after it has two convolutions, and all its digits.
  const Graph block = parse(head +
                            "  P = conv X, A {low=[1,1], high=[1,1]}\n  Q = conv X, B\n"
                            "  R = mul P, C\n  S = add Q, R\n  Y = add X, S" +
                            end);
  const std::vector<Folding> both = fold_weights(block);
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(products_per_call(both[1].graph), 2) << print(both[1].graph);
  EXPECT_TRUE(verify(block, both[1].graph).equal());
  // Taps between those of the wider one, other groups, and what is read twice stay.
  for (const std::string body :
       {"  P = conv X, A {low=[1,1], high=[3,3], dilations=[2,2]}\n  Q = conv X, B\n  Y = add P, Q",
        "  P = conv X, F {groups=4}\n  Q = conv X, B\n  Y = add P, Q",
        "  P = conv X, B\n  Q = mul P, C\n  R = sqrt P\n  Y = add Q, R"})
    for (const Folding& f : fold_weights(parse(head + body + end))) ADD_FAILURE() << print(f.graph);
}

TEST(Fold, SumsOfLayersAreOne) {
  const std::string head = R"(graph layers {
  X = input : f32[4,32]
  A = input {weight=true} : f32[32,16]
  B = input {weight=true} : f32[32,16]
  C = input {weight=true} : f32[16]
  D = input {weight=true} : f32[4,1]
  P = matmul X, A : f32[4,16]
  P2 = add P, C : f32[4,16]
  Q = matmul X, B : f32[4,16]
  Q2 = add Q, C : f32[4,16]
)";
  for (const std::string body :
       {"  Y = sub P2, Q2 : f32[4,16]", "  R = add P2, Q2 : f32[4,16]\n  Y = mul R, D : f32[4,16]",
        "  R = concat P2, Q2 {axis=1} : f32[4,32]\n  S = reshape R {shape=[4,2,16]} : f32[4,2,16]\n"
        "  Y = mean S {axes=[1]} : f32[4,16]",
        "  R = stack P2, Q2 {axis=2} : f32[4,16,2]\n"
        "  Y = sum R {axes=[2], keepdims=true} : f32[4,16,1]"}) {
    const Graph g = folded((head + body + "\n  return Y\n}\n").c_str(), "x A*a + x B*b");
    EXPECT_EQ(products_per_call(g), 1) << print(g);
  }
}

TEST(Fold, SumsPassReshapes) {
  const Graph g = folded(R"(graph layers {
  X = input : f32[2,3,32]
  A = input {weight=true} : f32[32,16]
  B = input {weight=true} : f32[32,16]
  C = input {weight=true} : f32[16]
  H = const {value=0.5} : f32[]
  X1 = reshape X {shape=[6,32]}
  P = matmul X1, A
  P2 = add P, C
  P3 = reshape P2 {shape=[2,3,16]}
  X2 = reshape X {shape=[6,32]}
  Q = matmul X2, B
  Q2 = add Q, C
  Q3 = reshape Q2 {shape=[2,3,16]}
  Q4 = mul Q3, H
  Y = add P3, Q4
  return Y
}
)",
                         "x A*a + x B*b");
  EXPECT_EQ(products_per_call(g), 1) << print(g);
}

TEST(Fold, ShiftsPassPooling) {
  const std::string head = R"(graph pool {
  X = input : f32[2,3,9,8]
  W = input {weight=true} : f32[5,3,1,1]
  B = input {weight=true} : f32[5,1,1]
  P = conv X, W : f32[2,5,9,8]
  Q = add P, B : f32[2,5,9,8]
)";
  for (const std::string body :
       {"pool_sum Q {size=[3,2], strides=[3,2], dilations=[1,1], low=[0,0], high=[0,0]} : "
        "f32[2,5,3,4]",
        "pool_sum Q {size=[2,3], strides=[2,1], dilations=[2,1], low=[1,1], high=[1,0]} : "
        "f32[2,5,5,7]",
        "mean Q {axes=[3]} : f32[2,5,9]"})
    folded((head + "  Y = " + body + "\n  return Y\n}\n").c_str(), "L(y + b) = L(y) + L(b)");
  const Graph g =
      folded((head + "  Y = pool_sum Q {size=[3,2], strides=[3,2]}\n  return Y\n}\n").c_str(),
             "L(conv(x, w)) = conv(L(x), w)");
  EXPECT_EQ(g.producer(g.ops().back().inputs[0]).kind, OpKind::Conv) << print(g);
}

TEST(Fold, WhatIsRepeatedIsComputedOnce) {
  const auto all = [](const std::string& body, size_t large) {
    const Graph f = folded(("graph f {\n" + body + "}\n").c_str(), "repeated");
    for (const Op& op : f.ops())
      EXPECT_LT(is_product(op.kind) || is_convolution(op.kind) || op.kind == OpKind::Tanh
                    ? num_elements(f.type(op.result()).shape)
                    : 0,
                int64_t(large))
          << print(f);
  };
  const std::string layer = "  w = input : f32[6,7]\n  b = input : f32[7]\n";
  for (const char* r : {"repeat x {repeats=[5,1]}", "gather x, i", "reshape u {shape=[20,6]}"})
    all("  x = input : f32[4,6]\n  i = input : i64[20]\n" + layer +
            "  o = unsqueeze x {axes=[1]}\n  u = broadcast o {shape=[4,5,6]}\n  r = " + r +
            "\n  y = matmul r, w\n  z = add y, b\n  h = tanh z\n  return h\n",
        20 * 7);
  // An image that is twice as large.
  all("  x = input : f32[2,6,4,4]\n  w = input {weight=true} : f32[7,6,1,1]\n"
      "  u = unsqueeze x {axes=[3,5]}\n  o = broadcast u {shape=[2,6,4,2,4,2]}\n"
      "  r = reshape o {shape=[2,6,8,8]}\n"
      "  y = conv r, w {strides=[1,1], dilations=[1,1], low=[0,0], high=[0,0], groups=1}\n"
      "  b = input : f32[7,1,1]\n  z = mul y, b\n  h = tanh z\n  return h\n",
      2 * 7 * 64);
  // A table of weights, however few rows are picked; rows of more than one operand stay.
  all("  t = input {weight=true} : f32[40,6]\n  i = input : i64[20]\n"
      "  w = input {weight=true} : f32[6,7]\n  r = gather t, i\n  y = matmul r, w\n  return y\n",
      1 << 20);
  EXPECT_TRUE(fold_weights(parse("graph f {\n  x = input : f32[4,6]\n  y = input : f32[20,6]\n"
                                 "  r = repeat x {repeats=[5,1]}\n  z = add r, y\n"
                                 "  return z\n}\n"))
                  .empty());
}

TEST(Fold, ProductsWithDiagonalMatricesScale) {
  const std::string head = "graph f {\n  v = input : f32[9]\n  x = input : f32[9,5]\n";
  for (const char* body :
       {"  i = iota : i64[9,9]\n  j = iota {axis=1} : i64[9,9]\n  e = eq i, j\n"
        "  c = cast e {dtype=f32}\n  d = mul c, v\n  y = matmul d, x\n  return y\n}\n",
        "  c = reshape v {shape=[9,1]}\n  p = pad c {low=[0,0], high=[0,9]}\n"
        "  f = reshape p {shape=[90]}\n  s = slice f {starts=[0], stops=[81], steps=[1]}\n"
        "  d = reshape s {shape=[9,9]}\n  t = transpose x {perm=[1,0]}\n  y = matmul t, d\n"
        "  return y\n}\n"})
    EXPECT_EQ(products_per_call(folded((head + body).c_str(), "diagonal")), 0);
  // One above it.
  EXPECT_TRUE(fold_weights(parse(head + "  i = iota : i64[9,9]\n  j = iota {axis=1} : i64[9,9]\n"
                                        "  e = le i, j\n  c = cast e {dtype=f32}\n"
                                        "  d = mul c, v\n  y = matmul d, x\n  return y\n}\n"))
                  .empty());
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
