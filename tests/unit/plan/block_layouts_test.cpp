#include "plan/block_layouts.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace tessera {
namespace {

// X[16,64] · Wᵀ with W stored by rows of outputs, then a chain of pointwise operators.
Graph block(const std::string& columns, const std::string& dtype) {
  const Graph g =
      parse("graph g {\n  X = input : " + dtype + "[16,64]\n  W = input : " + dtype + "[" +
            columns + ",64]\n  Y = kernel X, W grid[x=1] {\n    a = input : " + dtype +
            "[16,64]\n    b = input : " + dtype + "[" + columns +
            ",64]\n    x = iter a : " + dtype + "[16,64]\n    w = iter b : " + dtype + "[" +
            columns + ",64]\n    t = transpose w {perm=[1,0]} : " + dtype + "[64," + columns +
            "]\n    p = matmul x, t : " + dtype + "[16," + columns + "]\n    e = exp p : " + dtype +
            "[16," + columns + "]\n    s = save e : " + dtype + "[16," + columns +
            "]\n    return s\n  } : " + dtype + "[16," + columns + "]\n  return Y\n}\n");
  return g.bodies()[0];
}

Target gpu() {
  Target t = default_cpu_target();
  t.kind = TargetKind::Gpu;
  t.banks = 32;
  t.bulk_bytes = 16;
  return t;
}

int tensor(const Graph& g, const std::string& name) {
  for (size_t i = 0; i < g.tensors().size(); ++i)
    if (g.tensors()[i].name == name) return static_cast<int>(i);
  return -1;
}

TEST(TileLayouts, AGpuCopiesInBulkAndAvoidsBankConflicts) {
  const Graph g = block("32", "f16");
  const TileLayouts l = choose_tile_layouts(g, gpu());
  EXPECT_TRUE(l.optimal);
  const auto at = [&](const char* name) { return l.layouts[static_cast<size_t>(tensor(g, name))]; };
  // Tiles lie as in memory, so that bulk copies apply; rows of 128 bytes would meet one bank.
  EXPECT_EQ(at("x"), (TileLayout{1, true})) << l.str(g);
  EXPECT_EQ(at("w").innermost, 1) << l.str(g);
  // The transposed view is read along k.
  EXPECT_EQ(at("t").innermost, 0) << l.str(g);
  EXPECT_EQ(at("s"), (TileLayout{1, false}));
}

TEST(TileLayouts, WithoutBanksNothingIsSwizzled) {
  Target t = gpu();
  t.banks = 0;
  const Graph g = block("32", "f16");
  for (const TileLayout& l : choose_tile_layouts(g, t).layouts) EXPECT_FALSE(l.swizzled);
  // Rows that are not a multiple of all banks apart need no swizzle either.
  const Graph odd = parse(R"(graph g {
  X = input : f32[16,36]
  W = input : f32[36,20]
  Y = kernel X, W grid[x=1] {
    a = input : f32[16,36]
    b = input : f32[36,20]
    x = iter a : f32[16,36]
    w = iter b : f32[36,20]
    p = matmul x, w : f32[16,20]
    s = save p : f32[16,20]
    return s
  } : f32[16,20]
  return Y
}
)")
                        .bodies()[0];
  const TileLayouts l = choose_tile_layouts(odd, gpu());
  EXPECT_FALSE(l.layouts[static_cast<size_t>(tensor(odd, "x"))].swizzled) << l.str(odd);
}

TEST(TileLayouts, ACpuWantsRowsOfTheRightOperand) {
  const Graph g = block("32", "f32");
  const TileLayouts l = choose_tile_layouts(g, default_cpu_target());
  EXPECT_TRUE(l.optimal);
  // Either the tile is copied transposed or the view is; along the columns it must be.
  EXPECT_EQ(l.layouts[static_cast<size_t>(tensor(g, "t"))].innermost, 1) << l.str(g);
  for (const TileLayout& t : l.layouts) EXPECT_FALSE(t.swizzled);
  EXPECT_GT(l.seconds, 0);
}

}  // namespace
}  // namespace tessera
