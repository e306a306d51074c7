// Programs larger than one region, and what surrounds attention in models: masks, operators that
// stay, many operators under a budget.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/mugraph/mugraph.h"
#include "search/mugraph/region.h"

namespace tessera {
namespace {

struct FoundParts {
  SearchReport report;
  std::vector<Candidate> candidates;
};

FoundParts search_parts(const Graph& g, double seconds = 30) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  CollectingSink sink;
  Budget budget;
  budget.seconds = seconds;
  FoundParts f;
  f.report = Mugraph().run({g}, context, budget, sink);
  f.candidates = std::move(sink.candidates);
  return f;
}

void expect_right_candidates(const Graph& g, const std::vector<Candidate>& candidates) {
  std::mt19937_64 rng(7);
  std::uniform_real_distribution<double> u(-1, 1);
  std::vector<NDArray> in;
  for (TensorId t : g.inputs()) {
    std::vector<double> data(size_t(num_elements(g.type(t).shape)));
    for (double& x : data) x = u(rng);
    in.push_back(NDArray::of(g.type(t).dtype, extents(g.type(t).shape), data));
  }
  const std::vector<NDArray> want = eval(g, in);
  for (const Candidate& c : candidates) {
    const std::vector<NDArray> got = eval(c.graph, in);
    for (size_t o = 0; o < want.size(); ++o) {
      for (size_t i = 0; i < want[o].reals.size(); ++i)
        ASSERT_NEAR(got[o].reals[i], want[o].reals[i], 1e-6) << print(c.graph);
    }
  }
}

size_t kernels_of(const Candidate& c) { return c.graph.bodies().size(); }

TEST(Partition, CausalMaskDoesNotCutAttention) {
  Graph g = parse(R"(graph causal {
  Q = input : f64[2,16,8]
  K = input : f64[2,8,16]
  V = input : f64[2,16,8]
  i = iota {axis=0} : i32[16,16]
  j = iota {axis=1} : i32[16,16]
  c = ge i, j
  s = matmul Q, K
  n = const {value=-1000000000} : f64[]
  w = where c, s, n
  m = reduce_max w {axes=[2], keepdims=true}
  d = sub w, m
  e = exp d
  z = sum e {axes=[2], keepdims=true}
  p = div e, z
  O = matmul p, V
  return O
})");
  int regions = 0;
  for (const mugraph::Step& s : mugraph::partition(g)) regions += !s.kept.valid();
  EXPECT_EQ(regions, 1);
  FoundParts f = search_parts(g);
  ASSERT_FALSE(f.candidates.empty());
  bool one = false;
  for (const Candidate& c : f.candidates) one = one || kernels_of(c) == 1;
  EXPECT_TRUE(one);
  expect_right_candidates(g, f.candidates);
}

// Two projections of one normalised tensor: one kernel whose grid cuts both results.
TEST(Partition, OutputsOfDifferentWidthShareAKernel) {
  Graph g = parse(R"(graph qkv {
  X = input : f64[4,32]
  A = input : f64[32,48]
  B = input : f64[32,16]
  x2 = sqr X
  ms = mean x2 {axes=[1], keepdims=true}
  r = rsqrt ms
  n = mul X, r
  P = matmul n, A
  R = matmul n, B
  return P, R
})");
  FoundParts f = search_parts(g);
  int shared = 0;
  for (const Candidate& c : f.candidates) {
    for (const Graph& b : c.graph.bodies()) {
      std::vector<int64_t> widths;  // of results that the first grid dimension cuts
      for (const Op& op : b.ops()) {
        if (op.kind != OpKind::Save) continue;
        const auto& a = b.attrs<SaveAttrs>(op);
        if (a.omap[0] == 1 && b.grid()[0] > 1) widths.push_back(a.type.shape[1].extent);
      }
      shared += widths.size() == 2 && widths[0] != widths[1];
    }
  }
  EXPECT_GT(shared, 0);
  expect_right_candidates(g, f.candidates);
}

// A transformer-like block with operators outside LAX; regions of bounded size.
TEST(Partition, LargerProgramsAreCutIntoRegions) {
  std::string text =
      "graph deep {\n  X = input : f64[4,8]\n  W = input : f64[8,8]\n  t0 = relu X\n";
  for (int i = 1; i < 120; ++i) {
    const std::string t = "t" + std::to_string(i), p = "t" + std::to_string(i - 1);
    switch (i % 6) {
    case 0: text += "  " + t + " = matmul " + p + ", W\n"; break;
    case 1: text += "  " + t + " = gelu " + p + "\n"; break;
    case 2: text += "  " + t + " = add " + p + ", X\n"; break;
    case 3: text += "  " + t + " = tanh " + p + "\n"; break;
    case 4: text += "  " + t + " = max " + p + ", X\n"; break;
    default: text += "  " + t + " = relu " + p + "\n"; break;
    }
  }
  Graph g = parse(text + "  return t119\n}");
  int regions = 0;
  for (const mugraph::Step& s : mugraph::partition(g)) {
    EXPECT_FALSE(s.kept.valid());
    ++regions;
  }
  EXPECT_GE(regions, 120 / 32);
  EXPECT_LE(regions, 12);
  FoundParts f = search_parts(g);
  ASSERT_FALSE(f.candidates.empty());
  EXPECT_LT(kernels_of(f.candidates[0]), 40u);
  f.candidates.resize(std::min<size_t>(f.candidates.size(), 6));
  expect_right_candidates(g, f.candidates);
}

TEST(Partition, LongChainsKeepTheBudget) {
  std::string text = "graph chain {\n  X = input : f32[64,64]\n  t0 = tanh X\n";
  for (int i = 1; i < 3000; ++i)
    text += "  t" + std::to_string(i) + " = tanh t" + std::to_string(i - 1) + "\n";
  Graph g = parse(text + "  return t2999\n}");
  const auto start = std::chrono::steady_clock::now();
  FoundParts f = search_parts(g, 1.0);
  const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(s, 4.0);  // generous: other work may run on the machine
  EXPECT_FALSE(f.candidates.empty());
}

}  // namespace
}  // namespace tessera
