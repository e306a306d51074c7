#include "search/mugraph/represent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "eval/eval.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/candidates.h"
#include "search/mugraph/mugraph.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

using mugraph::carry_exponents;

EvalOptions in_f32() {
  EvalOptions options;
  options.precision = Precision::Native;
  return options;
}

int count_everywhere(const Graph& g, OpKind kind) {
  int n = 0;
  for (const Op& op : g.ops()) n += op.kind == kind;
  for (const Graph& b : g.bodies()) n += count_everywhere(b, kind);
  return n;
}

// Inputs that overflow exponentials, with rows that are equal, masked out and constant.
std::vector<NDArray> hard_inputs(const Graph& g, uint64_t seed, bool masks) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, 60);
  std::vector<NDArray> out;
  for (TensorId t : g.inputs()) {
    std::vector<double> data(size_t(num_elements(g.type(t).shape)));
    const int64_t row = g.type(t).shape.back().extent;
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = normal(rng);
      if (i / size_t(row) % 5 == 1) data[i] = 1000;
      if (i / size_t(row) % 5 == 2) data[i] *= 50;
      if (masks && i / size_t(row) % 5 == 3 && i % 3 != 0) data[i] = -INFINITY;
    }
    out.push_back(NDArray::of(g.type(t).dtype, extents(g.type(t).shape), data));
  }
  return out;
}

// In f32, the candidate must be finite and right wherever f64 is.
void expect_safe(const Graph& spec, const Graph& candidate, uint64_t seed, bool masks = false) {
  const std::vector<NDArray> in = hard_inputs(spec, seed, masks);
  const std::vector<NDArray> want = eval(spec, in);
  const std::vector<NDArray> got = eval(candidate, in, in_f32());
  int compared = 0;
  for (size_t o = 0; o < want.size(); ++o) {
    double scale = 1e-30;
    for (double x : want[o].reals) scale = std::isfinite(x) ? std::max(scale, std::fabs(x)) : scale;
    for (size_t i = 0; i < want[o].reals.size(); ++i) {
      if (!std::isfinite(want[o].reals[i])) continue;
      ++compared;
      ASSERT_TRUE(std::isfinite(got[o].reals[i])) << i << "\n" << print(candidate);
      // Scores are sums in f32: e^(60·60·8·2^-24) is how much they may be off.
      ASSERT_NEAR(want[o].reals[i], got[o].reals[i], 4e-2 * scale) << i << "\n" << print(candidate);
    }
  }
  EXPECT_GT(compared, 0);
}

const char* kRepresented[] = {
    // attention as people write it
    R"(graph attention {
  Q = input : f32[6,8]
  K = input : f32[8,96]
  V = input : f32[96,16]
  s = matmul Q, K
  m = reduce_max s {axes=[1], keepdims=true}
  z = sub s, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})",
    // log-sum-exp
    R"(graph lse {
  X = input : f32[20,96]
  m = reduce_max X {axes=[1], keepdims=true}
  z = sub X, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  l = log d
  O = add l, m
  return O
})",
    R"(graph softmax {
  X = input : f32[20,100]
  m = reduce_max X {axes=[1], keepdims=true}
  z = sub X, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  O = div e, d
  return O
})",
    // a mask added to the scores
    R"(graph masked {
  Q = input : f32[6,8]
  K = input : f32[8,96]
  M = input : f32[6,96]
  V = input : f32[96,16]
  s = matmul Q, K
  t = add s, M
  m = reduce_max t {axes=[1], keepdims=true}
  z = sub t, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})",
};

TEST(Represent, EveryCandidateIsSafe) {
  int carried = 0;
  for (const char* text : kRepresented) {
    const Graph g = parse(text);
    for (const Candidate& c : candidates(g)) {
      EXPECT_TRUE(c.notes.empty()) << "a shift was dropped\n" << print(c.graph);
      carried += count_everywhere(c.graph, OpKind::AccumRescale);
      for (uint64_t seed : {1, 2}) expect_safe(g, c.graph, seed);
    }
  }
  EXPECT_GT(carried, 5);
}

// The tester itself: without the representation, overflow is noticed.
TEST(Represent, WithoutItExponentialsOverflow) {
  MugraphOptions options;
  options.ablate = {"running maximum"};
  int infinite = 0;
  const Graph g = parse(kRepresented[0]);
  for (const Candidate& c : candidates(g, options)) {
    const auto got = eval(c.graph, hard_inputs(g, 1, false), in_f32());
    infinite += std::any_of(got[0].reals.begin(), got[0].reals.end(),
                            [](double x) { return !std::isfinite(x); });
  }
  EXPECT_GT(infinite, 0);
}

TEST(Represent, MasksOfMinusInfinity) {
  const Graph g = parse(R"(graph masked {
  M = input : f32[10,64]
  V = input : f32[64,16]
  e = exp M
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})");
  for (const Candidate& c : candidates(g)) {
    std::vector<NDArray> in = hard_inputs(g, 3, true);
    for (double& x : in[1].reals) x = std::isfinite(x) ? x / 1000 : 1;
    // A row in which whole tiles are masked out.
    for (size_t i = 0; i < 63; ++i) in[0].reals[i] = -INFINITY;
    // The program itself overflows in f64: the shifted one does not.
    Graph safe = parse(R"(graph safe {
  M = input : f32[10,64]
  V = input : f32[64,16]
  m = reduce_max M {axes=[1], keepdims=true}
  z = sub M, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})");
    const auto want = eval(safe, in);
    const auto got = eval(c.graph, in, in_f32());
    for (size_t i = 0; i < want[0].reals.size(); ++i)
      ASSERT_NEAR(want[0].reals[i], got[0].reals[i], 1e-4) << i << "\n" << print(c.graph);
  }
}

// Kernels that pass exponentials to each other hand over the maximum too.
TEST(Represent, PartialSumsCarryTheirMaximum) {
  const Graph g = parse(R"(graph split {
  S = input : f32[4,64]
  V = input : f32[64,8]
  d, n = kernel S, V grid[x=4] {
    S = input : f32[4,64]
    s = iter S {imap={x:1}} : f32[4,16]
    V = input : f32[64,8]
    v = iter V {imap={x:0}} : f32[16,8]
    e = exp s : f32[4,16]
    t = sum e {axes=[1], keepdims=true} : f32[4,1]
    p = matmul e, v : f32[4,8]
    u = unsqueeze p {axes=[0]} : f32[1,4,8]
    a = save t {omap={x:1}} : f32[4,4]
    b = save u {omap={x:0}} : f32[4,4,8]
    return a, b
  } : f32[4,4], f32[4,4,8]
  O = kernel d, n grid[x=1] {
    d = input : f32[4,4]
    a = iter d : f32[4,4]
    n = input : f32[4,4,8]
    b = iter n : f32[4,4,8]
    x = sum a {axes=[1], keepdims=true} : f32[4,1]
    y = sum b {axes=[0]} : f32[4,8]
    z = div y, x : f32[4,8]
    O = save z : f32[4,8]
    return O
  } : f32[4,8]
  return O
})");
  const Graph spec = parse(R"(graph spec {
  S = input : f32[4,64]
  V = input : f32[64,8]
  m = reduce_max S {axes=[1], keepdims=true}
  z = sub S, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})");
  const Graph carried = carry_exponents(g);
  validate(carried);
  EXPECT_EQ(carried.op(OpId(2)).num_results, 4u) << print(carried);
  EXPECT_EQ(parse(print(carried)), carried);
  for (uint64_t seed : {1, 2, 3}) expect_safe(spec, carried, seed);
  const Acceptance a = accept(spec, carried);
  EXPECT_TRUE(a.verdict.equal()) << a.verdict.str();
}

TEST(Represent, ExponentialsThatAreNotSummedStay) {
  const Graph g = parse(R"(graph silu {
  X = input : f32[8,32]
  W = input : f32[32,32]
  O = kernel X, W grid[x=1] {
    X = input : f32[8,32]
    x = iter X : f32[8,32]
    W = input : f32[32,32]
    w = iter W : f32[32,32]
    y = matmul x, w : f32[8,32]
    n = neg y : f32[8,32]
    e = exp n : f32[8,32]
    c = const {value=1} : f32[]
    d = add e, c : f32[8,32]
    z = div y, d : f32[8,32]
    O = save z : f32[8,32]
    return O
  } : f32[8,32]
  return O
})");
  EXPECT_EQ(carry_exponents(g), g);
}

// What a bf16 program sums in parts is rounded once, at the end.
TEST(Represent, PartialSumsOfSixteenBitProgramsAreSinglePrecision) {
  const Graph g = parse(R"(graph sums {
  X = input : bf16[16384,64]
  O = sum X {axes=[0], keepdims=true}
  return O
})");
  std::mt19937_64 rng(4);
  std::normal_distribution<double> normal(1.5, 1);
  std::vector<double> data(16384 * 64);
  for (double& x : data) x = round_to(DType::BF16, normal(rng));
  const std::vector<NDArray> in{NDArray::of(DType::BF16, {16384, 64}, data)};
  const std::vector<NDArray> want = eval(g, in);
  int wide = 0;
  for (const Candidate& c : candidates(g)) {
    for (const Op& op : c.graph.ops())
      for (uint32_t r = 0; op.kind == OpKind::Kernel && r < op.num_results; ++r)
        wide += c.graph.type(op.result(r)).dtype == DType::F32;
    const std::vector<NDArray> got = eval(c.graph, in, in_f32());
    for (size_t i = 0; i < want[0].reals.size(); ++i) {
      int exponent = 0;
      std::frexp(want[0].reals[i], &exponent);  // half a unit of eight digits, and f32's rounding
      ASSERT_LE(std::fabs(got[0].reals[i] - want[0].reals[i]), std::ldexp(1.01, exponent - 9))
          << print(c.graph);
    }
  }
  EXPECT_GT(wide, 0);
}

TEST(Represent, SixteenBitProgramsKeepPairsInSinglePrecision) {
  const Graph g = parse(R"(graph lse {
  X = input : bf16[8,64]
  d = kernel X grid[x=1] {
    X = input : bf16[8,64]
    x = iter X : bf16[8,64]
    e = exp x : bf16[8,64]
    s = sum e {axes=[1], keepdims=true} : bf16[8,1]
    d = save s : bf16[8,1]
    return d
  } : bf16[8,1]
  O = kernel d grid[x=1] {
    d = input : bf16[8,1]
    x = iter d : bf16[8,1]
    y = log x : bf16[8,1]
    O = save y : bf16[8,1]
    return O
  } : bf16[8,1]
  return O
})");
  const Graph carried = carry_exponents(g);
  validate(carried);
  int pairs = 0;
  for (const Op& op : carried.ops()) {
    if (op.kind != OpKind::Kernel || op.num_results != 2) continue;
    ++pairs;
    EXPECT_EQ(carried.type(op.result(1)).dtype, DType::F32);
  }
  EXPECT_EQ(pairs, 1) << print(carried);
  expect_safe(parse(R"(graph lse {
  X = input : bf16[8,64]
  m = reduce_max X {axes=[1], keepdims=true}
  z = sub X, m
  e = exp z
  d = sum e {axes=[1], keepdims=true}
  l = log d
  O = add l, m
  return O
})"),
              carried, 5);
}

}  // namespace
}  // namespace tessera
