// The warehouse that ships: every pattern reads, its kernel is its meaning, and it is found where
// it should be, with its holes filled and each instance proved.
#include "search/patterns/warehouse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "backend/block_programs.h"
#include "base/error.h"
#include "cost/target.h"
#include "ir/text.h"
#include "places.h"
#include "search/patterns/check.h"
#include "search/patterns/identify.h"
#include "search/patterns/patterns.h"

namespace tessera::patterns {
namespace {

const std::vector<Pattern>& warehouse() {
  static const std::vector<Pattern> all = load_patterns(source_dir() + "/patterns");
  return all;
}
const Pattern& pattern(const std::string& name) {
  for (const Pattern& p : warehouse())
    if (p.name == name) return p;
  throw std::runtime_error("no pattern " + name);
}

struct Found {
  std::vector<Candidate> candidates;
  SearchReport report;
  bool has(const std::string& text) const {
    return std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& c) {
      return c.derivation.find(text) != std::string::npos;
    });
  }
  std::string refused() const {
    std::string all;
    for (const std::string& r : report.refused) all += r + "\n";
    return all;
  }
};

Found search(const Graph& program, const std::vector<Pattern>& patterns, bool verify = true) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  context.threads = 1;
  PatternsOptions options;
  options.warehouse = &patterns;
  options.verify = verify;
  CollectingSink sink;
  Found found;
  found.report = Patterns(options).run(Subprogram{program}, context, {}, sink);
  found.candidates = std::move(sink.candidates);
  return found;
}
// Of all that ship, not proved.
Found search(const char* program) { return search(parse(program), warehouse(), false); }

int kernels(const Graph& g) {
  return int(std::count_if(g.ops().begin(), g.ops().end(), [](const Op& op) {
    return op.kind != OpKind::Input && op.kind != OpKind::Const && op.kind != OpKind::Reshape;
  }));
}

TEST(Warehouse, PrintsWhatItReads) {
  EXPECT_GE(warehouse().size(), 9u);
  for (const Pattern& p : warehouse()) {
    const std::string once = print(p);
    EXPECT_EQ(print(parse_pattern(once, "again")), once);
  }
}

TEST(Warehouse, EveryKernelIsItsMeaning) {
  for (const Pattern& p : warehouse()) {
    CheckOptions options;
    options.sizes = 1;
    options.settings = 5;
    const CheckResult result = check(p, options);
    EXPECT_TRUE(result.ok()) << p.name << ": " << result.why;
    EXPECT_GT(result.instances, 0) << p.name;
  }
}

TEST(Warehouse, PointwiseNeighboursMoveIntoTheKernel) {
  // Bias, GELU and residual behind, a sum in front.
  const Found found = search(R"(graph g {
    X = input : f32[24,40]
    R = input : f32[24,40]
    W = input : f32[40,56]
    B = input : f32[56]
    S = input : f32[24,56]
    x = add X, R
    p = matmul x, W
    b = add p, B
    g = gelu b
    y = add g, S
    return y
  })");
  ASSERT_FALSE(found.candidates.empty()) << found.refused();
  EXPECT_EQ(kernels(found.candidates[0].graph), 1) << print(found.candidates[0].graph);
  EXPECT_TRUE(found.has("epilogue add gelu add"));
}

TEST(Warehouse, BatchAxesAreOne) {
  const Found found = search(R"(graph g {
    X = input : f32[2,12,40]
    W = input : f32[40,56]
    B = input : f32[56]
    p = matmul X, W
    b = add p, B
    y = relu b
    return y
  })");
  ASSERT_FALSE(found.candidates.empty()) << found.refused();
  EXPECT_EQ(kernels(found.candidates[0].graph), 1) << print(found.candidates[0].graph);
  EXPECT_TRUE(found.has("M=24 N=56"));
}

constexpr const char* kStoredNorm = R"(
    X = input : f32[24,40]
    q = sqr X
    m = mean q {axes=[1], keepdims=true}
    eps = const {value=0.00001} : f32[]
    e = add m, eps
)";

// T5LayerNorm, zero-centred gamma, residual prologue, SiLU epilogue: one file.
TEST(Warehouse, VariantsOfANormNeedNoFurtherLines) {
  const std::string head = std::string("graph g {") + kStoredNorm;
  for (const char* rest : {
           "r = rsqrt e G = input : f32[40] n = mul X, r y = mul n, G return y }",
           "r = sqrt e G = input : f32[40] n = div X, r y = mul G, n return y }",
           "r = rsqrt e G = input : f32[40] o = const {value=1} : f32[] h = add G, o "
           "n = mul X, r y = mul n, h return y }",
           "r = rsqrt e n = mul X, r y = silu n return y }",
       }) {
    const Found found = search(parse(head + rest), {pattern("rmsnorm")});
    ASSERT_FALSE(found.candidates.empty()) << rest << "\n" << found.refused();
    EXPECT_EQ(kernels(found.candidates[0].graph), 1) << print(found.candidates[0].graph);
  }
  const Found residual = search(parse(R"(graph g {
    A = input : f32[24,40]
    B = input : f32[24,40]
    X = add A, B
    q = mul X, X
    s = sum q {axes=[1], keepdims=true}
    c = const {value=1/40} : f32[]
    m = mul s, c
    r = rsqrt m
    y = mul X, r
    return y
  })"),
                                {pattern("rmsnorm")});
  ASSERT_FALSE(residual.candidates.empty()) << residual.refused();
  EXPECT_EQ(kernels(residual.candidates[0].graph), 1);
  EXPECT_TRUE(residual.has("eps=0"));
}

// Either order of normalisation and product: the same kernel.
TEST(Warehouse, AlgebraDoesNotHideAPlace) {
  const std::string head = std::string("graph g {") + kStoredNorm + R"(
    r = rsqrt e
    G = input : f32[40]
    W = input : f32[40,56]
)";
  for (const char* rest : {
           "a = mul X, r b = mul a, G y = matmul b, W return y }",
           "a = mul X, G b = matmul a, W y = mul b, r return y }",
       }) {
    const Found found = search(parse(head + rest), {pattern("rmsnorm-matmul")});
    ASSERT_FALSE(found.candidates.empty()) << rest << "\n" << found.refused();
    EXPECT_EQ(kernels(found.candidates[0].graph), 1) << print(found.candidates[0].graph);
  }
}

TEST(Warehouse, SiblingsAndSoftmaxes) {
  EXPECT_TRUE(search(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    V = input : f32[40,56]
    a = matmul X, W
    s = silu a
    b = matmul X, V
    y = mul s, b
    return y
  })")
                  .has("pattern gated-mlp at y"));
  EXPECT_TRUE(search(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    A = input : f32[40,8]
    B = input : f32[8,56]
    u = matmul X, W
    t = matmul X, A
    d = matmul t, B
    y = add u, d
    return y
  })")
                  .has("pattern lora at y"));
  EXPECT_TRUE(search(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    s = matmul X, W
    m = reduce_max s {axes=[1], keepdims=true}
    c = sub s, m
    e = exp c
    d = sum e {axes=[1], keepdims=true}
    y = div e, d
    return y
  })")
                  .has("pattern matmul-softmax at y"));
  EXPECT_TRUE(search(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    B = input : f32[56]
    R = input : f32[24,56]
    p = matmul X, W
    pb = add p, B
    s = add R, pb
    m = mean s {axes=[1], keepdims=true}
    c = sub s, m
    q = sqr c
    v = mean q {axes=[1], keepdims=true}
    eps = const {value=0.00001} : f32[]
    e = add v, eps
    r = sqrt e
    n = div c, r
    G = input : f32[56]
    H = input : f32[56]
    ng = mul n, G
    y = add ng, H
    return y
  })")
                  .has("pattern matmul-layernorm at y"));
}

// Two axes of batch and heads, scores divided by a number; short and long rows.
TEST(Warehouse, AttentionByLength) {
  for (const char* n : {"48", "600"}) {
    const std::string text = std::string(R"(graph g {
      Q = input : f32[2,3,16,8]
      K = input : f32[2,3,)") +
                             n + R"(,8]
      V = input : f32[2,3,)" +
                             n + R"(,8]
      T = transpose K {perm=[0,1,3,2]}
      s = matmul Q, T
      f = const {value=4} : f32[]
      z = div s, f
      m = reduce_max z {axes=[3], keepdims=true}
      c = sub z, m
      e = exp c
      d = sum e {axes=[3], keepdims=true}
      p = div e, d
      y = matmul p, V
      return y
    })";
    const Found found = search(parse(text), {pattern("attention")}, std::string(n) == "48");
    ASSERT_FALSE(found.candidates.empty()) << found.refused();
    EXPECT_TRUE(found.has("scale=1/4") || found.has("scale=0.25"))
        << found.candidates[0].derivation;
    EXPECT_EQ(kernels(found.candidates[0].graph), 1) << print(found.candidates[0].graph);
    const bool loops = print(found.candidates[0].graph).find("accum_rescale") != std::string::npos;
    EXPECT_EQ(loops, std::string(n) == "600");
  }
}

constexpr const char* kCausal = R"(graph g {
  Q = input : f32[2,3,16,8]
  K = input : f32[2,3,LENGTH,8]
  V = input : f32[2,3,LENGTH,8]
  T = transpose K {perm=[0,1,3,2]}
  s = matmul Q, T
  f = const {value=0.25} : f32[]
  z = mul s, f
  r = iota {axis=0} : i64[16,LENGTH]
  c = iota {axis=1} : i64[16,LENGTH]
  seen = le c, r
  never = const {value=-inf} : f32[]
  h = where seen, z, never
  m = reduce_max h {axes=[3], keepdims=true}
  d = sub h, m
  e = exp d
  t = sum e {axes=[3], keepdims=true}
  p = div e, t
  y = matmul p, V
  return y
})";

// As PyTorch's graphs have it: positions are compared, what lies behind is -inf.
TEST(Warehouse, CausalAttention) {
  for (const char* n : {"48", "600"}) {
    const Found found = search(parse(replaced(kCausal, "LENGTH", n)), {pattern("causal-attention")},
                               std::string(n) == "48");
    ASSERT_FALSE(found.candidates.empty()) << found.refused();
    EXPECT_NE(print(found.candidates[0].graph).find("kernel"), std::string::npos);
  }
  // A diagonal further on is another mask, and plain attention sees everything.
  const std::string later = replaced(replaced(kCausal, "LENGTH", "48"), "seen = le c, r",
                                     "one = const {value=1} : i64[] q = add r, one seen = le c, q");
  EXPECT_TRUE(search(parse(later), {pattern("causal-attention")}).candidates.empty());
  EXPECT_TRUE(
      search(parse(replaced(kCausal, "LENGTH", "48")), {pattern("attention")}).candidates.empty());
}

TEST(Warehouse, TriangularProducts) {
  const char* text = R"(graph g {
    Q = input : f32[48,8]
    K = input : f32[8,48]
    V = input : f32[48,16]
    s = matmul Q, K
    t = tril s
    y = matmul t, V
    return y
  })";
  const Found found = search(parse(text), {pattern("triangular-product")});
  ASSERT_FALSE(found.candidates.empty()) << found.refused();
  EXPECT_EQ(print(found.candidates[0].graph).find("tril"), std::string::npos);
  for (const char* other : {"tril s {k=-1}", "triu s", "relu s"})
    EXPECT_TRUE(search(parse(replaced(text, "tril s", other)), {pattern("triangular-product")})
                    .candidates.empty())
        << other;
}

// --- what must be refused, and how it is told -------------------------------------------------

TEST(Refused, AbsmaxLooksLikeANorm) {
  Pattern loose = pattern("rmsnorm");
  loose.loops = {parse_loops("loop0 [M, para]\n  loop1 [N, non-para, (reduceAny)]\n"
                             "  loop2 [N, para]\n",
                             "loose")};
  loose.keys = keys(loose.loops[0]);
  const Found found = search(parse(R"(graph absmax {
    x = input : f32[24,40]
    a = abs x
    m = reduce_max a {axes=[1], keepdims=true}
    y = div x, m
    return y
  })"),
                             {loose});
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_NE(found.refused().find("rmsnorm at y (abs reduce_max div): no values of it give the "
                                 "pattern's meaning"),
            std::string::npos)
      << found.refused();
}

TEST(Refused, EpsilonOutsideTheRoot) {
  const Found found = search(parse(R"(graph g {
    x = input : f32[24,40]
    q = sqr x
    m = mean q {axes=[1], keepdims=true}
    r = sqrt m
    eps = const {value=0.01} : f32[]
    e = add r, eps
    y = div x, e
    return y
  })"),
                             {pattern("rmsnorm")});
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_NE(found.refused().find("nearest is x = x, eps = "), std::string::npos) << found.refused();
}

std::string edited(const std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.rfind(from);
  if (at == std::string::npos) throw std::runtime_error("no " + from);
  return text.substr(0, at) + to + text.substr(at + from.size());
}

TEST(Refused, SoftmaxWithoutTheMaximum) {
  // The kernel of the pattern leaves the maximum out: equal in algebra, and overflows.
  const std::string text = edited(print(pattern("matmul-softmax")), "e = exp c", "e = exp s");
  const Pattern wrong = parse_pattern(text, "wrong.pattern");
  const CheckResult result = check(wrong, {});
  EXPECT_FALSE(result.ok());
  EXPECT_NE(result.why.find("is no finite number where the def gives"), std::string::npos)
      << result.why;
  const Found found = search(parse(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    s = matmul X, W
    m = reduce_max s {axes=[1], keepdims=true}
    c = sub s, m
    e = exp c
    d = sum e {axes=[1], keepdims=true}
    y = div e, d
    return y
  })"),
                             {wrong});
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_NE(found.refused().find("refuted"), std::string::npos) << found.refused();
}

TEST(Refused, TransposedLayout) {
  // Reads its right factor by rows where they are columns; sizes hide it where it is square.
  std::string text =
      edited(print(pattern("matmul")), "b = iter w {imap={y:1}, fmap={i:0}}",
             "t = iter w {imap={y:0}, fmap={i:1}}\n    b = transpose t {perm=[1,0]}");
  for (size_t at = text.find(",N]"); at != std::string::npos; at = text.find(",N]"))
    text.replace(at, 3, ",K]");
  text = edited(text, "y=N/BN", "y=K/BN");
  const Pattern wrong = parse_pattern(text, "wrong.pattern");
  EXPECT_FALSE(check(wrong, {}).ok());
  const Found found = search(parse(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,40]
    y = matmul X, W
    return y
  })"),
                             {wrong});
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_NE(found.refused().find("refuted"), std::string::npos) << found.refused();
}

TEST(Refused, GuardsAreTold) {
  const Found found = search(parse("graph g { x = input : f32[24,40] w = input : f32[40,20000] "
                                   "s = matmul x, w m = reduce_max s {axes=[1], keepdims=true} "
                                   "c = sub s, m e = exp c d = sum e {axes=[1], keepdims=true} "
                                   "y = div e, d return y }"),
                             {pattern("matmul-softmax")});
  EXPECT_TRUE(found.candidates.empty());
  EXPECT_NE(found.refused().find("its guard 'N <= 16384' does not hold for K=40 M=24 N=20000 f32"),
            std::string::npos)
      << found.refused();
}

// What fits on the way is kept beside what grew of it; a consumer that fits nothing stops neither.
TEST(Identify, AllThatFitIsKeptAndWhatDoesNotIsPassedOver) {
  const Graph g = parse(R"(graph g {
    X = input : f32[24,40]
    W = input : f32[40,56]
    s = matmul X, W
    o = cumsum s {axis=0}
    m = reduce_max s {axes=[1], keepdims=true}
    c = sub s, m
    e = exp c
    d = sum e {axes=[1], keepdims=true}
    y = div e, d
    return y, o
  })");
  std::vector<size_t> sizes;
  for (const Subgraph& s : identify(g, {pattern("matmul"), pattern("matmul-softmax")})) {
    for (OpId id : s.ops) EXPECT_NE(g.op(id).kind, OpKind::Cumsum);
    sizes.push_back(s.ops.size());
  }
  EXPECT_NE(std::find(sizes.begin(), sizes.end(), 1u), sizes.end());  // the product
  EXPECT_NE(std::find(sizes.begin(), sizes.end(), 6u), sizes.end());  // and the whole softmax
}

TEST(PatternText, MessagesSayWhere) {
  const std::string good = print(pattern("rmsnorm"));
  const std::vector<std::array<std::string, 3>> cases = {
      {"  numbers eps", "  numbers ep", "p:12:11: the def has no input 'ep'"},
      {"  prologue x", "  prologue eps", "p:13:12: 'eps' is a number, which has no prologue"},
      {"  epilogue", "  epilog", "p:14:3: expected def, numbers, prologue"},
      {"tune R = 1", "tune N = 1", "p:15:8: 'N' is a symbol of the def"},
      {"tune R = 1", "when R <= P\n  tune R = 1", "p:15:13: 'P' is neither a symbol"},
      {"o = mul t, r", "o = mul t, z", "p:23:16: "},
      {"grid[x=M/R]", "grid[x=M/S]", "p:16:19: expected a number, a symbol of the def"},
      {"omap={x:0}} : f32[M,N]", "omap={x:0}} : f32[N,M]", "p:"},
      {"  kernel grid", "  kernel for tpu grid", "p:16:14: no target 'tpu'"},
  };
  for (const auto& [from, to, message] : cases) {
    try {
      parse_pattern(edited(good, from, to), "p");
      ADD_FAILURE() << to;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).substr(0, message.size()), message) << to;
    }
  }
}

}  // namespace
}  // namespace tessera::patterns
