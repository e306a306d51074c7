// Products whose right operand lies in panels, against the interpreter: all float types, rows and
// depths and columns that divide nothing, batches, transposed and computed operands, loops that
// products leave; and what the generated code consists of.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/emit.h"
#include "backend/cpu/panel_kernels.h"
#include "backend/cpu/stream_kernels.h"
#include "backend/testing.h"
#include "ir/validate.h"

namespace tessera {
namespace {

bool runs(CpuIsa isa) {
  const std::vector<CpuIsa> all = runnable_isas();
  return std::find(all.begin(), all.end(), isa) != all.end();
}

// Products in one block each, so that no tile's border keeps panels away; all right operands are
// weights.
Graph blocks(DType dtype, const std::vector<std::array<int64_t, 3>>& shapes) {
  std::string inputs, body, returned;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [m, k, n] = shapes[i];
    const auto type = [&](int64_t rows, int64_t columns) {
      return std::string(name(dtype)) + "[" + std::to_string(rows) + "," + std::to_string(columns) +
             "]";
    };
    const std::string id = std::to_string(i), x = type(m, k), w = type(k, n), y = type(m, n);
    inputs +=
        "  X" + id + " = input : " + x + "\n  W" + id + " = input {weight=true} : " + w + "\n";
    body += "  Y" + id + " = kernel X" + id + ", W" + id + " grid[x=1] {\n    X = input : " + x +
            "\n    W = input : " + w + "\n    x = iter X {} : " + x + "\n    w = iter W {} : " + w +
            "\n    p = matmul x, w : " + y + "\n    o = save p {} : " + y +
            "\n    return o\n  } : " + y + "\n";
    returned += (i > 0 ? ", Y" : "Y") + id;
  }
  return parse("graph g {\n" + inputs + body + "  return " + returned + "\n}\n");
}

// Products whose right operands are weights.
Graph weighted_products(DType dtype, const std::vector<std::pair<Shape, Shape>>& shapes) {
  Graph g;
  for (const auto& [a, b] : shapes) {
    const TensorId x = g.add_input({dtype, a}), w = g.add_input({dtype, b});
    g.set_weight(g.inputs().size() - 1, true);
    g.add_output(g.add(OpKind::Matmul, {x, w}));
  }
  return g;
}

int packed(const Graph& graph, CpuIsa isa) {
  int n = 0;
  for (const Step& s : emit_program(graph, isa).steps)
    n += s.symbol.empty() && s.pack.layout.panel > 0 ? 1 : 0;
  return n;
}

TEST(CpuPanels, RowsDepthsAndColumnsThatDivideNothing) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    std::vector<std::array<int64_t, 3>> shapes;
    for (int64_t m : {1, 5, 8, 16, 17, 33, 70}) shapes.push_back({m, 67, 211});
    for (int64_t k : {1, 2, 31, 33, 300}) shapes.push_back({17, k, 80});
    for (int64_t n : {16, 31, 49, 300}) shapes.push_back({9, 70, n});
    const Graph g = blocks(dtype, shapes);
    for (CpuIsa isa : runnable_isas()) {
      const bool any = dtype != DType::F16 || isa != CpuIsa::Generic;
      EXPECT_EQ(packed(g, isa), any ? static_cast<int>(shapes.size()) : 0)
          << name(dtype) << " " << to_string(isa);
    }
    expect_right_everywhere(g);
  }
}

TEST(CpuPanels, LargeProducts) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    expect_right_everywhere(blocks(dtype, {{77, 515, 130}, {200, 300, 49}, {16, 2050, 70}}));
    // Blocks and loops as products without a kernel of their own get them.
    const Graph g = weighted_products(dtype, {{{16, 700}, {700, 256}}, {{150, 513}, {513, 512}}});
    EXPECT_GT(packed(g, best_isa()), best_isa() == CpuIsa::Generic ? -1 : 0);
    expect_right_everywhere(g);
  }
}

TEST(CpuPanels, LeadingAxes) {
  for (DType dtype : {DType::F32, DType::BF16}) {
    expect_right_everywhere(weighted_products(
        dtype,
        {{{3, 6, 41}, {3, 41, 70}}, {{3, 1, 4, 50}, {1, 2, 50, 65}}, {{2, 3, 5, 33}, {33, 70}}}));
  }
}

// Weights stored as rows of outputs, and a left operand whose rows do not lie side by side.
TEST(CpuPanels, TransposedOperands) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    std::string text = R"(graph g {
  X = input : T[45,18]
  W = input {weight=true} : T[200,45]
  x = transpose X {perm=[1,0]} : T[18,45]
  w = transpose W {perm=[1,0]} : T[45,200]
  Y = kernel X, W grid[x=2] loops[i=3] {
    X = input : T[45,18]
    W = input : T[200,45]
    x = iter X {fmap={i:0}} : T[15,18]
    w = iter W {imap={x:0}, fmap={i:1}} : T[100,15]
    t = transpose x {perm=[1,0]} : T[18,15]
    u = transpose w {perm=[1,0]} : T[15,100]
    p = matmul t, u : T[18,100]
    a = accum p {loops=[0]} : T[18,100]
    o = save a {omap={x:1}} : T[18,200]
    return o
  } : T[18,200]
  Z = matmul x, w : T[18,200]
  return Y, Z
}
)";
    for (size_t at = 0; (at = text.find("T[", at)) != std::string::npos; at += 2)
      text.replace(at, 1, dtype);
    expect_right_everywhere(parse(text));
  }
}

// A gain and a sum of squares in the loop, two weights, an epilogue: products leave the loop, the
// sum of squares stays; tiles that do not divide depth or columns.
std::string gated(const std::string& dtype, int loops) {
  std::string text = R"(graph g {
  X = input : T[11,200]
  G = input : T[200]
  V = input {weight=true} : T[200,288]
  W = input {weight=true} : T[200,288]
  Y = kernel X, G, V, W grid[x=3] loops[i=LOOPS] {
    X = input : T[11,200]
    G = input : T[200]
    V = input : T[200,288]
    W = input : T[200,288]
    x = iter X {fmap={i:1}} : T[11,DEPTH]
    g = iter G {fmap={i:0}} : T[DEPTH]
    v = iter V {imap={x:1}, fmap={i:0}} : T[DEPTH,96]
    w = iter W {imap={x:1}, fmap={i:0}} : T[DEPTH,96]
    q = sqr x : T[11,DEPTH]
    s = sum q {axes=[1], keepdims=true} : T[11,1]
    r = accum s {loops=[0]} : T[11,1]
    h = mul x, g : T[11,DEPTH]
    p = matmul h, v : T[11,96]
    t = matmul x, w : T[11,96]
    a = accum p {loops=[0]} : T[11,96]
    b = accum t {loops=[0]} : T[11,96]
    c = silu a : T[11,96]
    d = mul c, b : T[11,96]
    y = div d, r : T[11,96]
    o = save y {omap={x:1}} : T[11,288]
    return o
  } : T[11,288]
  return Y
}
)";
  const auto put = [&](const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
      text.replace(at, what.size(), by);
  };
  put("T[", dtype + "[");
  put("LOOPS", std::to_string(loops));
  put("DEPTH", std::to_string((200 + loops - 1) / loops));
  return text;
}

TEST(CpuPanels, ProductsLeaveTheirLoops) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (int loops : {1, 2, 5, 8, 7}) {
      const Graph g = parse(gated(dtype, loops));
      const bool cut = std::string(dtype) == "bf16" && loops > 5;  // pairs, by depths of 25 and 29
      for (CpuIsa isa : runnable_isas()) {
        const bool any = std::string(dtype) != "f16" || isa != CpuIsa::Generic;
        EXPECT_EQ(packed(g, isa), any && !cut ? 2 : 0) << dtype << " " << loops;
      }
      expect_right_everywhere(g);
    }
  }
  // What is left in the loop is the sum of squares.
  const std::string source = emit_source(parse(gated("f32", 5)), best_isa());
  const size_t kernel = source.find("void k0"), loop = source.find("for (long l0", kernel);
  ASSERT_NE(loop, std::string::npos);
  EXPECT_EQ(source.find("for (long l0", loop + 1), std::string::npos);
  const size_t end = source.find("\n    }\n", loop);
  EXPECT_EQ(source.substr(loop, end - loop).find("mm_f32"), std::string::npos) << source;
  EXPECT_NE(source.find("mm_f32", kernel), std::string::npos) << source;
}

// A left operand too large for a cache is read in pieces.
TEST(CpuPanels, LargeLeftOperandsStayInTheLoop) {
  const Graph g = weighted_products(DType::F32, {{{128, 2048}, {2048, 64}}});
  EXPECT_NE(emit_source(g, best_isa()).find("for (long l0"), std::string::npos);
  const Graph few = weighted_products(DType::F32, {{{16, 2048}, {2048, 64}}});
  EXPECT_EQ(emit_source(few, best_isa()).find("for (long l0"), std::string::npos);
}

// Few rows read a panel at several depths in turn: depths that leave nothing, something and
// everything to the single stream at the end, pairs with and without a last one, columns that
// divide nothing.
TEST(CpuPanels, FewRowsReadSeveralStreams) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    std::vector<std::array<int64_t, 3>> shapes;
    for (int64_t m : {1, 2, 3, 4}) shapes.push_back({m, 777, 83});
    for (int64_t k : {1, 63, 64, 192, 256, 257, 1024, 1471}) shapes.push_back({1, k, 40});
    for (int64_t n : {8, 64, 65, 127}) shapes.push_back({2, 513, n});
    const Graph g = blocks(dtype, shapes);
    for (CpuIsa isa : runnable_isas()) {
      const bool streams =
          stream_tile(isa, dtype == DType::F64 ? dtype : DType::F32, dtype, 1, 64).has_value();
      EXPECT_EQ(streams, dtype != DType::F16 || isa != CpuIsa::Generic);
      for (int rows = 1; rows <= (vector_registers(isa) == 32 ? 4 : 3); ++rows) {
        const std::string kernel =
            "streams_" + std::string(name(dtype)) + "_" + std::to_string(rows) + "x";
        EXPECT_EQ(emit_source(g, isa).find(kernel) != std::string::npos, streams)
            << kernel << " " << to_string(isa);
      }
    }
    expect_right_everywhere(g);
  }
}

// Rows cut into tiles of two and one, added to what is there, and leading axes.
TEST(CpuPanels, StreamsOfTilesAndSums) {
  for (const char* dtype : {"f32", "bf16"}) {
    std::string text = R"(graph g {
  X = input : T[3,700]
  W = input {weight=true} : T[700,192]
  A = input : T[3,192]
  Y = kernel X, W, A grid[x=2, y=2] loops[i=2] {
    X = input : T[3,700]
    W = input : T[700,192]
    A = input : T[3,192]
    x = iter X {imap={y:0}, fmap={i:1}} : T[2,350]
    w = iter W {imap={x:1}, fmap={i:0}} : T[350,96]
    a = iter A {imap={x:1, y:0}} : T[2,96]
    q = sqr x : T[2,350]
    p = matmul x, w : T[2,96]
    r = matmul q, w : T[2,96]
    s = accum p {loops=[0]} : T[2,96]
    t = accum r {loops=[0]} : T[2,96]
    u = add s, t : T[2,96]
    v = add u, a : T[2,96]
    o = save v {omap={x:1, y:0}} : T[3,192]
    return o
  } : T[3,192]
  return Y
}
)";
    for (size_t at = 0; (at = text.find("T[", at)) != std::string::npos; at += 2)
      text.replace(at, 1, dtype);
    const Graph g = parse(text);
    EXPECT_NE(emit_source(g, best_isa()).find("streams_"), std::string::npos);
    expect_right_everywhere(g);
  }
  expect_right_everywhere(weighted_products(
      DType::F32, {{{3, 2, 300}, {3, 300, 70}}, {{2, 1, 2, 300}, {1, 2, 300, 65}}}));
}

// The row that fills up the last pair meets nothing: what follows a row of x may be infinite.
TEST(CpuPanels, LastOddRowsStandAlone) {
  const Graph g = blocks(DType::BF16, {{2, 3, 32}});
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    const auto module = Module::compile(g, test_cache(), options);
    const uint16_t one = float_bits16(DType::BF16, 1);
    std::vector<uint16_t> x(2 * 3, one), w(3 * 32, one), y(2 * 32);
    x[3] = float_bits16(DType::BF16, std::numeric_limits<float>::infinity());
    const std::vector<const void*> in = {x.data(), w.data()};
    const std::vector<void*> out = {y.data()};
    module->run(in, out);
    for (size_t j = 0; j < 32; ++j) EXPECT_EQ(y[j], float_bits16(DType::BF16, 3)) << to_string(isa);
  }
}

// A left operand from a thread graph leaves the loop with its product, where the loop cuts only
// what is contracted; otherwise both stay.
TEST(CpuPanels, ThreadGraphsLeaveTheirLoops) {
  const auto program = [](const std::string& scale) {
    return parse(R"(graph g {
  X = input : f32[2,512]
  G = input : f32[)" +
                 scale + R"(]
  W = input {weight=true} : f32[512,64]
  Y = kernel X, G, W grid[x=1] loops[i=8] {
    X = input : f32[2,512]
    G = input : f32[)" +
                 scale + R"(]
    W = input : f32[512,64]
    x = iter X {fmap={i:1}} : f32[2,64]
    g = iter G {)" +
                 (scale == "512" ? "fmap={i:0}" : "") + R"(} : f32[)" +
                 (scale == "512" ? "64" : scale) + R"(]
    w = iter W {fmap={i:0}} : f32[64,64]
    h = thread x, g {
      x = input : f32[2,64]
      g = input : f32[)" +
                 (scale == "512" ? "64" : scale) + R"(]
      c = const {value=1/4} : f32[]
      a = mul x, g : f32[2,64]
      b = sub a, c : f32[2,64]
      return b
    } : f32[2,64]
    p = matmul h, w : f32[2,64]
    s = accum p {loops=[0]} : f32[2,64]
    o = save s {} : f32[2,64]
    return o
  } : f32[2,64]
  return Y
}
)");
  };
  for (const std::string scale : {"512", "1", "64"}) {
    const Graph g = program(scale);
    // Elements 0 to 63 of G again and again are no element by element function of whole rows.
    EXPECT_EQ(emit_source(g, best_isa()).find("for (long l0") != std::string::npos, scale == "64");
    expect_right_everywhere(g);
  }
}

// Blocks and loops that cut columns between panels, the last tile shorter or empty: tiles have
// panels of their own, except where tiles within tiles begin anywhere.
TEST(CpuPanels, TilesOfColumnsThatFitNoPanel) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (int64_t m : {1, 9}) {
      struct Cut {
        int64_t n, grid, loop, depth;
        bool packs;
      };
      for (const Cut& c : {Cut{1250, 5, 1, 1, true},
                           {1130, 3, 1, 3, true},
                           {1100, 3, 2, 1, false},
                           {1128, 2, 3, 2, true},
                           {130, 60, 1, 1, false}}) {
        const auto up = [](int64_t a, int64_t b) { return std::to_string((a + b - 1) / b); };
        const int64_t part = (c.n + c.grid - 1) / c.grid;
        const std::string tile = up(part, c.loop), all = std::to_string(c.n), k = up(36, c.depth),
                          t = dtype, rows = std::to_string(m);
        const std::string text =
            "graph g {\n  X = input : " + t + "[" + rows +
            ",36]\n  W = input {weight=true} : " + t + "[36," + all +
            "]\n  Y = kernel X, W grid[x=" + std::to_string(c.grid) +
            "] loops[i=" + std::to_string(c.loop) + ", j=" + std::to_string(c.depth) +
            "] {\n    X = input : " + t + "[" + rows + ",36]\n    W = input : " + t + "[36," + all +
            "]\n    x = iter X {fmap={j:1}} : " + t + "[" + rows + "," + k +
            "]\n    w = iter W {imap={x:1}, fmap={i:1, j:0}} : " + t + "[" + k + "," + tile +
            "]\n    p = matmul x, w : " + t + "[" + rows + "," + tile +
            "]\n    s = accum p {loops=[1]} : " + t + "[" + rows + "," + tile +
            "]\n    o = save s {omap={x:1}, fmap={i:1}} : " + t + "[" + rows + "," + all +
            "]\n    return o\n  } : " + t + "[" + rows + "," + all + "]\n  return Y\n}\n";
        const Graph g = parse(text);
        EXPECT_EQ(packed(g, best_isa()), c.packs ? 1 : 0) << text;
        expect_right_everywhere(g);
      }
    }
  }
}

TEST(CpuPanels, ReadAheadInTheOrderOfMemory) {
  const std::string source =
      emit_source(weighted_products(DType::F32, {{{16, 512}, {512, 256}}}), best_isa());
  EXPECT_NE(source.find("(const char*)bk + 16384"), std::string::npos) << source;
  if (!runs(CpuIsa::Amx)) return;
  const std::string tiles =
      emit_source(weighted_products(DType::BF16, {{{16, 512}, {512, 256}}}), CpuIsa::Amx);
  EXPECT_NE(tiles.find(", 16384>("), std::string::npos) << tiles;
}

TEST(CpuPanels, InstructionsThatTheLevelHas) {
  const Graph g = weighted_products(DType::BF16, {{{16, 64}, {64, 64}}});
  EXPECT_NE(emit_source(g, CpuIsa::Amx).find("tdpbf16ps"), std::string::npos);
  for (CpuIsa isa : {CpuIsa::Generic, CpuIsa::Avx2, CpuIsa::Avx512}) {
    const std::string source = emit_source(g, isa);
    EXPECT_EQ(source.find("tdpbf16ps"), std::string::npos) << to_string(isa);
    EXPECT_EQ(source.find("vdpbf16ps") != std::string::npos, has_bf16_dot(isa)) << to_string(isa);
  }
  EXPECT_FALSE(has_bf16_dot(CpuIsa::Amx));
}

// An f32 left operand in a program of bf16 is a sum of two bf16: as exact as f32 for a bf16 result,
// and infinities and NaN stay what they are.
TEST(CpuPanels, ComputedLeftOperandsKeepTheirPrecision) {
  if (!runs(CpuIsa::Amx)) GTEST_SKIP() << "this machine has no AMX tiles of bf16";
  const Graph g = parse(R"(graph g {
  X = input : bf16[17,64]
  W = input {weight=true} : bf16[64,32]
  Y = kernel X, W grid[x=1] {
    X = input : bf16[17,64]
    W = input : bf16[64,32]
    x = iter X {} : bf16[17,64]
    w = iter W {} : bf16[64,32]
    c = const {value=1/3} : bf16[]
    h = mul x, c : bf16[17,64]
    p = matmul h, w : bf16[17,32]
    o = save p {} : bf16[17,32]
    return o
  } : bf16[17,32]
  return Y
}
)");
  ModuleOptions options;
  options.isa = CpuIsa::Amx;
  const auto module = Module::compile(g, test_cache(), options);
  EXPECT_NE(module->source().find("t_low("), std::string::npos) << module->source();
  // Row 0 cancels: 64 terms of size 1/3 leave 2^-10; one bf16 would lose it. Row 1 has an infinity,
  // row 2 a NaN.
  std::vector<uint16_t> x(17 * 64), w(64 * 32, float_bits16(DType::BF16, 1)), y(17 * 32);
  for (size_t k = 0; k < 64; ++k) {
    x[k] = float_bits16(DType::BF16, k % 2 == 0 ? 1.0f : -1.0f);
    x[64 + k] = x[128 + k] = float_bits16(DType::BF16, 1);
  }
  x[0] = float_bits16(DType::BF16, 1 + 0x1p-7f);
  x[64] = float_bits16(DType::BF16, std::numeric_limits<float>::infinity());
  x[128] = float_bits16(DType::BF16, std::numeric_limits<float>::quiet_NaN());
  const std::vector<const void*> in = {x.data(), w.data()};
  const std::vector<void*> out = {y.data()};
  module->run(in, out);
  const auto value = [](uint16_t bits) {
    const uint32_t b = static_cast<uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &b, 4);
    return f;
  };
  for (size_t j = 0; j < 32; ++j) {
    EXPECT_NEAR(value(y[j]), 0x1p-7 / 3, 0x1p-7 / 3 / 128);
    EXPECT_TRUE(std::isinf(value(y[32 + j])));
    EXPECT_TRUE(std::isnan(value(y[64 + j])));
  }
}

}  // namespace
}  // namespace tessera
