// Kernels whose blocks only cut arrays: computed without tiles, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cpu/emit.h"
#include "backend/cpu/emit_kernel.h"
#include "backend/cpu/runtime.h"
#include "backend/cpu/whole.h"
#include "backend/testing.h"
#include "base/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

std::optional<WholeKernel> whole_of(const std::string& text) {
  const Graph graph = parse(text);
  for (const Op& op : graph.ops())
    if (op.kind == OpKind::Kernel) return whole_kernel(kernel_values(graph.body(op)));
  return std::nullopt;
}

// Right on all instruction sets, and in one piece.
void expect_whole(const std::string& text) {
  const Graph graph = parse(text);
  validate(graph);
  EXPECT_TRUE(whole_of(text)) << text;
  EXPECT_EQ(emit_source(graph, best_isa()).find("long block"), std::string::npos) << text;
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

void expect_tiled(const std::string& text) {
  const Graph graph = parse(text);
  validate(graph);
  EXPECT_NE(emit_source(graph, best_isa()).find("long block"), std::string::npos) << text;
  for (CpuIsa isa : runnable_isas()) expect_right(graph, isa);
}

// y = a·x + row, and its square root as a second result, in tiles of ⌈rows/3⌉ by ⌈columns/2⌉.
std::string two_results(int64_t rows, int64_t columns, const std::string& dtype = "f32") {
  const std::string whole = dtype + "[" + num(rows) + "," + num(columns) + "]";
  const std::string tile = dtype + "[" + num((rows + 2) / 3) + "," + num((columns + 1) / 2) + "]";
  const std::string row = dtype + "[" + num((columns + 1) / 2) + "]";
  return "graph g {\n  A = input : " + whole + "\n  X = input : " + whole +
         "\n  R = input : " + dtype + "[" + num(columns) +
         "]\n  Y, Z = kernel A, X, R grid[x=3] loops[i=2] {\n" + "    A = input : " + whole +
         "\n    X = input : " + whole + "\n    R = input : " + dtype + "[" + num(columns) +
         "]\n    a = iter A {imap={x:0}, fmap={i:1}} : " + tile +
         "\n    x = iter X {imap={x:0}, fmap={i:1}} : " + tile +
         "\n    r = iter R {fmap={i:0}} : " + row + "\n    p = mul a, x : " + tile +
         "\n    s = add p, r : " + tile + "\n    q = sqr s : " + tile +
         "\n    t = sqrt q : " + tile + "\n    y = save s {omap={x:0}, fmap={i:1}} : " + whole +
         "\n    z = save t {omap={x:0}, fmap={i:1}} : " + whole +
         "\n    return y, z\n  } : " + whole + ", " + whole + "\n  return Y, Z\n}\n";
}

TEST(CpuWhole, ElementwiseWithTilesThatDoNotDivide) {
  expect_whole(two_results(60, 64));
  expect_whole(two_results(7, 131));
  expect_whole(two_results(2, 5));  // the last tile is empty
  expect_whole(two_results(31, 77, "f64"));
  expect_whole(two_results(9, 40, "bf16"));
}

TEST(CpuWhole, AxesThatLieTogetherAreOne) {
  const std::optional<WholeKernel> two = whole_of(two_results(60, 64));
  ASSERT_TRUE(two);
  EXPECT_EQ(two->kept, (std::vector<int64_t>{60, 64}));  // the row repeats
  const std::optional<WholeKernel> one = whole_of(R"(graph g {
  A = input : f32[60,64]
  B = kernel A grid[x=3] {
    A = input : f32[60,64]
    a = iter A {imap={x:0}} : f32[20,64]
    b = sqr a : f32[20,64]
    c = save b {omap={x:0}} : f32[60,64]
    return c
  } : f32[60,64]
  return B
}
)");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->kept, (std::vector<int64_t>{60 * 64}));
}

// Rows that are cut differently from where they are saved are not the same elements.
TEST(CpuWhole, TilesThatMoveStayTiles) {
  expect_tiled(R"(graph g {
  A = input : f32[8,8]
  B = input : f32[8,8]
  C = kernel A, B grid[x=2] {
    A = input : f32[8,8]
    B = input : f32[8,8]
    a = iter A {imap={x:0}} : f32[4,8]
    b = iter B {imap={x:1}} : f32[8,4]
    t = transpose b {perm=[1,0]} : f32[4,8]
    c = mul a, t : f32[4,8]
    d = save c {omap={x:0}} : f32[8,8]
    return d
  } : f32[8,8]
  return C
}
)");
}

// An exponential of a row would be computed for each of the rows that it meets.
TEST(CpuWhole, CostlyRowsAreComputedOnce) {
  expect_tiled(R"(graph g {
  A = input : f32[40,32]
  R = input : f32[32]
  C = kernel A, R grid[x=2] {
    A = input : f32[40,32]
    R = input : f32[32]
    a = iter A {imap={x:0}} : f32[20,32]
    r = iter R : f32[32]
    e = exp r : f32[32]
    c = mul a, e : f32[20,32]
    d = save c {omap={x:0}} : f32[40,32]
    return d
  } : f32[40,32]
  return C
}
)");
}

// Slices are read where they lie: rows apart, from an offset on, and by steps.
TEST(CpuWhole, OperandsThatAreViews) {
  const auto difference = [](const std::string& first, const std::string& second) {
    return "graph g {\n  A = input : f32[42,70]\n  a = slice A {" + first + "}\n  b = slice A {" +
           second + "}\n  c = div a, b\n  s = sum c {axes=[1]}\n  return c, s\n}\n";
  };
  const std::vector<std::string> texts = {
      difference("starts=[0,2], stops=[42,70], steps=[1,1]",
                 "starts=[0,0], stops=[42,68], steps=[1,1]"),
      difference("starts=[0,0], stops=[42,70], steps=[2,2]",
                 "starts=[1,1], stops=[42,70], steps=[2,2]"),
      difference("starts=[2,1], stops=[42,70], steps=[1,1]",
                 "starts=[0,0], stops=[40,69], steps=[1,1]"),
  };
  for (const std::string& text : texts)
    for (CpuIsa isa : runnable_isas()) expect_right(parse(text), isa);
}

// Σ_j A[i,j]·x[j], halved, in tiles and loops.
std::string row_sums(int64_t rows, int64_t columns, const std::string& dtype = "f32") {
  const int64_t r = (rows + 1) / 2, c = (columns + 2) / 3;
  const auto t = [&](int64_t a, int64_t b) { return dtype + "[" + num(a) + "," + num(b) + "]"; };
  const std::string v = dtype + "[" + num(columns) + "]", out = dtype + "[" + num(rows) + "]";
  return "graph g {\n  A = input : " + t(rows, columns) + "\n  X = input : " + v +
         "\n  Y = kernel A, X grid[x=2] loops[i=3] {\n    A = input : " + t(rows, columns) +
         "\n    X = input : " + v + "\n    a = iter A {imap={x:0}, fmap={i:1}} : " + t(r, c) +
         "\n    x = iter X {fmap={i:0}} : " + dtype + "[" + num(c) +
         "]\n    p = mul a, x : " + t(r, c) +
         "\n    s = sum p {axes=[1], keepdims=true} : " + t(r, 1) +
         "\n    k = accum s {loops=[0]} : " + t(r, 1) +
         "\n    q = squeeze k {axes=[1]} : " + dtype + "[" + num(r) +
         "]\n    h = const {value=1/2} : " + dtype + "[]\n    m = mul q, h : " + dtype + "[" +
         num(r) + "]\n    y = save m {omap={x:0}} : " + out + "\n    return y\n  } : " + out +
         "\n  return Y\n}\n";
}

TEST(CpuWhole, SumsOfRows) {
  expect_whole(row_sums(40, 96));
  expect_whole(row_sums(23, 203));
  expect_whole(row_sums(3, 1000));
  expect_whole(row_sums(13, 77, "f64"));
}

// x·Σ_i A[i,j] with the columns over the grid.
std::string column_sums(int64_t rows, int64_t columns, const std::string& dtype = "f32") {
  const int64_t c = (columns + 1) / 2;
  const std::string whole = dtype + "[" + num(rows) + "," + num(columns) + "]";
  const std::string v = dtype + "[" + num(columns) + "]", part = dtype + "[" + num(c) + "]";
  return "graph g {\n  A = input : " + whole + "\n  X = input : " + v +
         "\n  Y = kernel A, X grid[x=2] {\n    A = input : " + whole + "\n    X = input : " + v +
         "\n    a = iter A {imap={x:1}} : " + dtype + "[" + num(rows) + "," + num(c) +
         "]\n    x = iter X {imap={x:0}} : " + part +
         "\n    s = sum a {axes=[0], keepdims=false} : " + part + "\n    m = mul x, s : " + part +
         "\n    y = save m {omap={x:0}} : " + v + "\n    return y\n  } : " + v +
         "\n  return Y\n}\n";
}

TEST(CpuWhole, SumsOfColumns) {
  for (int64_t columns : {16, 17, 100, 200, 331}) expect_whole(column_sums(29, columns));
  expect_whole(column_sums(5, 37, "f64"));
}

// Σ_ij x[i]·A[i,j]·y[j] as products of matrices in a kernel, and all of it added up.
TEST(CpuWhole, RowByMatrixByColumn) {
  expect_whole(R"(graph g {
  X = input : f32[1,37]
  A = input : f32[37,53]
  Y = input : f32[53,1]
  Z = kernel X, A, Y grid[x=1] loops[i=2] {
    X = input : f32[1,37]
    A = input : f32[37,53]
    Y = input : f32[53,1]
    x = iter X : f32[1,37]
    a = iter A {fmap={i:1}} : f32[37,27]
    y = iter Y {fmap={i:0}} : f32[27,1]
    p = matmul x, a : f32[1,27]
    q = matmul p, y : f32[1,1]
    r = accum q {loops=[0]} : f32[1,1]
    z = save r : f32[1,1]
    return z
  } : f32[1,1]
  return Z
}
)");
}

TEST(CpuWhole, MatrixByColumnAndRowByMatrix) {
  const std::string column = "graph g {\n  A = input : f32[61,90]\n  X = input : f32[90,1]\n"
                             "  Y = matmul A, X\n  return Y\n}\n";
  const std::string row = "graph g {\n  X = input : f32[1,61]\n  A = input : f32[61,90]\n"
                          "  Y = matmul X, A\n  return Y\n}\n";
  for (const std::string& text : {column, row}) {
    EXPECT_EQ(emit_source(parse(text), best_isa()).find("long block"), std::string::npos) << text;
    for (CpuIsa isa : runnable_isas()) expect_right(parse(text), isa);
  }
}

// Threads share out a long sum; what it is does not depend on how many there are.
TEST(CpuWhole, SharedSumsDoNotDependOnThreads) {
  const Graph graph = parse("graph g {\n  A = input : f32[301,200]\n  B = input : f32[200]\n"
                            "  p = mul A, B\n  s = sum p {axes=[0,1]}\n  return s\n}\n");
  const Graph fused = parse(R"(graph g {
  A = input : f32[301,200]
  B = input : f32[200]
  S = kernel A, B grid[x=1] loops[i=7] {
    A = input : f32[301,200]
    B = input : f32[200]
    a = iter A {fmap={i:0}} : f32[43,200]
    b = iter B : f32[200]
    p = mul a, b : f32[43,200]
    s = sum p {axes=[0,1]} : f32[]
    t = accum s {loops=[0]} : f32[]
    r = save t : f32[]
    return r
  } : f32[]
  return S
}
)");
  std::vector<float> a(301 * 200), b(200);
  std::mt19937 random(3);
  for (float& x : a) x = static_cast<float>(random() % 1000) / 997 - 0.5f;
  for (float& x : b) x = static_cast<float>(random() % 1000) / 991;
  for (CpuIsa isa : runnable_isas()) {
    float sums[3] = {};
    for (int threads : {1, 2, 5}) {
      KernelPool pool(threads);
      ModuleOptions options;
      options.isa = isa;
      options.pool = &pool;
      const auto module = Module::compile(fused, test_cache(), options);
      EXPECT_NE(module->source().find("_once"), std::string::npos);
      const void* in[] = {a.data(), b.data()};
      void* out[] = {&sums[threads / 2]};
      for (int again = 0; again < 20; ++again) module->run(in, out);
    }
    EXPECT_EQ(sums[0], sums[1]) << to_string(isa);
    EXPECT_EQ(sums[0], sums[2]) << to_string(isa);
    expect_right(graph, isa);
    expect_right(fused, isa);
  }
}

// Sums of many terms are as exact as their parts.
TEST(CpuWhole, LongSumsAreExact) {
  constexpr int64_t kTerms = 200'003;
  const Graph graph = parse("graph g {\n  A = input : f32[" + num(kTerms) +
                            "]\n  s = sum A {axes=[0]}\n  return s\n}\n");
  EXPECT_EQ(emit_source(graph, best_isa()).find("long block"), std::string::npos);
  const std::vector<float> terms(kTerms, 0.1f);
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    float sum = 0;
    const void* in[] = {terms.data()};
    void* out[] = {&sum};
    Module::compile(graph, test_cache(), options)->run(in, out);
    EXPECT_NEAR(sum / (0.1f * kTerms), 1, 5e-6) << to_string(isa);
  }
}

// Quotients and roots by approximation are within one rounding of the right ones, and the same for
// what is not an ordinary number.
TEST(CpuWhole, QuotientsAndRoots) {
  std::vector<float> x, y;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0f,          -0.0f,  1.0f,   -1.0f,  inf,   -inf,
                                      std::nanf(""), 1e-45f, 1e-38f, 2e-38f, 3e38f, 0x1p126f,
                                      0x1.8p127f,    3.0f,   1e-20f, 1e20f};
  for (float a : special)
    for (float b : special)
      for (int copy = 0; copy < 16; ++copy) {  // with ordinary neighbours and without
        x.push_back(copy < 8 ? a : 2.5f);
        y.push_back(copy < 8 ? b : 7.0f);
      }
  std::mt19937 random(1);
  while (x.size() < 20'000) {
    x.push_back(std::ldexp(static_cast<float>(random() % 100'000) / 7919, int(random() % 40) - 20));
    y.push_back(std::ldexp(static_cast<float>(random() % 100'000) / 6007, int(random() % 40) - 20));
  }
  const std::string type = "f32[" + num(static_cast<int64_t>(x.size())) + "]";
  const Graph graph = parse("graph g {\n  X = input : " + type + "\n  Y = input : " + type +
                            "\n  q = div X, Y\n  r = sqrt X\n  i = pow Y {exponent=-1}\n"
                            "  h = pow Y {exponent=-1/2}\n  return q, r, i, h\n}\n");
  const auto apart = [](float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0L : 1L << 40;
    int32_t i, j;
    std::memcpy(&i, &a, 4);
    std::memcpy(&j, &b, 4);
    return (i < 0) != (j < 0) ? 1L << 40 : std::labs(long{i} - long{j});
  };
  for (CpuIsa isa : runnable_isas()) {
    EXPECT_EQ(emit_source(graph, isa).find("t_divide(") != std::string::npos,
              isa >= CpuIsa::Avx512);
    ModuleOptions options;
    options.isa = isa;
    std::vector<std::vector<float>> results(4, std::vector<float>(x.size()));
    const void* in[] = {x.data(), y.data()};
    void* out[] = {results[0].data(), results[1].data(), results[2].data(), results[3].data()};
    Module::compile(graph, test_cache(), options)->run(in, out);
    long worst[4] = {};
    for (size_t i = 0; i < x.size(); ++i) {
      const float right[] = {x[i] / y[i], std::sqrt(x[i]), 1.0f / y[i], 1.0f / std::sqrt(y[i])};
      for (size_t r = 0; r < 4; ++r) worst[r] = std::max(worst[r], apart(results[r][i], right[r]));
    }
    for (size_t r = 0; r < 4; ++r) EXPECT_LE(worst[r], 1) << to_string(isa) << " result " << r;
  }
}

}  // namespace
}  // namespace tessera
