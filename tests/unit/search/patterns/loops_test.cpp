// +Loops and +Graphs: the figures of PluS (ATC'25) and what its resolved ambiguities give.
#include "search/patterns/loops.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"

namespace tessera::patterns {
namespace {

constexpr const char* kMatmulSoftmax = R"(graph g {
  x0 = input : f32[M,K]
  x1 = input : f32[K,N]
  x2 = matmul x0, x1
  x3 = reduce_max x2 {axes=[1], keepdims=true}
  x4 = sub x2, x3
  x5 = exp x4
  x6 = sum x5 {axes=[1], keepdims=true}
  x7 = div x5, x6
  return x7
})";

std::string loops_of(const char* text) {
  const Derived d = derive(parse(text));
  return d.ok() ? print(d.loops) : d.why;
}
// What the loops read and write, in their order: {x2}:{x3}.
std::string tensors_of(const LoopGraph& loops, const Graph& g) {
  std::string text;
  for (const Loop& l : loops) {
    for (const auto* ids : {&l.inputs, &l.outputs}) {
      text += ids == &l.inputs ? "{" : ":{";
      for (TensorId t : *ids) text += (t == ids->front() ? "" : ",") + g.tensor(t).name;
      text += "}";
    }
    text += " " + tensors_of(l.children, g);
  }
  return text;
}
// Of the first `count` operators that compute.
std::string loops_of_first(const Graph& g, size_t count) {
  std::vector<OpId> ops;
  for (uint32_t i = 0; i < g.ops().size() && ops.size() < count; i++)
    if (g.op(OpId(i)).kind != OpKind::Input) ops.push_back(OpId(i));
  return print(derive(g, ops).loops);
}

TEST(Loops, Figure6) {
  const Graph g = parse(kMatmulSoftmax);
  EXPECT_EQ(loops_of_first(g, 1),  // (b)
            "loop0 [M, para]\n  loop1 [N, para]\n    loop2 [K, non-para, (dot)]\n");
  EXPECT_EQ(loops_of_first(g, 2),  // (c): primitives 1 and 2
            "loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n"
            "    loop2 [K, non-para, (dot)]\n");
  EXPECT_EQ(loops_of_first(g, 3),  // (d): primitive 3
            "loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n"
            "    loop2 [K, non-para, (dot)]\n  loop3 [N, para, (sub)]\n");
  EXPECT_EQ(loops_of_first(g, 5),  // (e)
            "loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n"
            "    loop2 [K, non-para, (dot)]\n  loop3 [N, non-para, (sub, exp, reduceSum)]\n");
  EXPECT_EQ(loops_of_first(g, 6),  // (f), (g)
            "loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n"
            "    loop2 [K, non-para, (dot)]\n  loop3 [N, non-para, (sub, exp, reduceSum)]\n"
            "  loop4 [N, para, (div)]\n");
}

TEST(Loops, Figure7) {
  const Graph g = parse(kMatmulSoftmax);
  const LoopGraph pattern = parse_loops(
      "loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n    loop2 [K, non-para, (dot)]\n"
      "  loop3 [N, non-para, (reduceSum)]\n  loop4 [N, para]\n",
      "p");
  std::vector<OpId> ops;
  for (uint32_t i = 2; i < 7; i++) {
    ops.push_back(OpId(i));
    EXPECT_EQ(fit(pattern, derive(g, ops).loops), Fit::Partial) << i;
  }
  ops.push_back(OpId(7));
  EXPECT_EQ(fit(pattern, derive(g, ops).loops), Fit::Complete);
  // One that takes the minimum is no state of it, and a product alone no state of a softmax.
  EXPECT_EQ(fit(parse_loops("loop0 [M, para]\n  loop1 [N, non-para, (reduceMin)]\n"
                            "    loop2 [K, non-para, (dot)]\n",
                            "p"),
                derive(g, {OpId(2), OpId(3)}).loops),
            Fit::None);
  EXPECT_EQ(fit(parse_loops("loop0 [M, para]\n  loop1 [N, non-para, (reduceMax)]\n", "p"),
                derive(g, {OpId(2)}).loops),
            Fit::None);
}

// The paper's loop4 leaves out x5, which the division needs.
TEST(Loops, Figure8) {
  const Graph g = parse(kMatmulSoftmax);
  EXPECT_EQ(print(derive(g).loops), "loop0 [M, para]\n"
                                    "  loop1 [N, non-para, (reduceMax)]\n"
                                    "    loop2 [K, non-para, (dot)]\n"
                                    "  loop3 [N, non-para, (sub, exp, reduceSum)]\n"
                                    "  loop4 [N, para, (div)]\n");
  EXPECT_EQ(tensors_of(derive(g).loops, g),
            "{x0,x1}:{x7} {x2}:{x3} {x0,x1}:{x2} {x2,x3}:{x5,x6} {x5,x6}:{x7} ");
}

TEST(Loops, CollapsesBatches) {
  EXPECT_EQ(loops_of(R"(graph g {
    Q = input : f32[B,L,M,D]
    K = input : f32[B,L,D,N]
    s = matmul Q, K
    return s
  })"),
            "loop0 [B*L, para]\n  loop1 [M, para]\n    loop2 [N, para]\n"
            "      loop3 [D, non-para, (dot)]\n");
  EXPECT_EQ(loops_of("graph g { x = input : f32[M,N] y = exp x return y }"),
            "loop0 [M*N, para, (exp)]\n");
  // A bias has one of the axes only.
  EXPECT_EQ(loops_of("graph g { x = input : f32[M,N] b = input : f32[N] y = add x, b return y }"),
            "loop0 [M, para]\n  loop1 [N, para, (add)]\n");
}

TEST(Loops, SiblingsMeetInTheirConsumer) {
  EXPECT_EQ(loops_of(R"(graph gated_mlp {
    x = input : f32[M,K]
    w = input : f32[K,N]
    v = input : f32[K,N]
    a = matmul x, w
    b = matmul x, v
    s = silu a
    y = mul s, b
    return y
  })"),
            "loop0 [M, para]\n  loop1 [N, para, (silu, mul)]\n    loop2 [K, non-para, (dot)]\n"
            "    loop3 [K, non-para, (dot)]\n");
  EXPECT_EQ(loops_of(R"(graph lora {
    x = input : f32[M,K]
    w = input : f32[K,N]
    a = input : f32[K,R]
    b = input : f32[R,N]
    u = matmul x, w
    t = matmul x, a
    d = matmul t, b
    y = add u, d
    return y
  })"),
            "loop0 [M, para]\n  loop1 [R, non-para, (dot)]\n    loop2 [K, non-para, (dot)]\n"
            "    loop3 [N, para]\n  loop4 [N, para, (add)]\n    loop5 [K, non-para, (dot)]\n");
}

TEST(Loops, AttentionAndNorms) {
  EXPECT_EQ(loops_of(R"(graph attention {
    Q = input : f32[B,H,M,D]
    K = input : f32[B,H,D,N]
    V = input : f32[B,H,N,E]
    s = matmul Q, K
    m = reduce_max s {axes=[3], keepdims=true}
    c = sub s, m
    e = exp c
    d = sum e {axes=[3], keepdims=true}
    p = div e, d
    o = matmul p, V
    return o
  })"),
            "loop0 [B*H, para]\n  loop1 [M, para]\n    loop2 [N, non-para, (reduceMax)]\n"
            "      loop3 [D, non-para, (dot)]\n    loop4 [N, non-para, (sub, exp, reduceSum)]\n"
            "    loop5 [N, non-para, (div, dot)]\n      loop6 [E, para]\n");
  EXPECT_EQ(loops_of(R"(graph layernorm {
    x = input : f32[M,N]
    m = mean x {axes=[1], keepdims=true}
    c = sub x, m
    q = sqr c
    v = mean q {axes=[1], keepdims=true}
    r = rsqrt v
    y = mul c, r
    return y
  })"),
            "loop0 [M, para, (rsqrt)]\n  loop1 [N, non-para, (reduceSum)]\n"
            "  loop2 [N, non-para, (sub, sqr, reduceSum)]\n  loop3 [N, para, (mul)]\n");
}

// Triangles are element by element, and positions are there without a loop.
TEST(Loops, TrianglesAndMasks) {
  const char* text = R"(graph g {
    Q = input : f32[M,D]
    K = input : f32[D,N]
    r = iota {axis=0} : i64[M,N]
    c = iota {axis=1} : i64[M,N]
    seen = le c, r
    none = const {value=0} : f32[]
    s = matmul Q, K
    t = where seen, s, none
    return t
  })";
  EXPECT_EQ(loops_of(text),
            "loop0 [M, para]\n  loop1 [N, para, (le, where)]\n    loop2 [D, non-para, (dot)]\n");
  EXPECT_EQ(loops_of("graph g { Q = input : f32[M,D] K = input : f32[D,N] s = matmul Q, K "
                     "t = tril s return t }"),
            "loop0 [M, para]\n  loop1 [N, para, (tril)]\n    loop2 [D, non-para, (dot)]\n");
}

TEST(Loops, OrderOfOperatorsDoesNotMatter) {
  const Graph g = parse(kMatmulSoftmax);
  std::vector<OpId> ops;
  for (uint32_t i = 2; i < 8; i++) ops.push_back(OpId(i));
  const std::string once = print(derive(g, ops).loops);
  std::reverse(ops.begin(), ops.end());
  EXPECT_EQ(print(derive(g, ops).loops), once);
}

// PluS's T5LayerNorm pattern names no operation, and so matches x/max|x| as well.
TEST(Loops, EveryReductionIsAKey) {
  const LoopGraph absmax = derive(parse(R"(graph g {
    x = input : f32[M,N]
    a = abs x
    m = reduce_max a {axes=[1], keepdims=true}
    y = div x, m
    return y
  })"))
                               .loops;
  const char* t5 = "loop0 [M, para]\n  loop1 [N, non-para, (reduceSum)]\n  loop2 [N, para]\n";
  EXPECT_EQ(fit(parse_loops(t5, "p"), absmax), Fit::None);
  const char* any = "loop0 [M, para]\n  loop1 [N, non-para, (reduceAny)]\n  loop2 [N, para]\n";
  EXPECT_EQ(fit(parse_loops(any, "p"), absmax), Fit::Complete);
  const char* div =
      "loop0 [M, para]\n  loop1 [N, non-para, (reduceAny)]\n  loop2 [N, para, (mul)]\n";
  EXPECT_EQ(fit(parse_loops(div, "p"), absmax), Fit::Partial);  // the product may still come
}

TEST(Loops, SymbolsStandForOneSizeEach) {
  const LoopGraph g = derive(parse("graph g { x = input : f32[4,8] w = input : f32[8,4] "
                                   "y = matmul x, w return y }"))
                          .loops;
  const auto p = [](const char* m, const char* n) {
    return parse_loops(std::string("loop0 [") + m + ", para]\n  loop1 [" + n +
                           ", para]\n    loop2 [K, non-para, (dot)]\n",
                       "p");
  };
  EXPECT_EQ(fit(p("M", "N"), g), Fit::Complete);
  EXPECT_EQ(fit(p("4", "M"), g), Fit::Complete);
  EXPECT_EQ(fit(p("8", "M"), g), Fit::None);
  EXPECT_EQ(fit(p("K", "M"), g), Fit::None);
}

// Axes that a pattern goes through as one, which a pointwise def of two axes does with all.
TEST(Loops, ProductsOfSymbolsStandForOneSizeEach) {
  const auto fits = [](const char* pattern, const char* loops) {
    return fit(parse_loops(pattern, "p"), parse_loops(loops, "g"));
  };
  EXPECT_EQ(fits("loop0 [M*N, para]", "loop0 [32, para]"), Fit::Complete);
  EXPECT_EQ(fits("loop0 [M*N, para]", "loop0 [32, non-para]"), Fit::None);
  const char* twice = "loop0 [M*N, para]\nloop1 [M*N, para]";
  EXPECT_EQ(fits(twice, "loop0 [32, para]\nloop1 [32, para]"), Fit::Complete);
  EXPECT_EQ(fits(twice, "loop0 [32, para]\nloop1 [16, para]"), Fit::None);
}

TEST(Loops, TextRoundTrip) {
  const std::string text = print(derive(parse(kMatmulSoftmax)).loops);
  EXPECT_EQ(print(parse_loops(text, "p")), text);
  EXPECT_EQ(
      print(parse_loops("loop0 [B*64, parallelizable]\n    loop9 [N, non-parallelizable] # x\n"
                        "loop1 [2, para]",
                        "p")),
      "loop0 [B*64, para]\n  loop1 [N, non-para]\nloop2 [2, para]\n");
}

TEST(Loops, MessagesSayWhere) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "p:3:1: no loops; write one a line"},
      {"lop0 [M, para]", "p:3:1: expected 'loop' and a number"},
      {"loop0 [M, par]", "p:3:11: expected 'para' or 'non-para', not 'par'"},
      {"loop0 [M]", "p:3:9: expected ','"},
      {"loop0 [1, para]", "p:3:8: a loop runs from 2 to 2^40 times"},
      {"loop0 [M, para, (foo)]", "p:3:18: no operation 'foo'"},
      {"loop0 [M, para] x", "p:3:17: expected the end of the line"},
      {"loop0 [M, para]\n    loop1 [N, para]\n  loop2 [N, para]", "p:5:3: this loop is indented"},
  };
  for (const auto& [text, message] : cases) {
    try {
      parse_loops(text, "p", 3);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).substr(0, std::string(message).size()), message);
    }
  }
}

}  // namespace
}  // namespace tessera::patterns
