#include "search/mutate/boxes.h"

#include <gtest/gtest.h>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/mutate/rearrange.h"

namespace tessera::mutants {
namespace {

// Whether the boxes tell the truth: evaluates both programs whole at one random input and compares
// every element with what its box says.
void expect_true(const Graph& a, const Graph& b, const Agreement& found) {
  Cone first(a, 99), second(b, 99);
  for (size_t k = 0; k < a.outputs().size(); k++) {
    const std::vector<int64_t> shape = extents(a.type(a.outputs()[k]).shape);
    const Agreement::Output& o = found.outputs[k];
    std::vector<int64_t> counts;
    int64_t boxes = 1, covered = 0;
    for (const auto& axis : o.axes) {
      counts.push_back(int64_t(axis.size()));
      boxes *= counts.back();
    }
    for (int64_t box = 0; box < boxes; box++) {
      const Index which = unflat(box, counts);
      std::vector<int64_t> size;
      int64_t n = 1;
      for (size_t d = 0; d < shape.size(); d++) {
        size.push_back(o.axes[d][size_t(which[d])].count);
        n *= size.back();
      }
      covered += n;
      bool all = true;
      for (int64_t i = 0; i < n; i++) {
        const Index at = unflat(i, size);
        Index v{};
        for (size_t d = 0; d < shape.size(); d++) v[d] = o.axes[d][size_t(which[d])].at(at[d]);
        all = all && first.at(a.outputs()[k], v) == second.at(b.outputs()[k], v);
      }
      EXPECT_EQ(all, o.equal[size_t(box)]) << "box " << box;
    }
    EXPECT_EQ(covered, num_elements(a.type(a.outputs()[k]).shape));
  }
}

// Every form, against the evaluator of the fields.
TEST(Cone, AgreesWithTheEvaluator) {
  const Graph g = parse(R"(graph g {
  x = input : f32[2,4,5,6]
  w = input : f32[6,2,3,2]
  u = input : f32[6,2,2,3]
  b = input : f32[6,1,1]
  c = conv x, w {strides=[2,1], dilations=[1,2], low=[1,2], high=[2,0], groups=2}
  t = conv_transpose c, u {strides=[2,3], dilations=[1,1], low=[1,0], high=[0,2], groups=3}
  p = pool_sum t {size=[2,3], strides=[1,2], low=[1,0], high=[0,1]}
  n = neg p
  s = slice n {starts=[0,1,0,1], stops=[2,6,4,7], steps=[1,2,1,2]}
  q = pad s {low=[0,1,0,2], high=[1,0,0,1], value=0}
  r = transpose q {perm=[2,0,3,1]}
  h = reshape r {shape=[4,3,24]}
  e = mean h {axes=[2]}
  k = sum b {axes=[1,2], keepdims=true}
  f = reshape k {shape=[3,2]}
  m = matmul e, f
  half = const {value=-3/8} : f32[2]
  a = add m, half
  i = mul a, half
  j = sub i, m
  rep = repeat j {repeats=[2,1]}
  con = concat rep, j {axis=0}
  st = stack con, con {axis=1}
  un = unsqueeze st {axes=[0]}
  bro = broadcast un {shape=[2,12,2,2]}
  return bro, m, t
})");
  Cone cone(g, 5);
  const FieldModel model(FieldSize::Bits61, 5);
  const Modulus<uint64_t> field(model.prime(0));
  std::vector<FieldArray> inputs = draw_inputs(g, model, needed_components(g));
  for (size_t k = 0; k < inputs.size(); k++) {
    const std::vector<int64_t> shape = extents(g.type(g.inputs()[k]).shape);
    for (int64_t i = 0; i < inputs[k].size(); i++)
      inputs[k].set_value(model, 0, i, field.to_word(cone.at(g.inputs()[k], unflat(i, shape))));
  }
  const FieldResult whole = eval_field(g, model, inputs);
  ASSERT_TRUE(whole.ok()) << whole.unsupported;
  for (size_t k = 0; k < g.outputs().size(); k++) {
    const std::vector<int64_t> shape = extents(g.type(g.outputs()[k]).shape);
    for (int64_t i = 0; i < whole.outputs[k].size(); i++)
      ASSERT_EQ(whole.outputs[k].value(model, 0, i),
                field.to_word(cone.at(g.outputs()[k], unflat(i, shape))))
          << "output " << k << " element " << i;
  }
}

TEST(Boxes, ConvolutionWithBordersHasNine) {
  const Graph g = parse(R"(graph g {
  x = input : f32[2,3,8,8]
  w = input : f32[4,3,3,3]
  y = conv x, w {low=[1,1], high=[1,1]}
  return y
})");
  const auto boxes = output_boxes(g);
  ASSERT_TRUE(boxes);
  const Boxes& b = (*boxes)[0];
  EXPECT_EQ(b[0].pieces.size(), 1u);
  EXPECT_EQ(b[1].pieces.size(), 1u);
  EXPECT_EQ(b[2].pieces, (std::vector<Piece>{{0, 1, 1}, {1, 1, 6}, {7, 1, 1}}));
  EXPECT_EQ(b[3].pieces.size(), 3u);
  EXPECT_EQ(b[2].slopes[1], (Slopes{{{2, 1}}}));
  const auto same = agreement(g, g, 1);
  ASSERT_TRUE(same);
  EXPECT_TRUE(same->whole());
  EXPECT_EQ(same->boxes, 9);
  EXPECT_EQ(same->points, 9);  // one slope: one point
}

// Where m + 1 points are not enough: the programs agree at 0 and 1 whatever x is, and nowhere else.
TEST(Boxes, SumsOfIndexMapsNeedMorePoints) {
  const Graph a = parse(R"(graph a {
  x = input : f32[16]
  s = slice x {starts=[0], stops=[16], steps=[3]}
  t = slice x {starts=[1], stops=[7], steps=[1]}
  y = add s, t
  return y
})");
  const Graph b = parse(R"(graph b {
  x = input : f32[16]
  p = pool_sum x {size=[2], strides=[2]}
  y = slice p {starts=[0], stops=[6], steps=[1]}
  return y
})");
  const auto found = agreement(a, b, 7);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->boxes, 1);
  EXPECT_EQ(found->points, 3);  // slopes 3 and 1, and 2
  EXPECT_FALSE(found->whole());
  EXPECT_EQ(found->share, 0);
  Cone first(a, 7), second(b, 7);
  for (int64_t v = 0; v < 3; v++)
    EXPECT_EQ(first.at(a.outputs()[0], {v}) == second.at(b.outputs()[0], {v}), v < 2);
}

// Pieces of the programs of PET's Figures 1 and 3, and of others; what the boxes say is compared
// with all elements.
TEST(Boxes, TellTheTruth) {
  const char* const programs[][2] = {
      {R"(graph a {
  x = input : f32[4,3,5,6]
  w = input : f32[2,3,3,3]
  y = conv x, w {low=[1,1], high=[1,1]}
  return y
})",
       R"(graph b {
  x = input : f32[4,3,5,6]
  w = input : f32[2,3,3,3]
  r = reshape x {shape=[2,2,3,5,6]}
  t = transpose r {perm=[0,2,3,1,4]}
  m = reshape t {shape=[2,3,5,12]}
  c = conv m, w {low=[1,1], high=[1,1]}
  d = reshape c {shape=[2,2,5,2,6]}
  e = transpose d {perm=[0,3,1,2,4]}
  y = reshape e {shape=[4,2,5,6]}
  return y
})"},
      {R"(graph a {
  x = input : f32[1,3,9,8]
  w = input : f32[2,3,3,3]
  y = conv x, w {dilations=[2,2], low=[2,2], high=[2,2]}
  return y
})",
       R"(graph b {
  x = input : f32[1,3,9,8]
  w = input : f32[2,3,3,3]
  p = pad x {low=[0,0,0,0], high=[0,0,1,0], value=0}
  r = reshape p {shape=[1,3,5,2,4,2]}
  t = transpose r {perm=[3,5,0,1,2,4]}
  m = reshape t {shape=[4,3,5,4]}
  c = conv m, w {low=[1,1], high=[1,1]}
  d = reshape c {shape=[2,2,1,2,5,4]}
  e = transpose d {perm=[2,3,4,0,5,1]}
  f = reshape e {shape=[1,2,10,8]}
  y = slice f {starts=[0,0,0,0], stops=[1,2,9,8], steps=[1,1,1,1]}
  return y
})"},
      {R"(graph a {
  x = input : f32[1,4,7,6]
  w = input : f32[6,2,3,3]
  y = conv x, w {groups=2, strides=[2,1], low=[1,1], high=[1,1]}
  return y
})",
       R"(graph b {
  x = input : f32[1,4,7,6]
  w = input : f32[6,2,3,3]
  r = reshape x {shape=[1,2,2,7,6]}
  t = transpose r {perm=[0,2,1,3,4]}
  m = reshape t {shape=[1,4,7,6]}
  y = conv m, w {groups=2, strides=[2,1], low=[1,1], high=[1,1]}
  return y
})"},
      {R"(graph a {
  x = input : f32[4,6]
  u = input : f32[6,10]
  y = matmul x, u
  return y
})",
       R"(graph b {
  x = input : f32[4,6]
  u = input : f32[6,10]
  s = slice u {starts=[0,0], stops=[6,10], steps=[1,2]}
  v = slice u {starts=[0,1], stops=[6,10], steps=[1,2]}
  c = concat s, v {axis=1}
  y = matmul x, c
  return y
})"},
  };
  int partly = 0;
  for (const auto& [first, second] : programs) {
    const Graph a = parse(first), b = parse(second);
    const auto found = agreement(a, b, 3);
    ASSERT_TRUE(found);
    expect_true(a, b, *found);
    if (found->share > 0 && !found->whole()) partly++;
    EXPECT_TRUE(agreement(b, b, 3)->whole());
  }
  EXPECT_EQ(partly, 1);
  const auto phases = agreement(parse(programs[1][0]), parse(programs[1][1]), 3);
  EXPECT_TRUE(phases->whole());
  const auto merged = agreement(parse(programs[0][0]), parse(programs[0][1]), 3);
  EXPECT_NEAR(merged->share, 5.0 / 6, 1e-12);  // a column of six is wrong in every image
}

TEST(Rearrangement, MovesFactorsAndBack) {
  const Rearrangement r{{0, 0, 0, 0}, {0, 0, 1, 0}, {}, {{2, true, 2, 0, false}}, {}, {}};
  EXPECT_EQ(r.shape({1, 3, 9, 8}), (std::vector<int64_t>{2, 3, 5, 8}));
  const Rearrangement back{{}, {}, {}, {{0, false, 2, 2, true}}, {}, {1, 3, 9, 8}};
  Graph g, same;
  const TensorId x = g.add_input({DType::F32, {1, 3, 9, 8}});
  g.set_outputs({back.build(g, r.build(g, x))});
  same.set_outputs({same.add_input({DType::F32, {1, 3, 9, 8}})});
  const auto found = agreement(same, g, 1);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->whole());
  expect_true(same, g, *found);
}

TEST(Rearrangement, AllAreDifferentMaps) {
  const std::vector<int64_t> shape = {2, 3, 4, 6};
  const auto all = rearrangements(shape, {2, 3}, {}, [](const auto&) { return true; });
  EXPECT_GT(all.size(), 200u);
  std::set<std::string> seen;
  for (const Rearrangement& r : all) {
    Graph g;
    const TensorId y = r.build(g, g.add_input({DType::F32, Shape(shape.begin(), shape.end())}));
    const std::vector<int64_t> to = extents(g.type(y).shape);
    EXPECT_EQ(r.shape(shape), to) << r.str();
    Cone cone(g, 1);
    std::string key = str(g.type(y).shape);
    for (int64_t i = 0; i < num_elements(g.type(y).shape); i++)
      key += " " + std::to_string(cone.at(y, unflat(i, to)));
    EXPECT_TRUE(seen.insert(key).second) << r.str();
  }
}

}  // namespace
}  // namespace tessera::mutants
