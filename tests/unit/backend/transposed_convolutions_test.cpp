#include "backend/cpu/transposed_convolutions.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/graph.h"
#include "ir/text.h"

namespace tessera {
namespace {

// A transposed convolution of small integers, which no order of sums changes.
Graph random_transposed(Rng& rng, DType dtype) {
  const size_t axes = size_t(rng.between(1, 3));
  ConvAttrs a;
  a.groups = rng.between(1, 2);
  Shape x{Dim(rng.between(1, 2)), Dim(a.groups * rng.between(1, 3))};
  Shape w{x[1], Dim(rng.between(1, 3))};
  for (size_t i = 0; i < axes; ++i) {
    const int64_t n = rng.between(1, 5), taps = rng.between(1, 4);
    a.strides.push_back(rng.between(1, 3));
    a.dilations.push_back(rng.between(1, 3));
    const int64_t whole = (n - 1) * a.strides[i] + (taps - 1) * a.dilations[i] + 1;
    a.low.push_back(rng.between(-2, whole - 1));
    a.high.push_back(rng.between(-2, whole - std::max<int64_t>(0, a.low[i]) - 1));
    x.push_back(Dim(n));
    w.push_back(Dim(taps));
  }
  Graph g("g");
  const TensorId image = g.add_input({dtype, x}, "x");
  const TensorId weights = g.add_input({dtype, w}, "w");
  g.add_output(g.add(OpKind::ConvTranspose, {image, weights}, a));
  return g;
}

TEST(TransposedConvolutions, AreOrdinaryOnes) {
  Rng rng(7);
  int strided = 0;
  for (int n = 0; n < 400; ++n) {
    const Graph g = random_transposed(rng, DType::I32);
    const Graph h = without_transposed_convolutions(g);
    SCOPED_TRACE(print(g) + print(h));
    for (const Op& op : h.ops()) {
      EXPECT_NE(op.kind, OpKind::ConvTranspose);
      strided += op.kind == OpKind::Transpose;
    }
    ASSERT_EQ(h.type(h.outputs()[0]), g.type(g.outputs()[0]));
    std::vector<NDArray> inputs;
    for (TensorId t : g.inputs()) {
      NDArray a = NDArray::zeros(g.type(t).dtype, extents(g.type(t).shape));
      for (int64_t& v : a.ints) v = rng.between(-9, 9);
      inputs.push_back(std::move(a));
    }
    ASSERT_EQ(eval(h, inputs)[0].ints, eval(g, inputs)[0].ints);
  }
  EXPECT_GT(strided, 200);
}

// Zeros in place of taps would make NaN of infinities.
TEST(TransposedConvolutions, SpreadNoInfinities) {
  Rng rng(8);
  int finite = 0;
  for (int n = 0; n < 200; ++n) {
    const Graph g = random_transposed(rng, DType::F32);
    const Graph h = without_transposed_convolutions(g);
    std::vector<NDArray> inputs;
    for (TensorId t : g.inputs()) {
      NDArray a = NDArray::zeros(DType::F32, extents(g.type(t).shape));
      for (double& v : a.reals) v = double(rng.between(1, 9));
      inputs.push_back(std::move(a));
    }
    std::vector<double>& image = inputs[0].reals;
    image[size_t(rng.between(0, int64_t(image.size()) - 1))] = INFINITY;
    const NDArray x = eval(g, inputs)[0], y = eval(h, inputs)[0];
    for (size_t i = 0; i < x.reals.size(); ++i) {
      finite += std::isfinite(x.reals[i]);
      ASSERT_EQ(x.reals[i], y.reals[i]) << print(g);
    }
  }
  EXPECT_GT(finite, 1000);
}

TEST(TransposedConvolutions, OtherProgramsStay) {
  Graph g("g");
  const TensorId x = g.add_input({DType::F32, {Dim(3)}}, "x");
  g.add_output(g.add(OpKind::Exp, {x}));
  EXPECT_EQ(print(without_transposed_convolutions(g)), print(g));
}

}  // namespace
}  // namespace tessera
