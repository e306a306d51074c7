#include "search/mugraph/moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/candidates.h"
#include "search/mugraph/mugraph.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

struct MomentsProgram {
  const char* text;
  int least;  // candidates with shifted sums, at least
};

// Statistics of many shapes: over the first axis and the last, over two, of two tensors, with the
// mean as a result of its own, of a sum, in front of a product.
const MomentsProgram kMomentsPrograms[] = {
    {R"(graph batch_statistics {
  X = input : f32[512,24]
  m = mean X {axes=[0], keepdims=true}
  c = sub X, m
  s = sqr c
  v = mean s {axes=[0], keepdims=true}
  return m, v
})",
     4},
    {R"(graph standardize {
  X = input : f32[24,500]
  m = mean X {axes=[1], keepdims=true}
  c = sub X, m
  s = sqr c
  v = mean s {axes=[1], keepdims=true}
  n = sqrt v
  O = div c, n
  return O
})",
     4},
    {R"(graph groups {
  X = input : f32[3,4,5,96]
  e = const {value=1e-05} : f32[]
  m = mean X {axes=[2,3], keepdims=true}
  c = sub X, m
  s = sqr c
  v = mean s {axes=[2,3], keepdims=true}
  w = add v, e
  n = rsqrt w
  O = mul c, n
  return O
})",
     1},
    {R"(graph layernorm_linear {
  X = input : f32[6,384]
  G = input : f32[384]
  B = input : f32[384]
  W = input : f32[384,40]
  e = const {value=1e-05} : f32[]
  m = mean X {axes=[1], keepdims=true}
  c = sub X, m
  s = sqr c
  v = mean s {axes=[1], keepdims=true}
  w = add v, e
  r = sqrt w
  n = div c, r
  g = mul n, G
  y = add g, B
  O = matmul y, W
  return O
})",
     2},
    {R"(graph residual_variance {
  X = input : f32[600,24]
  R = input : f32[600,24]
  H = add X, R
  m = mean H {axes=[0], keepdims=true}
  c = sub H, m
  s = sqr c
  v = mean s {axes=[0], keepdims=true}
  return v
})",
     0},  // the search prefers two passes
    {R"(graph covariance {
  X = input : f32[16,400]
  Y = input : f32[16,400]
  mx = mean X {axes=[1], keepdims=true}
  my = mean Y {axes=[1], keepdims=true}
  cx = sub X, mx
  cy = sub Y, my
  p = mul cx, cy
  O = mean p {axes=[1], keepdims=true}
  return O
})",
     2},
    {R"(graph as_e_of_squares {
  X = input : f32[16,400]
  s = sqr X
  q = mean s {axes=[1], keepdims=true}
  m = mean X {axes=[1], keepdims=true}
  n = sqr m
  O = sub q, n
  return O
})",
     2},
};

bool shifts(const Candidate& c) { return c.derivation.find("to a centre c") != std::string::npos; }

// Deviation 1 around `mean`; the first input, and any other of its type. `far` puts the first
// elements of every row 1000 deviations away, where the centre is taken.
std::vector<NDArray> inputs(const Graph& g, double mean, uint64_t seed, bool far = false) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  std::vector<NDArray> out;
  for (TensorId t : g.inputs()) {
    const bool shifted = g.type(t) == g.type(g.inputs()[0]);
    const int64_t row = g.type(t).shape.back().extent;
    std::vector<double> data(size_t(num_elements(g.type(t).shape)));
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = normal(rng) + (shifted ? mean : 0);
      if (far && shifted && int64_t(i) % row < 64) data[i] += 1000;
      data[i] = round_to(g.type(t).dtype, data[i]);
    }
    out.push_back(NDArray::of(g.type(t).dtype, extents(g.type(t).shape), data));
  }
  return out;
}

// Largest error of any output against f64, relative to the output's root mean square.
double error(const Graph& spec, const Graph& g, const std::vector<NDArray>& in) {
  EvalOptions native;
  native.precision = Precision::Native;
  const std::vector<NDArray> want = eval(spec, in), got = eval(g, in, native);
  double worst = 0;
  for (size_t o = 0; o < want.size(); ++o) {
    double squares = 0, most = 0;
    for (size_t i = 0; i < want[o].reals.size(); ++i) {
      squares += want[o].reals[i] * want[o].reals[i];
      most = std::max(most, std::fabs(want[o].reals[i] - got[o].reals[i]));
    }
    worst = std::max(worst, most / std::sqrt(squares / double(want[o].reals.size())));
  }
  return worst;
}

TEST(Moments, OnePassIsAsAccurateAsTwoAtAnyMean) {
  for (const MomentsProgram& p : kMomentsPrograms) {
    const Graph g = parse(p.text);
    int shifted = 0;
    for (const Candidate& c : candidates(g)) {
      for (double mean : {0.0, 100.0, 10000.0}) {
        const std::vector<NDArray> in = inputs(g, mean, 1);
        const std::vector<NDArray> want = eval(g, in), got = eval(c.graph, in);
        for (size_t o = 0; o < want.size(); ++o)
          for (size_t i = 0; i < want[o].reals.size(); ++i)
            ASSERT_NEAR(want[o].reals[i], got[o].reals[i], 1e-6 * (1 + std::fabs(got[o].reals[i])))
                << print(c.graph);
        if (!shifts(c)) continue;
        // What a sum of 500 and a product may lose, or what two passes lose.
        ASSERT_LT(error(g, c.graph, in), std::max(1e-5, 2 * error(g, g, in)))
            << g.name() << " " << mean << print(c.graph);
      }
      if (!shifts(c)) continue;
      ++shifted;
      // The bound of the centre: at most n/64 as many units are lost, whatever the elements are.
      ASSERT_LT(error(g, c.graph, inputs(g, 0, 2, true)), 1e-4) << print(c.graph);
    }
    EXPECT_GE(shifted, p.least) << g.name();
  }
}

// The tester itself: sums of what is not shifted lose all digits.
TEST(Moments, WithoutShiftsDigitsAreLost) {
  MugraphOptions options;
  options.ablate = {"moments"};
  for (const MomentsProgram& p : kMomentsPrograms) {
    const Graph g = parse(p.text);
    int lost = 0;
    for (const Candidate& c : candidates(g, options)) {
      EXPECT_FALSE(shifts(c));
      lost += error(g, c.graph, inputs(g, 10000, 1)) > 1;
    }
    EXPECT_GE(lost, p.least) << g.name();
  }
}

TEST(Moments, ShiftedPlansAreProved) {
  int proved = 0;
  for (size_t i : {0, 3}) {
    const Graph g = parse(kMomentsPrograms[i].text);
    VerifyOptions options;
    options.seed = 5;
    for (const Candidate& c : candidates(g)) {
      if (!shifts(c) || proved >= 2 * int(i + 1)) continue;
      const Verdict v = verify(g, c.graph, options);
      EXPECT_TRUE(v.equal()) << v.str() << print(c.graph);
      ++proved;
    }
  }
  EXPECT_GE(proved, 4);
}

TEST(Moments, PartialResultsShareOneCentre) {
  const Graph g = parse(R"(graph statistics {
  X = input : f32[4096,256]
  m = mean X {axes=[0], keepdims=true}
  c = sub X, m
  s = sqr c
  v = mean s {axes=[0], keepdims=true}
  return m, v
})");
  int split = 0;
  for (const Candidate& c : candidates(g)) {
    if (!shifts(c) || c.derivation.find("parts(") == std::string::npos) continue;
    ++split;
    ASSERT_LT(error(g, c.graph, inputs(g, 10000, 3)), 1e-5) << print(c.graph);
    if (split == 2) break;
  }
  EXPECT_GE(split, 1);
}

// Nothing is shifted where no squares cancel: uncentred norms, softmax, the norm's own two passes.
TEST(Moments, OnlyWhereSquaresCancel) {
  for (const char* text : {R"(graph rmsnorm {
  X = input : f32[16,400]
  s = sqr X
  m = mean s {axes=[1], keepdims=true}
  r = sqrt m
  O = div X, r
  return O
})",
                           R"(graph softmax {
  X = input : f32[16,400]
  e = exp X
  d = sum e {axes=[1], keepdims=true}
  O = div e, d
  return O
})",
                           R"(graph centred {
  X = input : f32[16,400]
  m = mean X {axes=[1], keepdims=true}
  O = sub X, m
  return O
})"})
    for (const Candidate& c : candidates(parse(text))) EXPECT_FALSE(shifts(c)) << c.derivation;
}

TEST(Moments, ResultsThatMoveWithTheCentreAreGivenBack) {
  const Graph g = parse(kMomentsPrograms[0].text);
  int one_sum = 0;
  for (const Candidate& c : candidates(g)) {
    if (!shifts(c) || c.graph.bodies().size() != 1) continue;
    // The mean is the mean of differences plus the centre, not a third sum.
    int accumulators = 0;
    for (const Op& op : c.graph.bodies()[0].ops()) accumulators += op.kind == OpKind::Accum;
    one_sum += accumulators == 2;
  }
  EXPECT_GE(one_sum, 1);
}

TEST(Moments, CentresAreMeansOfFirstElements) {
  Graph g("centres");
  const TensorId x = g.add_input({DType::F32, {Dim(2), Dim(5), Dim(100)}}, "X");
  const TensorId last = mugraph::add_centre(g, x, {2});
  const TensorId two = mugraph::add_centre(g, x, {1, 2});
  const TensorId few = mugraph::add_centre(g, x, {1});
  g.set_outputs({last, two, few});
  EXPECT_EQ(g.type(last).shape, (Shape{Dim(2), Dim(5), Dim(1)}));
  EXPECT_EQ(g.type(two).shape, (Shape{Dim(2), Dim(1), Dim(1)}));
  EXPECT_EQ(g.type(few).shape, (Shape{Dim(2), Dim(1), Dim(100)}));
  std::vector<double> data;
  for (int i = 0; i < 1000; ++i) data.push_back(i);
  const auto got = eval(g, {NDArray::of(DType::F32, {2, 5, 100}, data)});
  EXPECT_EQ(got[0].reals[1], 131.5);  // 100 … 163
  EXPECT_EQ(got[1].reals[1], 531.5);  // 500 … 563
  EXPECT_EQ(got[2].reals[3], 203);    // 3, 103, … 403: all five
}

}  // namespace
}  // namespace tessera
