#include "ir/arrangement.h"

#include <gtest/gtest.h>

#include "eval/eval.h"
#include "ir/text.h"

namespace tessera {
namespace {

// The view of a program's only output as one of its only input.
std::optional<Arrangement> view_of(const Graph& g) {
  std::optional<Arrangement> v = Arrangement(g.type(g.inputs()[0]).shape);
  for (const Op& op : g.ops())
    if (op.kind != OpKind::Input && v) v = v->then(g, op);
  return v;
}

NDArray counting(const Shape& shape) {
  NDArray a = NDArray::zeros(DType::F32, extents(shape));
  for (size_t i = 0; i < a.reals.size(); i++) a.reals[i] = double(i);
  return a;
}

std::vector<double> through(const Graph& g) {
  return eval(g, {counting(g.type(g.inputs()[0]).shape)})[0].reals;
}

const char* kPhases = R"(graph g {
  x = input : f32[2,3,4,6]
  a = reshape x {shape=[2,3,2,2,3,2]}
  b = transpose a {perm=[3,5,0,1,2,4]}
  c = reshape b {shape=[8,3,2,3]}
  return c
})";

TEST(Arrangement, IsTheChainItCameFrom) {
  const Graph g = parse(kPhases);
  const Arrangement v = *view_of(g);
  Graph h;
  h.add_output(v.build(h, h.add_input(g.type(g.inputs()[0]))));
  EXPECT_EQ(through(h), through(g));
  EXPECT_EQ(v.shape(), g.type(g.outputs()[0]).shape);
  EXPECT_FALSE(v.keeps_order());
}

TEST(Arrangement, ItsInverseTakesItBack) {
  const Graph g = parse(kPhases);
  const Arrangement v = *view_of(g);
  Graph h = g;
  const TensorId back = v.inverse().build(h, h.outputs()[0]);
  h.set_outputs({back});
  EXPECT_EQ(through(h), counting(v.source()).reals);
  ASSERT_TRUE(v.then(v.inverse()).has_value());
  EXPECT_TRUE(v.then(v.inverse())->is_identity());
  EXPECT_TRUE(v.inverse().inverse() == v);
}

TEST(Arrangement, EqualMapsAreEqual) {
  // Two transposes in other steps; what is left of a chain of reshapes.
  const Arrangement once =
      *view_of(parse("graph g { x = input : f32[2,3,4] a = transpose x {perm=[2,0,1]} return a }"));
  const Arrangement twice = *view_of(parse(R"(graph g {
    x = input : f32[2,3,4]
    a = reshape x {shape=[6,4]}
    b = transpose a {perm=[1,0]}
    c = reshape b {shape=[4,2,3]}
    return c })"));
  EXPECT_TRUE(once == twice) << once.str() << " / " << twice.str();
  EXPECT_EQ(once.str(), twice.str());
  const Arrangement other =
      *view_of(parse("graph g { x = input : f32[2,3,4] a = transpose x {perm=[1,0,2]} return a }"));
  EXPECT_FALSE(once == other);
}

TEST(Arrangement, KnowsWhereAnAxisWent) {
  const Arrangement v = *view_of(parse(kPhases));
  EXPECT_EQ(v.axis_of(1), std::optional<size_t>(1));  // channels stay together
  EXPECT_EQ(v.axis_of(0), std::nullopt);              // the batch is a part of an axis
  EXPECT_EQ(v.axis_of(3), std::nullopt);              // columns are cut in two
  const Arrangement turned =
      *view_of(parse("graph g { x = input : f32[2,3,4] a = transpose x {perm=[1,2,0]} return a }"));
  EXPECT_EQ(turned.axis_of(0), std::optional<size_t>(2));
  EXPECT_EQ(turned.axis_of(1), std::optional<size_t>(0));
  EXPECT_EQ(turned.axis_of(2), std::optional<size_t>(1));
}

TEST(Arrangement, RefusesFactorsThatDoNotFit) {
  // Rows of 4 in 6 columns: no axis of the transpose is a factor of the source's.
  EXPECT_FALSE(view_of(parse(R"(graph g {
    x = input : f32[4,6]
    t = transpose x {perm=[1,0]}
    a = reshape t {shape=[4,6]}
    b = transpose a {perm=[1,0]}
    return b })")));
  EXPECT_FALSE(view_of(parse("graph g { x = input : f32[4] a = neg x return a }")));
}

}  // namespace
}  // namespace tessera
