// What is generated for sm_90a: products of four warps and boxes brought by the asynchronous proxy,
// run by the emulator against the interpreter.
#include <gtest/gtest.h>

#include <array>

#include "backend/block_programs.h"
#include "backend/emulated.h"
#include "backend/written.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

CudaProgram hopper(const std::string& text) {
  return emit_cuda(parse(text), parse_arch("sm_90a"), {}, gpu());
}

// A product in tiles of (m / grid) × (n / grid), the depth in `loops` parts.
std::string product(const std::string& dtype, std::array<int64_t, 3> mnk,
                    std::array<int64_t, 2> grid, int64_t loops) {
  return in_tiles(R"(graph product {
  A = input : T[M,K]
  B = input : T[K,N]
  O = kernel A, B grid[x=X, y=Y] loops[i=L] {
    A = input : T[M,K]
    B = input : T[K,N]
    a = iter A {imap={x:0}, fmap={i:1}} : T[Mt,Kt]
    b = iter B {imap={y:1}, fmap={i:0}} : T[Kt,Nt]
    p = matmul a, b
    c = accum p {loops=[0]}
    O = save c {omap={x:0, y:1}} : T[M,N]
    return O
  } : T[M,N]
  return O
}
)",
                  dtype, mnk, grid, loops);
}

struct Wide {
  std::string text;
  int products = 0;  // of four warps, in the source
  size_t maps = 0;
};

// Runs the programs, side by side.
void expect_wide(const std::vector<Wide>& programs) {
  Graph all("together");
  for (const Wide& w : programs) {
    const Graph graph = parse(w.text);
    validate(graph);
    append(all, graph);
    const CudaProgram program = hopper(w.text);
    EXPECT_EQ(count(program.source, "ts::multiply_add_wide<"), w.products) << program.source;
    size_t described = 0;
    for (const CudaKernel& k : program.kernels) described += k.maps.size();
    EXPECT_EQ(described, w.maps) << program.source;
  }
  EXPECT_EQ(emulated_fault(all, "sm_90a"), "");
}

// Few rows: the columns of the result are the rows of what is computed.
TEST(CudaWide, FewRowsAreComputedTransposed) {
  expect_wide({{rms_norm_linear(16, 128, 128, 2, 2, "f16"), 1, 1},
               {rms_norm_linear(1, 192, 64, 1, 3, "bf16"), 1, 1},
               {rms_norm_linear(5, 256, 256, 2, 4, "bf16"), 1, 1}});
  EXPECT_NE(hopper(rms_norm_linear(16, 128, 128, 2, 2, "f16")).source.find(", transposed"),
            std::string::npos);
}

TEST(CudaWide, Attention) {
  expect_wide({{attention({2, 64, 64, 128, 64, 1, 2, true, "f16"}), 2, 2},
               {attention({1, 16, 64, 256, 128, 1, 4, true, "bf16"}), 2, 2}});
}

// 64s of rows and columns, 128 columns at once and several of them, two groups of four warps.
TEST(CudaWide, ManyRows) {
  expect_wide({{rms_norm_linear(128, 64, 128, 1, 2, "f16"), 1, 1},
               {rms_norm_linear(128, 64, 256, 1, 2, "bf16"), 1, 1},
               {product("f16", {192, 160, 64}, {1, 1}, 2), 1, 2},
               {product("f16", {64, 208, 64}, {1, 1}, 2), 1, 2}});
}

// The last tile ends early: boxes are filled up with zeros where the array ends, also in depth.
TEST(CudaWide, ShorterLastTiles) {
  expect_wide({{product("bf16", {64, 64, 190}, {1, 1}, 3), 1, 1},
               {product("bf16", {16, 64, 568}, {1, 1}, 9), 1, 2},
               {product("f16", {127, 248, 32}, {2, 4}, 2), 1, 1},
               {attention({1, 64, 64, 95, 64, 1, 2, false, "f16"}), 2, 1},
               // Tiles that are filled up by what belongs to another one come in pieces.
               {product("f16", {64, 64, 120}, {1, 1}, 3), 1, 0}});
}

// Boxes of 16 and 32 columns, boxes side by side, and what warps read of them by themselves.
TEST(CudaWide, BoxesOfAllWidths) {
  expect_wide({{product("f16", {64, 24, 96}, {1, 1}, 2), 1, 2},
               {product("f16", {64, 96, 64}, {1, 1}, 2), 1, 2},
               {product("bf16", {8, 64, 96}, {1, 1}, 2), 1, 2},
               {rms_norm_linear(16, 96, 64, 2, 3, "bf16"), 0, 1},
               {rms_norm_linear(16, 128, 384, 2, 2, "bf16"), 1, 1},
               {rms_norm_linear(16, 128, 96, 1, 2, "f16"), 0, 1},
               {rms_norm_linear(16, 640, 48, 1, 2, "f16"), 0, 1}});
}

// Several matrices in a tile, and tiles of a loop inside another one.
TEST(CudaWide, MatricesAndNestedLoops) {
  expect_wide({{R"(graph nested {
  A = input : f16[4,16,128]
  B = input : f16[128,64]
  O = kernel A, B grid[x=1] loops[i=2, j=2] {
    A = input : f16[4,16,128]
    B = input : f16[128,64]
    a = iter A {fmap={i:0, j:2}} : f16[2,16,64]
    b = iter B {fmap={j:0}} : f16[64,64]
    p = matmul a, b : f16[2,16,64]
    s = accum p {loops=[1]} : f16[2,16,64]
    e = exp s : f16[2,16,64]
    t = accum e {loops=[0]} : f16[2,16,64]
    O = save t : f16[2,16,64]
    return O
  } : f16[2,16,64]
  return O
}
)",
                1, 2}});
}

// One barrier of the block an iteration: boxes announce themselves, and what the iteration made in
// shared memory has two copies. Maxima of rows and the scales that are made of them need two more;
// probabilities stay in registers.
TEST(CudaWide, FewBarriers) {
  const auto in_loop = [](const std::string& text) {
    const std::string source = hopper(text).source;
    return count(source.substr(source.find("for (int l0 = 0")), "ts::sync();");
  };
  EXPECT_EQ(in_loop(product("f16", {64, 64, 256}, {1, 1}, 4)), 1);
  EXPECT_EQ(in_loop(rms_norm_linear(16, 512, 128, 2, 8, "f16")), 3);  // two after the loop
  EXPECT_EQ(in_loop(attention({1, 64, 64, 512, 64, 1, 8, true, "f16"})), 3);
}

// What is in a map is what the kernel's copies take for granted.
TEST(CudaWide, MapsSayWhereBoxesLie) {
  const CudaProgram p = hopper(rms_norm_linear(16, 640, 384, 2, 2, "bf16"));
  ASSERT_EQ(p.kernels.size(), 1u);
  ASSERT_EQ(p.kernels[0].maps.size(), 1u);
  const TensorMapSpec& m = p.kernels[0].maps[0];
  EXPECT_EQ(p.plan.tasks[0].reads[size_t(m.argument)], p.kernels[0].arguments[2]);
  EXPECT_EQ(m.element_bytes, 2);
  EXPECT_EQ(m.rows, 640);
  EXPECT_EQ(m.columns, 384);
  EXPECT_EQ(m.box_rows, 160);  // at most 256, and no more than the 320 of the tile
  EXPECT_EQ(m.box_columns, 64);
  EXPECT_TRUE(m.swizzled);
}

// Other architectures have neither.
TEST(CudaWide, OnlyHopper) {
  const Graph graph = parse(rms_norm_linear(16, 128, 128, 2, 2, "f16"));
  for (const char* arch : {"sm_80", "sm_90", "sm_100a"}) {
    const CudaProgram p = emit_cuda(graph, parse_arch(arch), {}, gpu());
    EXPECT_EQ(p.source.find("wide"), std::string::npos) << arch;
    EXPECT_TRUE(p.kernels[0].maps.empty()) << arch;
  }
}

}  // namespace
}  // namespace tessera
