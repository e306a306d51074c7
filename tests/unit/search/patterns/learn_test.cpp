// Programs of one meaning have one key, and a kernel that was found becomes a pattern.
#include "search/patterns/learn.h"

#include <gtest/gtest.h>

#include "backend/block_programs.h"
#include "ir/text.h"
#include "search/patterns/check.h"

namespace tessera::patterns {
namespace {

const char* kNorm = R"(graph a {
  X = input : f32[64,96]
  G = input : f32[96]
  W = input : f32[96,80]
  q = sqr X
  m = mean q {axes=[1], keepdims=true}
  c = const {value=0.00001} : f32[]
  e = add m, c
  r = rsqrt e
  n = mul X, r
  y = mul n, G
  z = matmul y, W
  return z
})";

std::string meaning(const std::string& text) { return semantic_key(parse(text)).value().meaning; }

// Other names, other order, other algebra; its mean is a sum times 1/96.
const char* kReordered = R"(graph b {
  w = input : f32[96,80]
  act = input : f32[64,96]
  gamma = input : f32[96]
  q = mul act, act
  s = sum q {axes=[1], keepdims=true}
  k = const {value=1/96} : f32[]
  m = mul s, k
  c = const {value=0.00001} : f32[]
  e = add m, c
  r = sqrt e
  ag = mul act, gamma
  z = matmul ag, w
  y = div z, r
  return y
})";

TEST(SemanticKey, IsTheSameForOneMeaning) {
  const SemanticKey a = semantic_key(parse(kNorm)).value(),
                    b = semantic_key(parse(kReordered)).value();
  EXPECT_EQ(a.meaning, b.meaning);
  EXPECT_EQ(a.sizes, b.sizes);
  for (size_t i = 0; i < a.order.size(); i++) {
    const Graph x = parse(kNorm), y = parse(kReordered);
    EXPECT_EQ(x.type(x.inputs()[a.order[i]]), y.type(y.inputs()[b.order[i]]));
  }
  // At other sizes too; constants that are an extent's reciprocal follow it.
  EXPECT_EQ(meaning(replaced(replaced(kReordered, "96", "33"), "80", "10")), a.meaning);
}

TEST(SemanticKey, TellsApartWhatDiffers) {
  for (const auto& [from, to] : {std::pair("0.00001", "0.000011"),
                                 {"mul n, G", "add n, G"},
                                 {"rsqrt e", "sqrt e"},
                                 {"W = input", "W = input {weight=true}"}})
    EXPECT_NE(meaning(replaced(kNorm, from, to)), meaning(kNorm)) << to;
  EXPECT_NE(meaning(replaced(kNorm, "f32", "bf16")), meaning(kNorm));
  // An epsilon that only rows near zero notice.
  const std::string small = replaced(kNorm, "0.00001", "1e-13");
  EXPECT_NE(meaning(replaced(small, "1e-13", "3e-13")), meaning(small));
  // Nobody knows what an opaque operator means.
  EXPECT_FALSE(semantic_key(parse("graph g { x = input : f32[4]\n y = opaque x {function=\"f\"} : "
                                  "f32[4]\n return y }")));
}

Graph kernel_of_norm() {
  return parse(R"(graph a {
  X = input : f32[64,96]
  G = input : f32[96]
  W = input : f32[96,80]
  z = kernel X, G, W grid[x=2, y=5] loops[i=3] {
    X = input : f32[64,96]
    G = input : f32[96]
    W = input : f32[96,80]
    x = iter X {imap={x:0}, fmap={i:1}}
    g = iter G {fmap={i:0}}
    w = iter W {imap={y:1}, fmap={i:0}}
    q = sqr x
    s = sum q {axes=[1], keepdims=true}
    a = accum s
    xg = mul x, g
    p = matmul xg, w
    b = accum p
    r = thread a {
      t = input : f32[32,1]
      k = const {value=1/96} : f32[]
      u = mul t, k
      c = const {value=0.00001} : f32[]
      v = add u, c
      o = rsqrt v
      return o
    }
    y = mul b, r
    z = save y {omap={x:0, y:1}} : f32[64,80]
    return z
  }
  return z
})");
}

TEST(LearntPattern, HoldsAtOtherSizes) {
  const Graph spec = parse(kNorm);
  EXPECT_FALSE(learnt_pattern("learnt-1", spec, kernel_of_norm(), *semantic_key(spec), 0))
      << "what there is no time to prove is not kept";
  const auto text = learnt_pattern("learnt-1", spec, kernel_of_norm(), *semantic_key(spec));
  ASSERT_TRUE(text);
  const Pattern p = parse_pattern(*text, "p");
  EXPECT_EQ(p.symbols().size(), 3u);
  EXPECT_TRUE(p.epilogue);
  EXPECT_NE(text->find("/32, y=N"), std::string::npos) << *text;
  EXPECT_NE(text->find("value=1/N"), std::string::npos) << *text;
  EXPECT_TRUE(check(p, {.seed = 5}).ok());
}

TEST(LearntPattern, KeepsSizesThatItNeeds) {
  // 1/96 in the program itself: a def has no constants that follow a symbol.
  const Graph spec = parse(kReordered);
  Graph found =
      parse(replaced(replaced(print(kernel_of_norm()), "  X = input : f32[64,96]\n  G", ""),
                     " = input : f32[96]\n  W = input : f32[96,80]\n  z = kernel",
                     "  W = input : f32[96,80]\n  X = input : f32[64,96]\n"
                     "  G = input : f32[96]\n  z = kernel"));
  const auto text = learnt_pattern("learnt-1", spec, found, *semantic_key(spec));
  ASSERT_TRUE(text);
  EXPECT_TRUE(parse_pattern(*text, "p").symbols().empty());
  // What computes something else becomes none.
  EXPECT_FALSE(learnt_pattern("learnt-1", parse(replaced(kNorm, "rsqrt e", "sqrt e")),
                              kernel_of_norm(), *semantic_key(parse(kNorm))));
}

}  // namespace
}  // namespace tessera::patterns
