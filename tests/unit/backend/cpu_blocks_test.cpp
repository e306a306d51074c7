// Block graphs compiled for every instruction set, against the interpreter: loops, phases,
// accumulators, thread graphs, and tiles that do not divide the tensors.
#include <gtest/gtest.h>

#include <thread>

#include "backend/block_programs.h"
#include "backend/cpu/emit.h"
#include "backend/testing.h"
#include "ir/validate.h"

namespace tessera {
namespace {

void expect_right_blocks(const std::string& text) { expect_right_everywhere(parse(text)); }

TEST(CpuBlocks, RmsNormLinear) { expect_right_blocks(rms_norm_linear(16, 256, 512, 16, 4)); }

TEST(CpuBlocks, RmsNormLinearWithTilesThatDoNotDivide) {
  expect_right_blocks(rms_norm_linear(5, 100, 77, 3, 7));
  expect_right_blocks(rms_norm_linear(1, 31, 1000, 7, 5));
  expect_right_blocks(rms_norm_linear(9, 5, 10, 4, 4));  // the last tiles are empty
}

TEST(CpuBlocks, RmsNormLinearInOtherDtypes) {
  for (const char* dtype : {"f64", "f16", "bf16"})
    expect_right_blocks(rms_norm_linear(7, 96, 130, 4, 3, dtype));
}

TEST(CpuBlocks, SharedValuesAreComputedOnce) {
  const std::string source = emit_source(parse(rms_norm_linear(16, 256, 512, 16, 4)), best_isa());
  EXPECT_NE(source.find("k0_once"), std::string::npos);
  EXPECT_EQ(emit_source(parse(rms_norm_linear(16, 256, 512, 1, 4)), best_isa()).find("_once"),
            std::string::npos);
}

// Equal operators at equal types have one function; another shape has its own.
TEST(CpuBlocks, LayersShareTheirCode) {
  const std::string layers = R"(graph layers {
  X = input : f32[5,24]
  A = input : f32[24,24]
  B = input : f32[24,24]
  C = input : f32[24,16]
  a = matmul X, A
  b = exp a
  c = matmul b, B
  d = exp c
  e = matmul d, C
  return e
})";
  const std::string source = emit_source(parse(layers), best_isa());
  int functions = 0;
  for (size_t at = 0; (at = source.find("visibility(\"default\")", at)) != std::string::npos; ++at)
    ++functions;
  EXPECT_EQ(functions, 2) << source;  // a product with its exponential, and one without
  expect_right_blocks(layers);
}

// Attention for one head with an online softmax; rows split over the grid, keys over the loop.
const char* const kAttention = R"(graph attention {
  Q = input : f32[20,24]
  K = input : f32[50,24]
  V = input : f32[50,40]
  O = kernel Q, K, V grid[x=3] loops[i=4] {
    Q = input : f32[20,24]
    K = input : f32[50,24]
    V = input : f32[50,40]
    q = iter Q {imap={x:0}} : f32[7,24]
    k = iter K {fmap={i:0}} : f32[13,24]
    v = iter V {fmap={i:0}} : f32[13,40]
    kt = transpose k {perm=[1,0]} : f32[24,13]
    s = matmul q, kt : f32[7,13]
    m = reduce_max s {axes=[1], keepdims=true} : f32[7,1]
    d = sub s, m : f32[7,13]
    e = exp d : f32[7,13]
    l = sum e {axes=[1], keepdims=true} : f32[7,1]
    pv = matmul e, v : f32[7,40]
    la = accum_rescale l, m {loops=[0]} : f32[7,1]
    oa = accum_rescale pv, m {loops=[0]} : f32[7,40]
    o = div oa, la : f32[7,40]
    r = save o {omap={x:0}} : f32[20,40]
    return r
  } : f32[20,40]
  return O
}
)";

TEST(CpuBlocks, OnlineSoftmaxAttention) { expect_right_blocks(kAttention); }

// The transposed copy of keys in tiles, with heads as a leading axis.
TEST(CpuBlocks, ProductsWithTransposedTiles) {
  expect_right_blocks(R"(graph g {
  Q = input : f32[3,9,40]
  K = input : f32[3,70,40]
  S = kernel Q, K grid[x=3, y=4] {
    Q = input : f32[3,9,40]
    K = input : f32[3,70,40]
    q = iter Q {imap={x:0}} : f32[1,9,40]
    k = iter K {imap={x:0, y:1}} : f32[1,18,40]
    kt = transpose k {perm=[0,2,1]} : f32[1,40,18]
    s = matmul q, kt : f32[1,9,18]
    o = save s {omap={x:0, y:2}} : f32[3,9,70]
    return o
  } : f32[3,9,70]
  return S
}
)");
}

// Beside rows of another operand a transposed tile is put down first; alone it is read as it lies.
TEST(CpuBlocks, TransposedTilesMeetRows) {
  const std::string rows = R"(graph rows_by_columns {
  A = input : f32[37,45]
  B = input : f32[45,37]
  o = kernel A, B grid[x=2] {
    A = input : f32[37,45]
    B = input : f32[45,37]
    a = iter A {imap={x:0}} : f32[19,45]
    b = iter B {imap={x:1}} : f32[45,19]
    t = transpose b {perm=[1,0]} : f32[19,45]
    p = mul a, t : f32[19,45]
    s = sum p {axes=[1]} : f32[19]
    o = save s {omap={x:0}} : f32[37]
    return o
  } : f32[37]
  return o
}
)";
  const auto source = [](const std::string& text) {
    return emit_program(parse(text), CpuIsa::Avx2).source;
  };
  EXPECT_NE(source(rows).find("t_transpose<float>(v"), std::string::npos);
  const std::string alone = replaced(rows, {{"mul a, t", "sqr t"}});
  EXPECT_EQ(source(alone).find("t_transpose<float>(v"), std::string::npos);
  expect_right_blocks(rows);
  expect_right_blocks(alone);
}

TEST(CpuBlocks, NestedLoopsStreamingSavesAndOtherAccumulators) {
  expect_right_blocks(R"(graph g {
  X = input : f32[30,44]
  R, S, T = kernel X grid[x=2] loops[i=3, j=4] {
    X = input : f32[30,44]
    x = iter X {imap={x:0}, fmap={i:0, j:1}} : f32[5,11]
    y = exp x : f32[5,11]
    m = accum y {kind=max, loops=[1]} : f32[5,11]
    a = accum y {loops=[0,1]} : f32[5,11]
    c = accum y {kind=concat, loops=[1], axis=1} : f32[5,44]
    w = sum m {axes=[1], keepdims=true} : f32[5,1]
    r = save w {omap={x:0}, fmap={i:0}} : f32[30,1]
    s = save a {omap={x:0}} : f32[10,11]
    t = save c {omap={x:0}, fmap={i:0}} : f32[30,44]
    return r, s, t
  } : f32[30,1], f32[10,11], f32[30,44]
  return R, S, T
}
)");
}

// Statistics in the first loops, their use in the last: rows and columns, tiles that do not divide,
// and a product that reads what the last loop makes.
TEST(CpuBlocks, LoopsOneAfterAnother) {
  const std::string text = R"(graph standardise {
  X = input : f32[37,100]
  W = input : f32[100,24]
  O, P = kernel X, W grid[x=4] loops[i=3, j=5, k=4] {
    X = input : f32[37,100]
    W = input : f32[100,24]
    n = const {value=1/100} : f32[]
    a = iter X {imap={x:0}, fmap={i:1}}
    s = sum a {axes=[1], keepdims=true}
    S = accum s {loops=[0]}
    m = mul S, n
    b = iter X {imap={x:0}, fmap={j:1}}
    c = sub b, m
    q = sqr c
    t = sum q {axes=[1], keepdims=true}
    T = accum t {loops=[1]}
    r = rsqrt T
    z = iter X {imap={x:0}, fmap={k:1}}
    d = sub z, m
    y = mul d, r
    O = save y {omap={x:0}, fmap={k:1}} : f32[37,100]
    w = iter W {fmap={k:0}}
    p = matmul y, w
    A = accum p {loops=[2]}
    P = save A {omap={x:0}} : f32[37,24]
    return O, P
  } : f32[37,100], f32[37,24]
  return O, P
})";
  expect_right_blocks(text);
  // Sums of thousands of rows, added tile by tile.
  expect_right_blocks(R"(graph columns {
  X = input : f32[4096,70]
  O = kernel X grid[x=2] loops[i=16, j=30, k=7] {
    X = input : f32[4096,70]
    n = const {value=1/4096} : f32[]
    a = iter X {imap={x:1}, fmap={i:0}}
    s = sum a {axes=[0], keepdims=true}
    S = accum s {loops=[0]}
    m = mul S, n
    b = iter X {imap={x:1}, fmap={j:0}}
    c = sub b, m
    q = sqr c
    t = sum q {axes=[0], keepdims=true}
    T = accum t {loops=[1]}
    v = mul T, n
    r = rsqrt v
    z = iter X {imap={x:1}, fmap={k:0}}
    d = sub z, m
    y = mul d, r
    o = save y {omap={x:1}, fmap={k:0}} : f32[4096,70]
    return o
  } : f32[4096,70]
  return O
})");
}

TEST(CpuBlocks, MinimumAccumulatorOfIntegers) {
  expect_right_blocks(R"(graph g {
  X = input : i32[6,40]
  R = kernel X grid[x=2] loops[i=3] {
    X = input : i32[6,40]
    x = iter X {imap={x:0}, fmap={i:1}} : i32[3,14]
    m = reduce_min x {axes=[1]} : i32[3]
    a = accum m {kind=min, loops=[0]} : i32[3]
    r = save a {omap={x:0}} : i32[6]
    return r
  } : i32[6]
  return R
}
)");
}

TEST(CpuBlocks, ThreadGraphsAreFusedChains) {
  expect_right_blocks(R"(graph g {
  X = input : f32[64,100]
  B = input : f32[100]
  Y = kernel X, B grid[x=4] {
    X = input : f32[64,100]
    B = input : f32[100]
    x = iter X {imap={x:0}} : f32[16,100]
    b = iter B : f32[100]
    y, z = thread x, b {
      x = input : f32[16,100]
      b = input : f32[100]
      s = add x, b : f32[16,100]
      g = gelu s : f32[16,100]
      n = neg g : f32[16,100]
      return g, n
    } : f32[16,100], f32[16,100]
    t = sum z {axes=[1], keepdims=true} : f32[16,1]
    u = mul y, t : f32[16,100]
    r = save u {omap={x:0}} : f32[64,100]
    return r
  } : f32[64,100]
  return Y
}
)");
}

TEST(CpuBlocks, InvariantsAreComputedOutsideTheLoop) {
  const char* const text = R"(graph g {
  X = input : f32[8,64]
  Y = input : f32[8,64]
  Z = kernel X, Y grid[x=1] loops[i=4] {
    X = input : f32[8,64]
    Y = input : f32[8,64]
    x = iter X {fmap={i:1}} : f32[8,16]
    y = iter Y : f32[8,64]
    e = exp y : f32[8,64]
    s = sum e {axes=[1], keepdims=true} : f32[8,1]
    q = div x, s : f32[8,16]
    z = save q {fmap={i:1}} : f32[8,64]
    return z
  } : f32[8,64]
  return Z
}
)";
  expect_right_blocks(text);
  const std::string source = emit_source(parse(text), CpuIsa::Generic);
  EXPECT_LT(source.find("t_exp(", source.find("void k0")), source.find("l0 < 4"));
}

TEST(CpuBlocks, BatchedProductsAndDataMovement) {
  expect_right_blocks(R"(graph g {
  A = input : f32[6,10,12]
  B = input : f32[6,12,36]
  C = kernel A, B grid[x=3, y=2] loops[i=2] {
    A = input : f32[6,10,12]
    B = input : f32[6,12,36]
    a = iter A {imap={x:0, y:1}, fmap={i:2}} : f32[2,5,6]
    b = iter B {imap={x:0}, fmap={i:1}} : f32[2,6,36]
    p = matmul a, b : f32[2,5,36]
    s = accum p {loops=[0]} : f32[2,5,36]
    t = transpose s {perm=[0,2,1]} : f32[2,36,5]
    u = slice t {starts=[0,4,0], stops=[2,36,5], steps=[1,2,1]} : f32[2,16,5]
    v = reshape u {shape=[2,4,20]} : f32[2,4,20]
    w = repeat v {repeats=[1,2,1]} : f32[2,8,20]
    z = save w {omap={x:0, y:2}} : f32[6,8,40]
    return z
  } : f32[6,8,40]
  return C
}
)");
}

// Same results, bit for bit, for any number of threads and from several threads at once.
TEST(CpuBlocks, ResultsDoNotDependOnThreads) {
  const Graph g = parse(rms_norm_linear(16, 256, 515, 16, 4));
  std::vector<float> x(16 * 256), gain(256), w(256 * 515);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) - 18;
  for (size_t i = 0; i < gain.size(); ++i) gain[i] = static_cast<float>(i % 5);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 101) / 7;
  const void* in[] = {x.data(), gain.data(), w.data()};
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 5}) {
    KernelPool pool(threads);
    ModuleOptions options;
    options.pool = &pool;
    const auto module = Module::compile(g, test_cache(), options);
    std::vector<std::vector<float>> outs(3, std::vector<float>(16 * 515));
    std::vector<std::thread> callers;
    for (auto& out : outs) {
      callers.emplace_back([&] {
        for (int i = 0; i < 20; ++i) {
          void* o[] = {out.data()};
          module->run(in, o);
        }
      });
    }
    for (std::thread& t : callers) t.join();
    for (auto& out : outs) results.push_back(std::move(out));
  }
  for (const auto& r : results) EXPECT_EQ(r, results[0]);
}

}  // namespace
}  // namespace tessera
