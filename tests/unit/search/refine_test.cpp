// Programs over finer axes: equal to what was written, with reshapes at the borders only.
#include "search/mugraph/refine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/mugraph/mugraph.h"
#include "search/mugraph/region.h"

namespace tessera {
namespace {

using mugraph::refine_axes;

// Attention of several heads as models write it: projections, heads apart, heads together again.
const char* kSplitHeads = R"(graph heads {
  X = input : f64[2,6,8]
  Wq = input {weight=true} : f64[8,12]
  Wk = input {weight=true} : f64[8,12]
  Wv = input {weight=true} : f64[8,12]
  Wo = input {weight=true} : f64[12,5]
  q = matmul X, Wq
  k = matmul X, Wk
  v = matmul X, Wv
  q4 = reshape q {shape=[2,6,3,4]}
  k4 = reshape k {shape=[2,6,3,4]}
  v4 = reshape v {shape=[2,6,3,4]}
  qh = transpose q4 {perm=[0,2,1,3]}
  kh = transpose k4 {perm=[0,2,3,1]}
  vh = transpose v4 {perm=[0,2,1,3]}
  s = matmul qh, kh
  e = exp s
  d = sum e {axes=[3], keepdims=true}
  p = div e, d
  o = matmul p, vh
  t = transpose o {perm=[0,2,1,3]}
  r = reshape t {shape=[2,6,12]}
  O = matmul r, Wo
  return O
})";

// Rows, columns and the contraction of one product all have parts.
const char* kEverywhere = R"(graph everywhere {
  A = input : f64[6,20]
  B = input : f64[20,6]
  C = input : f64[6]
  a4 = sqr A
  a = reshape a4 {shape=[2,3,4,5]}
  x = exp a
  y = reshape x {shape=[6,20]}
  b4 = neg B
  b = reshape b4 {shape=[4,5,2,3]}
  z = sqr b
  w = reshape z {shape=[20,6]}
  p = matmul y, w
  q = add p, C
  m = mean q {axes=[1], keepdims=true}
  n = sub q, m
  O = reshape n {shape=[2,3,2,3]}
  return O
})";

// Heads normalised by themselves, between operators on whole rows; one reshape regroups.
const char* kGroups = R"(graph groups {
  X = input : f64[4,12]
  g = input : f64[12]
  y = mul X, g
  h = reshape y {shape=[4,3,4]}
  q = sqr h
  s = sum q {axes=[2], keepdims=true}
  n = div h, s
  r = reshape n {shape=[4,12]}
  z = add r, g
  k = reshape z {shape=[8,6]}
  O = exp k
  return O, z
})";

int reshapes_inside(const Graph& g) {
  int n = 0;
  for (const Op& op : g.ops()) {
    if (op.kind != OpKind::Reshape || mugraph::transparent(g, op)) continue;
    const OpKind from = g.producer(op.inputs[0]).kind;
    bool read = false;
    for (const Op& user : g.ops())
      for (TensorId t : user.inputs)
        read = read || (t == op.result() && mugraph::transparent(g, user));
    n += from != OpKind::Input && read;
  }
  return n;
}

void expect_same(const Graph& a, const Graph& b) {
  ASSERT_EQ(a.inputs().size(), b.inputs().size());
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> u(0.2, 1.2);
  std::vector<NDArray> in;
  for (size_t i = 0; i < a.inputs().size(); ++i) {
    const Type& type = a.type(a.inputs()[i]);
    ASSERT_EQ(type.str(), b.type(b.inputs()[i]).str());
    EXPECT_EQ(a.is_weight(a.inputs()[i]), b.is_weight(b.inputs()[i]));
    std::vector<double> data(size_t(num_elements(type.shape)));
    for (double& x : data) x = u(rng);
    in.push_back(NDArray::of(type.dtype, extents(type.shape), data));
  }
  const auto x = eval(a, in), y = eval(b, in);
  ASSERT_EQ(x.size(), y.size());
  for (size_t o = 0; o < x.size(); ++o) {
    ASSERT_EQ(x[o].shape, y[o].shape);
    for (size_t i = 0; i < x[o].reals.size(); ++i)
      ASSERT_NEAR(x[o].reals[i], y[o].reals[i], 1e-9 * (1 + std::fabs(x[o].reals[i]))) << print(b);
  }
}

TEST(Refine, SameProgramWithoutReshapesInside) {
  for (const char* text : {kSplitHeads, kEverywhere, kGroups}) {
    const Graph g = parse(text);
    const std::optional<Graph> fine = refine_axes(g);
    ASSERT_TRUE(fine) << text;
    expect_same(g, *fine);
    EXPECT_GT(reshapes_inside(g), reshapes_inside(*fine)) << print(*fine);
  }
  EXPECT_EQ(reshapes_inside(*refine_axes(parse(kSplitHeads))), 0);
  EXPECT_EQ(mugraph::partition(*refine_axes(parse(kSplitHeads))).back().kept.valid(), false);
}

TEST(Refine, NothingToGain) {
  // At the border already; no reshape; an axis cut in two different ways.
  EXPECT_FALSE(
      refine_axes(parse("graph g {\n X = input : f32[4,6]\n h = reshape X {shape=[4,2,3]}\n"
                        " O = exp h\n return O\n}")));
  EXPECT_FALSE(refine_axes(parse("graph g {\n X = input : f32[4,6]\n O = exp X\n return O\n}")));
  EXPECT_FALSE(refine_axes(
      parse("graph g {\n X = input : f32[4,6]\n y = exp X\n h = reshape y {shape=[4,2,3]}\n"
            " k = reshape y {shape=[4,3,2]}\n A = sqr h\n B = sqr k\n return A, B\n}")));
}

// Normalised heads in the same kernel as what comes before and after them.
TEST(Refine, OneKernelAcrossReshapes) {
  const Graph g = parse(kGroups);
  Target target = default_cpu_target();
  Context context;
  context.target = &target;
  auto fewest = [&](MugraphOptions options) {
    CollectingSink sink;
    Mugraph(options).run({g}, context, Budget{}, sink);
    EXPECT_FALSE(sink.candidates.empty());
    size_t least = 99;
    for (const Candidate& c : sink.candidates) {
      expect_same(g, c.graph);
      least = std::min(least, c.graph.bodies().size());
    }
    return least;
  };
  MugraphOptions coarse;
  coarse.ablate = {"finer axes"};
  EXPECT_LT(fewest({}), fewest(coarse));
}

}  // namespace
}  // namespace tessera
