// What only sketches within sketches find, and choices that take the place of masks.
#include <gtest/gtest.h>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

struct Best {
  double original = 0, cost = 0;  // seconds
  Graph graph;
};
Best best_sketched(const Graph& g, const SynthOptions& options) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  CollectingSink sink;
  const SearchReport report = Synth(options).run(Subprogram{g}, context, budget, sink);
  Best b{report.original_cost, report.original_cost, g};
  if (!sink.candidates.empty() && sink.candidates[0].cost < b.cost) {
    b.cost = sink.candidates[0].cost;
    b.graph = sink.candidates[0].graph;
  }
  return b;
}
Best best_sketched(const char* text) { return best_sketched(parse(text), {}); }

// Finds a proved program that costs at most `part` of the original.
void finds(const char* text, double part) {
  const Graph g = parse(text);
  const Best found = best_sketched(g, {});
  validate(found.graph);
  EXPECT_LE(found.cost, part * found.original) << print(found.graph);
  EXPECT_TRUE(verify(g, found.graph).equal()) << print(found.graph);
}
// … and does not without sketches of two levels.
void only_deeper(const char* text, double part) {
  finds(text, part);
  SynthOptions flat;
  flat.probes = 0;
  const Best without = best_sketched(parse(text), flat);
  EXPECT_GT(without.cost, part * without.original) << print(without.graph);
}

TEST(SynthSketches, SquaredDistanceInThreeDimensions) {
  // x² + y² + z² + u² + v² + w² − 2(xu + yv + zw)
  only_deeper(R"(graph g {
  x = input : f32[200,200]
  y = input : f32[200,200]
  z = input : f32[200,200]
  u = input : f32[200,200]
  v = input : f32[200,200]
  w = input : f32[200,200]
  two = const {value=2} : f32[]
  a = mul x, x
  b = mul y, y
  c = mul z, z
  d = mul u, u
  e = mul v, v
  f = mul w, w
  s1 = add a, b
  s2 = add s1, c
  s3 = add s2, d
  s4 = add s3, e
  s5 = add s4, f
  p = mul x, u
  q = mul y, v
  r = mul z, w
  t1 = add p, q
  t2 = add t1, r
  t3 = mul two, t2
  o = sub s5, t3
  return o
})",
              0.6);
}

TEST(SynthSketches, SquareOfASumOfFour) {
  only_deeper(R"(graph g {
  a = input : f32[200,200]
  b = input : f32[200,200]
  c = input : f32[200,200]
  d = input : f32[200,200]
  two = const {value=2} : f32[]
  aa = mul a, a
  bb = mul b, b
  cc = mul c, c
  dd = mul d, d
  ab = mul a, b
  ac = mul a, c
  ad = mul a, d
  bc = mul b, c
  bd = mul b, d
  cd = mul c, d
  s1 = add aa, bb
  s2 = add s1, cc
  s3 = add s2, dd
  m1 = add ab, ac
  m2 = add m1, ad
  m3 = add m2, bc
  m4 = add m3, bd
  m5 = add m4, cd
  m6 = mul two, m5
  o = add s3, m6
  return o
})",
              0.5);
}

TEST(SynthSketches, FractionsOverACommonDenominator) {
  // (adf + cbf + ebd) / (bdf) = a/b + c/d + e/f
  finds(R"(graph g {
  a = input : f32[200,200]
  b = input : f32[200,200]
  c = input : f32[200,200]
  d = input : f32[200,200]
  e = input : f32[200,200]
  f = input : f32[200,200]
  ad = mul a, d
  adf = mul ad, f
  cb = mul c, b
  cbf = mul cb, f
  eb = mul e, b
  ebd = mul eb, d
  s1 = add adf, cbf
  s2 = add s1, ebd
  bd = mul b, d
  bdf = mul bd, f
  o = div s2, bdf
  return o
})",
        0.6);
}

TEST(SynthSketches, WeightedDistanceUnderARoot) {
  // √(w²(a² + c²) + w²(b² + d²) − 2w²(ab + cd)) = √((w(a − b))² + (w(c − d))²) or better
  only_deeper(R"(graph g {
  a = input : f32[200,200]
  b = input : f32[200,200]
  c = input : f32[200,200]
  d = input : f32[200,200]
  w = input : f32[200,200]
  two = const {value=2} : f32[]
  w2 = mul w, w
  aa = mul a, a
  cc = mul c, c
  bb = mul b, b
  dd = mul d, d
  s = add aa, cc
  t = add bb, dd
  ws = mul w2, s
  wt = mul w2, t
  ab = mul a, b
  cd = mul c, d
  x = add ab, cd
  w3 = mul two, w2
  wx = mul w3, x
  y = add ws, wt
  z = sub y, wx
  o = sqrt z
  return o
})",
              0.6);
}

TEST(SynthSketches, BilinearFormsOfDifferences) {
  // xᵀAu + yᵀAv − xᵀAv − yᵀAu = (x − y)ᵀA(u − v)
  only_deeper(R"(graph g {
  A = input : f32[200,200]
  x = input : f32[1,200]
  y = input : f32[1,200]
  u = input : f32[200,1]
  v = input : f32[200,1]
  p = matmul x, A
  q = matmul y, A
  a = matmul p, u
  b = matmul q, v
  c = matmul p, v
  d = matmul q, u
  s = add a, b
  t = sub s, c
  o = sub t, d
  return o
})",
              0.55);
}

TEST(SynthSketches, TermsBetweenOthersCancel) {
  // P − (e + f)·g − Q + e·g = P − Q − f·g: five values, and no step between is cheaper.
  finds(R"(graph g {
  P = input : f32[200,200]
  Q = input : f32[200,200]
  e = input : f32[200,200]
  f = input : f32[200,200]
  g = input : f32[200,200]
  s = add e, f
  sg = mul s, g
  x = sub P, sg
  y = sub x, Q
  eg = mul e, g
  o = add y, eg
  return o
})",
        0.6);
}

TEST(SynthSketches, ProductsOfMatricesInsideSums) {
  // A·(x∘w) + B·(z∘y) − A·(y∘w) − B·(z∘x) = A·(w∘(x − y)) − B·(z∘(x − y))
  finds(R"(graph g {
  A = input : f32[200,200]
  B = input : f32[200,200]
  x = input : f32[200,1]
  y = input : f32[200,1]
  z = input : f32[200,1]
  w = input : f32[200,1]
  xw = mul x, w
  zy = mul z, y
  yw = mul y, w
  zx = mul z, x
  p = matmul A, xw
  q = matmul B, zy
  r = matmul A, yw
  s = matmul B, zx
  t1 = add p, q
  t2 = sub t1, r
  o = sub t2, s
  return o
})",
        0.65);
}

TEST(SynthSketches, RootOfAProduct) {
  // √((ab)² + (ac)² + (db)² + (dc)²) = √((a² + d²)(b² + c²))
  only_deeper(R"(graph g {
  a = input : f32[64,100]
  b = input : f32[64,100]
  c = input : f32[64,100]
  d = input : f32[64,100]
  ab = mul a, b
  ac = mul a, c
  db = mul d, b
  dc = mul d, c
  ab2 = mul ab, ab
  ac2 = mul ac, ac
  db2 = mul db, db
  dc2 = mul dc, dc
  s1 = add ab2, ac2
  s2 = add s1, db2
  s3 = add s2, dc2
  o = sqrt s3
  return o
})",
              0.8);
}

TEST(SynthSketches, MasksThatChooseBecomeWhere) {
  // m·a + (1 − m)·b with m = (x > t) as numbers
  const Best b = best_sketched(R"(graph g {
  x = input : f32[200,200]
  t = input : f32[200,200]
  a = input : f32[200,200]
  b = input : f32[200,200]
  one = const {value=1} : f32[]
  c = gt x, t
  m = cast c {dtype=f32}
  ma = mul m, a
  n = sub one, m
  nb = mul n, b
  o = add ma, nb
  return o
})");
  EXPECT_EQ(count(b.graph, OpKind::Where), 1) << print(b.graph);
  EXPECT_EQ(count(b.graph, OpKind::Mul), 0) << print(b.graph);
}

TEST(SynthSketches, ChoicesByOneConditionAreMadeOnce) {
  // where(c, a, b) + where(c, d, e) = where(c, a + d, b + e)
  const Best b = best_sketched(R"(graph g {
  x = input : f32[200,200]
  t = input : f32[200,200]
  a = input : f32[200,200]
  b = input : f32[200,200]
  d = input : f32[200,200]
  e = input : f32[200,200]
  c = gt x, t
  p = where c, a, b
  q = where c, d, e
  o = add p, q
  return o
})");
  EXPECT_EQ(count(b.graph, OpKind::Where), 1) << print(b.graph);
}

TEST(SynthSketches, BranchesThatAreNeverTakenAreNoProof) {
  // a + b where c, which is nowhere true of squares: both branches stay.
  const Graph g = parse(R"(graph g {
  x = input : f32[50,50]
  a = input : f32[50,50]
  b = input : f32[50,50]
  one = const {value=1} : f32[]
  zero = const {value=0} : f32[]
  s = mul x, x
  c = lt s, zero
  m = cast c {dtype=f32}
  ma = mul m, a
  n = sub one, m
  nb = mul n, b
  o = add ma, nb
  return o
})");
  const Best found = best_sketched(g, {});
  // That no square is negative is no law of the verifier's, and was not drawn.
  EXPECT_FALSE(verify(g, found.graph).refuted()) << print(found.graph);
}

}  // namespace
}  // namespace tessera
