#include "driver/tiles.h"

#include <gtest/gtest.h>

#include <set>

#include "cost/analytical.h"
#include "driver/optimize.h"
#include "ir/text.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

constexpr const char* kFusedTiles = R"(
graph fused {
  X = input : f32[6,96]
  W = input {weight=true} : f32[96,40]
  O = kernel X, W grid[x=4] loops[i=3] {
    X = input : f32[6,96]
    W = input : f32[96,40]
    x = iter X {fmap={i:1}}
    w = iter W {imap={x:1}, fmap={i:0}}
    p = matmul x, w
    a = accum p
    x2 = sqr x
    s = sum x2 {axes=[1], keepdims=true}
    b = accum s
    r = sqrt b
    d = div a, r
    o = save d {omap={x:1}} : f32[6,40]
    return o
  }
  return O
}
)";

TEST(Tiles, EveryVariantIsEqualAndDifferent) {
  Graph g = parse(kFusedTiles);
  std::vector<Graph> variants = retilings(g);
  ASSERT_EQ(variants.size(), 4u);  // grid and loop, up and down
  std::set<uint64_t> seen{structural_hash(g)};
  for (const Graph& v : variants) {
    EXPECT_TRUE(seen.insert(structural_hash(v)).second);
    EXPECT_TRUE(v.is_weight(v.inputs()[1]));
    EXPECT_TRUE(accept(g, v, {}).verified) << print(v);
  }
}

TEST(Tiles, ExtentsStayWithinTheAxes) {
  Graph g = parse(kFusedTiles);
  OpId kernel(2);
  EXPECT_TRUE(retile(g, kernel, {40}, {96}).has_value());
  Graph one = *retile(g, kernel, {1}, {1});
  for (const Graph& v : retilings(one)) {
    const Graph& body = v.body(v.ops()[2]);
    EXPECT_GE(body.grid()[0] * body.loops()[0], 2);
  }
  Graph most = *retile(g, kernel, {40}, {96});
  for (const Graph& v : retilings(most)) {
    const Graph& body = v.body(v.ops()[2]);
    EXPECT_LE(body.grid()[0], 40);
    EXPECT_LE(body.loops()[0], 96);
  }
}

TEST(Tiles, AResultWhoseShapeIsTheGridIsLeftAlone) {
  // Partial sums: one row per block, so another grid would be another type.
  Graph g = parse(R"(
graph partial {
  X = input : f32[8,64]
  P = kernel X grid[x=4] {
    X = input : f32[8,64]
    x = iter X {imap={x:1}}
    s = sum x {axes=[1], keepdims=true}
    o = save s {omap={x:1}} : f32[8,4]
    return o
  }
  O = sum P {axes=[1]}
  return O
}
)");
  for (const Graph& v : retilings(g)) EXPECT_TRUE(accept(g, v, {}).verified) << print(v);
}

}  // namespace
}  // namespace tessera
