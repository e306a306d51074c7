// Products of few rows with a large row-major matrix, against the interpreter: every number of
// rows, columns that do not fill tiles or blocks, all float types, converted, transposed, batched
// and ragged operands; and that the generated machine code fetches ahead.
#include <gtest/gtest.h>

#include "backend/cpu/emit.h"
#include "backend/cpu/row_kernels.h"
#include "backend/testing.h"
#include "ir/validate.h"

namespace tessera {
namespace {

bool uses_row_kernels(const Graph& graph, CpuIsa isa = best_isa()) {
  return emit_source(graph, isa).find(" rows_") != std::string::npos;
}

Graph products(DType dtype, const std::vector<std::pair<Shape, Shape>>& shapes) {
  Graph g;
  for (const auto& [a, b] : shapes)
    g.add_output(g.add(OpKind::Matmul, {g.add_input({dtype, a}), g.add_input({dtype, b})}));
  return g;
}

TEST(CpuRows, EveryNumberOfRows) {
  const auto graph = [](DType dtype, const std::vector<int64_t>& rows) {
    std::vector<std::pair<Shape, Shape>> shapes;
    for (int64_t m : rows) shapes.push_back({{m, 45}, {45, 777}});
    return products(dtype, shapes);
  };
  const Graph g = graph(DType::F32, {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32});
  EXPECT_TRUE(uses_row_kernels(g));
  expect_right_everywhere(g);
  expect_right_everywhere(graph(DType::BF16, {1, 4, 8, 17}));
}

TEST(CpuRows, ColumnsAndDepthsThatDoNotDivide) {
  std::vector<std::pair<Shape, Shape>> shapes;
  for (int64_t n : {256, 257, 300, 513, 1040})
    for (int64_t k : {1, 3, 8, 130}) shapes.push_back({{7, k}, {k, n}});
  expect_right_everywhere(products(DType::F32, shapes));
  for (DType dtype : {DType::F64, DType::F16, DType::BF16})
    expect_right_everywhere(
        products(dtype, {{{1, 67}, {67, 4100}}, {{3, 131}, {131, 530}}, {{17, 70}, {70, 290}}}));
}

TEST(CpuRows, LeadingAxes) {
  expect_right_everywhere(products(
      DType::F32,
      {{{3, 6, 40}, {3, 40, 300}}, {{3, 1, 4, 50}, {1, 2, 50, 290}}, {{2, 3, 5, 33}, {33, 310}}}));
  expect_right_everywhere(products(DType::BF16, {{{3, 6, 40}, {3, 40, 300}}}));
}

// A KV cache's tile: its rows lie side by side, also where axes of one were removed or added, and
// not where a block takes some of the columns.
TEST(CpuRows, ShortRowsInOnePiece) {
  const auto graph = [](int64_t columns_per_block) {
    std::string text = R"(graph g {
  P = input : f32[2,2,5,77]
  V = input : f32[2,2,77,130]
  Y = kernel P, V grid[x=2, y=G] loops[i=3] {
    P = input : f32[2,2,5,77]
    V = input : f32[2,2,77,130]
    p4 = iter P {imap={x:0}, fmap={i:3}} : f32[1,2,5,26]
    v4 = iter V {imap={x:0, y:3}, fmap={i:2}} : f32[1,2,26,C]
    p3 = squeeze p4 {axes=[0]}
    v3 = squeeze v4 {axes=[0]}
    v5 = unsqueeze v3 {axes=[0,1]}
    p5 = unsqueeze p3 {axes=[0,1]}
    t = matmul p5, v5
    s = accum t {kind=sum, loops=[0]}
    y = squeeze s {axes=[0,1]}
    y4 = unsqueeze y {axes=[0]}
    Y = save y4 {omap={x:0, y:3}} : f32[2,2,5,130]
    return Y
  } : f32[2,2,5,130]
  return Y
})";
    text.replace(text.find("y=G") + 2, 1,
                 std::to_string((130 + columns_per_block - 1) / columns_per_block));
    text.replace(text.find("26,C") + 3, 1, std::to_string(columns_per_block));
    return parse(text);
  };
  EXPECT_TRUE(uses_row_kernels(graph(130)));
  EXPECT_FALSE(uses_row_kernels(graph(65)));
  expect_right_everywhere(graph(130));
  expect_right_everywhere(graph(65));
}

// The left operand transposed, the right one converted, tiles that do not divide; sums of one loop
// that share the left operand.
TEST(CpuRows, BlocksWithRaggedTilesAndConversions) {
  const Graph g = parse(R"(graph g {
  X = input : f32[50,11]
  V = input : bf16[50,1000]
  W = input : f32[50,1000]
  Y = kernel X, V, W grid[x=3] loops[i=4] {
    X = input : f32[50,11]
    V = input : bf16[50,1000]
    W = input : f32[50,1000]
    x = iter X {fmap={i:0}} : f32[13,11]
    v = iter V {imap={x:1}, fmap={i:0}} : bf16[13,334]
    w = iter W {imap={x:1}, fmap={i:0}} : f32[13,334]
    t = transpose x {perm=[1,0]} : f32[11,13]
    c = cast v : f32[13,334]
    p = matmul t, c : f32[11,334]
    q = matmul t, w : f32[11,334]
    a = accum p {loops=[0]} : f32[11,334]
    b = accum q {loops=[0]} : f32[11,334]
    s = silu a : f32[11,334]
    y = mul s, b : f32[11,334]
    o = save y {omap={x:1}} : f32[11,1000]
    return o
  } : f32[11,1000]
  return Y
}
)");
  EXPECT_NE(emit_source(g, best_isa()).find("rows_f32_bf16_11"), std::string::npos);
  expect_right_everywhere(g);
}

// Products of bf16 with bf16 by dot products of pairs; odd depths end in half a pair, beside which
// anything may lie. An operand that something else wants as f32 is converted for both.
TEST(CpuRows, PairsOfBf16) {
  std::vector<std::pair<Shape, Shape>> shapes;
  for (int64_t m : {1, 3, 7, 8, 16, 19})
    for (int64_t k : {1, 2, 37}) shapes.push_back({{m, k}, {k, 645}});
  const Graph g = products(DType::BF16, shapes);
  const bool dots = emit_source(g, best_isa()).find("vdpbf16ps") != std::string::npos;
  EXPECT_EQ(dots, has_bf16_dot(best_isa()));
  expect_right_everywhere(g);
  expect_right_everywhere(parse(R"(graph g {
  A = input : bf16[6,41]
  B = input : bf16[41,300]
  C = input : f32[300,290]
  Y, Z = kernel A, B, C grid[x=1] {
    A = input : bf16[6,41]
    B = input : bf16[41,300]
    C = input : f32[300,290]
    a = iter A {} : bf16[6,41]
    b = iter B {} : bf16[41,300]
    c = iter C {} : f32[300,290]
    fa = cast a : f32[6,41]
    fb = cast b : f32[41,300]
    p = matmul fa, fb : f32[6,300]
    q = matmul fb, c : f32[41,290]
    y = save p {} : f32[6,300]
    z = save q {} : f32[41,290]
    return y, z
  } : f32[6,300], f32[41,290]
  return Y, Z
}
)"));
  // Tiles of w are the same in all rounds of the loop, so they are converted once, before it.
  expect_right_everywhere(parse(R"(graph g {
  X = input : bf16[16,65]
  W = input : bf16[65,64]
  Y = kernel X, W grid[x=2] loops[i=2] {
    X = input : bf16[16,65]
    W = input : bf16[65,64]
    x = iter X {fmap={i:0}} : bf16[8,65]
    w = iter W {imap={x:1}} : bf16[65,32]
    a = cast x : f32[8,65]
    b = cast w : f32[65,32]
    p = matmul a, b : f32[8,32]
    y = save p {omap={x:1}, fmap={i:0}} : f32[16,64]
    return y
  } : f32[16,64]
  return Y
}
)"));
}

TEST(CpuRows, SchedulesFitTheTile) {
  for (CpuIsa isa : {CpuIsa::Generic, CpuIsa::Avx2, CpuIsa::Avx512}) {
    for (int64_t m = 1; m <= kMostKernelRows; ++m) {
      for (DType right : {DType::F32, DType::BF16, DType::F64}) {
        const RegisterTile tile =
            choose_tile(isa, right == DType::F64 ? DType::F64 : DType::F32, m, 4096);
        const RowSchedule s = row_schedule(tile, m);
        EXPECT_GT(s.rows, 0);
        EXPECT_EQ(s.width % tile.columns(), 0) << m;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
