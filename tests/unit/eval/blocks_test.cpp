// Graph-defined operators: tiles that do not divide the shape, loops and their phases,
// accumulators, streaming stores, thread graphs. Each fused program must equal its plain form, in
// f64 and in the field, and every wrong variant must not.
#include "base/error.h"
#include "eval_test_util.h"

namespace tessera {
namespace {

using eval_test::field_equal, eval_test::random_inputs;

void expect_same(const std::string& plain, const std::string& fused, bool same = true) {
  const Graph a = parse(plain), b = parse(fused);
  const auto in = random_inputs(a, 11);
  ThreadPool pool(3);
  EvalOptions options;
  options.pool = &pool;
  const auto x = eval(a, in), y = eval(b, in, options), once = eval(b, in);
  const auto magnitude = eval_with_magnitude(a, in), other = eval_with_magnitude(b, in, options);
  ASSERT_EQ(x.size(), y.size());
  bool close = true;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(x[i].shape, y[i].shape);
    EXPECT_EQ(y[i].reals, once[i].reals);  // the same for any number of threads
    for (size_t j = 0; j < x[i].reals.size(); ++j) {
      const double scale = magnitude[i].magnitude.reals[j];
      close = close && std::abs(x[i].reals[j] - y[i].reals[j]) <= 1e-12 * scale + 1e-300;
      EXPECT_NEAR(other[i].value.reals[j], y[i].reals[j], 1e-12 * scale + 1e-300);
    }
  }
  EXPECT_EQ(close, same) << fused;
  for (FieldSize size : {FieldSize::Bits31, FieldSize::Bits61}) {
    for (uint64_t seed = 1; seed < 4; ++seed)
      EXPECT_EQ(bool(field_equal(a, b, size, seed)), same) << fused;
  }
  // one thread and three give the same field words
  const FieldModel model(FieldSize::Bits61, 4);
  const auto fin = draw_inputs(b, model, needed_components(b));
  FieldOptions parallel;
  parallel.pool = &pool;
  const auto s = eval_field(b, model, fin), t = eval_field(b, model, fin, parallel);
  for (size_t i = 0; i < s.outputs.size(); ++i) {
    for (int64_t j = 0; j < s.outputs[i].size(); ++j) {
      ASSERT_EQ(s.outputs[i].flag(j), t.outputs[i].flag(j));
      if (s.outputs[i].flag(j) != 0) continue;
      ASSERT_EQ(s.outputs[i].word(0, j), t.outputs[i].word(0, j));
    }
  }
}

// X[7,53]·W[53,21] in a grid over columns and a loop over the contraction, nothing divides.
std::string matmul_kernel(int grid, int loops, const std::string& accum = "accum p",
                          const std::string& w = "{imap={x:1}, fmap={i:0}}") {
  return "graph f { X = input : f64[7,53]\n W = input : f64[53,21]\n O = kernel X, W grid[x=" +
         std::to_string(grid) + "] loops[i=" + std::to_string(loops) +
         "] { X = input : f64[7,53]\n W = input : f64[53,21]\n" +
         "x = iter X {fmap={i:1}}\n w = iter W " + w + "\n p = matmul x, w\n a = " + accum +
         "\n o = save a {omap={x:1}} : f64[7,21]\n return o }\n return O }";
}
const char* kMatmul =
    "graph p { X = input : f64[7,53]\n W = input : f64[53,21]\n o = matmul X, W\n return o }";

TEST(Blocks, ClippedTilesEqualTheWhole) {
  for (int grid : {1, 2, 4, 5, 8, 13, 21, 30}) {  // 30: some blocks are empty
    for (int loops : {1, 2, 6, 10, 53, 60}) expect_same(kMatmul, matmul_kernel(grid, loops));
  }
}

TEST(Blocks, WrongAccumulationIsSeen) {
  expect_same(kMatmul, matmul_kernel(4, 6, "accum p {kind=max}"), false);
  // only in one iteration do sum and max agree
  expect_same(kMatmul, matmul_kernel(4, 1, "accum p {kind=max}"));
}

TEST(Blocks, RmsNormLinearWithOddSizes) {
  const std::string plain =
      "graph p { X = input : f64[5,37]\n G = input : f64[37]\n W = input : f64[37,19]\n q = sqr "
      "X\n s = mean q {axes=[1], keepdims=true}\n"
      "r = sqrt s\n d = div X, r\n g = mul d, G\n o = matmul g, W\n return o }";
  auto fused = [](const std::string& count) {
    return "graph f { X = input : f64[5,37]\n G = input : f64[37]\n W = input : f64[37,19]\n O = "
           "kernel X, G, W grid[x=4] loops[i=6] {\n"
           "X = input : f64[5,37]\n G = input : f64[37]\n W = input : f64[37,19]\n x = iter X "
           "{fmap={i:1}}\n g = iter G {fmap={i:0}}\n"
           "w = iter W {imap={x:1}, fmap={i:0}}\n xg = mul x, g\n p = matmul xg, w\n a = accum p\n "
           "q = sqr x\n"
           "s = sum q {axes=[1], keepdims=true}\n b = accum s\n c = const {value=1/" +
           count +
           "} : f64[]\n m = mul b, c\n r = sqrt m\n"
           "d = div a, r\n o = save d {omap={x:1}} : f64[5,19]\n return o }\n return O }";
  };
  expect_same(plain, fused("37"));
  expect_same(plain, fused("42"), false);  // the padded size
}

TEST(Blocks, OnlineSoftmaxByRescaling) {
  const std::string plain =
      "graph p { Q = input : f64[3,4,6]\n K = input : f64[3,6,29]\n V = input : f64[3,29,5]\n s = "
      "matmul Q, K\n e = exp s\n"
      "d = sum e {axes=[2], keepdims=true}\n p = div e, d\n o = matmul p, V\n return o }";
  auto fused = [](int loops, const std::string& scale) {
    return "graph f { Q = input : f64[3,4,6]\n K = input : f64[3,6,29]\n V = input : f64[3,29,5]\n "
           "O = kernel Q, K, V grid[x=3] loops[i=" +
           std::to_string(loops) +
           "] {\n Q = input : f64[3,4,6]\n K = input : f64[3,6,29]\n V = input : f64[3,29,5]\n"
           "q = iter Q {imap={x:0}}\n k = iter K {imap={x:0}, fmap={i:2}}\n v = iter V "
           "{imap={x:0}, fmap={i:1}}\n s = matmul q, k\n"
           "m = reduce_max s {axes=[2], keepdims=true}\n c = sub s, m\n e = exp c\n l = sum e "
           "{axes=[2], keepdims=true}\n t = matmul e, v\n"
           "L = accum_rescale l, m\n T = accum_rescale t, " +
           scale +
           "\n r = div T, L\n o = save r {omap={x:0}} : f64[3,4,5]\n return o }\n return O }";
  };
  for (int loops : {1, 2, 5, 8}) expect_same(plain, fused(loops, "m"));
  // 16 tiles of 2 would leave the last ones empty: a maximum of nothing contributes nothing
  expect_same(plain, fused(16, "m"));
  expect_same(plain, fused(5, "l"), false);
}

// Standardised rows: the mean, then the variance, then their use, each in a loop of its own.
TEST(Blocks, LoopsOneAfterAnother) {
  const std::string plain =
      "graph p { X = input : f64[6,29]\n n = const {value=1/29} : f64[]\n s = sum X {axes=[1], "
      "keepdims=true}\n m = mul s, n\n c = sub X, m\n q = sqr c\n v = sum q {axes=[1], "
      "keepdims=true}\n o = div c, v\n return o }";
  auto fused = [](int a, int b, int c, const std::string& centre = "m") {
    return "graph f { X = input : f64[6,29]\n O = kernel X grid[x=4] loops[i=" + std::to_string(a) +
           ", j=" + std::to_string(b) + ", k=" + std::to_string(c) +
           "] { X = input : f64[6,29]\n n = const {value=1/29} : f64[]\n"
           "x = iter X {imap={x:0}, fmap={i:1}}\n s = sum x {axes=[1], keepdims=true}\n"
           "S = accum s {loops=[0]}\n m = mul S, n\n y = iter X {imap={x:0}, fmap={j:1}}\n"
           "d = sub y, " +
           centre +
           "\n q = sqr d\n t = sum q {axes=[1], keepdims=true}\n T = accum t {loops=[1]}\n"
           "z = iter X {imap={x:0}, fmap={k:1}}\n e = sub z, m\n r = div e, T\n"
           "o = save r {omap={x:0}, fmap={k:1}} : f64[6,29]\n return o }\n return O }";
  };
  expect_same(plain, fused(1, 1, 1));
  expect_same(plain, fused(5, 3, 4));
  expect_same(plain, fused(29, 8, 2));
  expect_same(plain, fused(5, 3, 4, "S"), false);
}

TEST(Blocks, NestedLoopsAndPartialFolds) {
  // rows of blocks over the outer loop, columns over the inner one; the inner sum is squared before
  // the outer fold
  const std::string plain =
      "graph p { X = input : f64[6,8,10]\n s = sum X {axes=[2], keepdims=true}\n q = sqr s\n o = "
      "sum q {axes=[1], keepdims=true}\n return o }";
  auto fused = [](const std::string& inner, int a, int b) {
    return "graph f { X = input : f64[6,8,10]\n O = kernel X grid[x=2] loops[i=" +
           std::to_string(a) + ", j=" + std::to_string(b) +
           "] { X = input : f64[6,8,10]\n x = iter X {imap={x:0}, fmap={i:1, j:2}}\n s = sum x "
           "{axes=[2], keepdims=true}\n"
           "a = accum s {loops=[1]}\n" +
           inner +
           "\n t = sum q {axes=[1], keepdims=true}\n b = accum t {loops=[0]}\n"
           "o = save b {omap={x:0}} : f64[6,1,1]\n return o }\n return O }";
  };
  expect_same(plain, fused("q = sqr a", 4, 3));
  expect_same(plain, fused("q = sqr a", 8, 10));
  expect_same(plain, fused("q = neg a", 4, 3), false);
  // both loops at once
  expect_same(
      "graph p { X = input : f64[6,8,10]\n o = sum X {axes=[1,2], keepdims=true}\n return o }",
      "graph f { X = input : f64[6,8,10]\n O = kernel X grid[x=2] loops[i=4, j=3] { X = input : "
      "f64[6,8,10]\n"
      "x = iter X {imap={x:0}, fmap={i:1, j:2}}\n s = sum x {axes=[1,2], keepdims=true}\n a = "
      "accum s {loops=[0,1]}\n"
      "o = save a {omap={x:0}} : f64[6,1,1]\n return o }\n return O }");
}

TEST(Blocks, ALoopTheValueDoesNotVaryWithIsFoldedOnce) {
  expect_same("graph p { X = input : f64[4,6]\n Y = input : f64[4,6]\n a = sum X {axes=[1], "
              "keepdims=true}\n b = sum Y {axes=[0,1], keepdims=true}\n o = add a, b\n return o }",
              "graph f { X = input : f64[4,6]\n Y = input : f64[4,6]\n O = kernel X, Y grid[x=2] "
              "loops[i=4, j=3] { X = input : f64[4,6]\n Y = input : f64[4,6]\n"
              "x = iter X {imap={x:0}, fmap={j:1}}\n s = sum x {axes=[1], keepdims=true}\n a = "
              "accum s {loops=[1]}\n"
              "y = iter Y {fmap={i:0, j:1}}\n t = sum y {axes=[0,1], keepdims=true}\n b = accum t "
              "{loops=[0,1]}\n c = add a, b\n"
              "o = save c {omap={x:0}} : f64[4,1]\n return o }\n return O }");
}

TEST(Blocks, StreamingStoresConcatAndInvariants) {
  expect_same("graph p { X = input : f64[5,9]\n B = input : f64[5,1]\n e = exp B\n o = mul X, e\n "
              "return o }",
              "graph f { X = input : f64[5,9]\n B = input : f64[5,1]\n O = kernel X, B grid[x=3] "
              "loops[i=4] { X = input : f64[5,9]\n"
              "B = input : f64[5,1]\n b = iter B {imap={x:0}}\n e = exp b\n x = iter X "
              "{imap={x:0}, fmap={i:1}}\n y = mul x, e\n"
              "o = save y {omap={x:0}, fmap={i:1}} : f64[5,9]\n return o }\n return O }");
  expect_same(
      "graph p { X = input : f64[6,8]\n s = sum X {axes=[1], keepdims=true}\n o = div X, s\n "
      "return o }",
      "graph f { X = input : f64[6,8]\n O = kernel X grid[x=3] loops[i=4] { X = input : f64[6,8]\n"
      "x = iter X {imap={x:0}, fmap={i:1}}\n c = accum x {kind=concat, axis=1}\n s = sum x "
      "{axes=[1], keepdims=true}\n a = accum s\n"
      "d = div c, a\n o = save d {omap={x:0}} : f64[6,8]\n return o }\n return O }");
}

TEST(Blocks, SeveralResultsAndGridDimensions) {
  expect_same("graph p { X = input : f64[7,11]\n a = neg X\n m = reduce_max X {axes=[1], "
              "keepdims=true}\n return a, m }",
              "graph f { X = input : f64[7,11]\n A, M = kernel X grid[x=3] loops[i=4] { X = input "
              ": f64[7,11]\n"
              "x = iter X {imap={x:0}, fmap={i:1}}\n n = neg x\n s = reduce_max x {axes=[1], "
              "keepdims=true}\n a = accum s {kind=max}\n"
              "o = save n {omap={x:0}, fmap={i:1}} : f64[7,11]\n q = save a {omap={x:0}} : "
              "f64[7,1]\n return o, q }\n return A, M }");
  expect_same(
      "graph p { X = input : f64[4,7,11]\n t = transpose X {perm=[0,2,1]}\n o = exp t\n return o }",
      "graph f { X = input : f64[4,7,11]\n O = kernel X grid[x=2, y=3, z=5] { X = input : "
      "f64[4,7,11]\n"
      "x = iter X {imap={x:0, y:1, z:2}}\n t = transpose x {perm=[0,2,1]}\n e = exp t\n"
      "o = save e {omap={x:0, y:2, z:1}} : f64[4,11,7]\n return o }\n return O }");
}

TEST(Blocks, ThreadGraphsAreChains) {
  expect_same("graph p { X = input : f64[5,9]\n B = input : f64[9]\n a = add X, B\n b = silu a\n o "
              "= sqr b\n return o, a }",
              "graph f { X = input : f64[5,9]\n B = input : f64[9]\n O, A = kernel X, B grid[x=2] "
              "loops[i=2] { X = input : f64[5,9]\n B = input : f64[9]\n"
              "x = iter X {imap={x:0}, fmap={i:1}}\n b = iter B {fmap={i:0}}\n o, a = thread x, b "
              "{ u = input : f64[3,5]\n v = input : f64[5]\n"
              "a = add u, v\n s = silu a\n q = sqr s\n return q, a }\n"
              "y = save o {omap={x:0}, fmap={i:1}} : f64[5,9]\n z = save a {omap={x:0}, "
              "fmap={i:1}} : f64[5,9]\n return y, z }\n return O, A }");
}

TEST(Blocks, RedrawReachesThroughKernels) {
  // 24 row norms computed inside a kernel, in loops, accumulators and a thread graph
  const Graph g =
      parse("graph f { X = input : f64[24,10]\n W = input : f64[10,8]\n Y = matmul X, W\n O = "
            "kernel Y, X grid[x=5] loops[i=4] { Y = input : f64[24,8]\n X = input : f64[24,10]\n"
            "y = iter Y {imap={x:0}, fmap={i:1}}\n q = sqr y\n s = sum q {axes=[1], "
            "keepdims=true}\n a = accum s\n c = accum y {kind=concat, axis=1}\n"
            "x = iter X {imap={x:0}}\n t = sum x {axes=[1], keepdims=true}\n b = add a, t\n"
            "r = thread b { u = input : f64[5,1]\n v = sqrt u\n return v }\n d = div c, r\n o = "
            "save d {omap={x:0}} : f64[24,8]\n return o }\n return O }");
  for (FieldSize size : {FieldSize::Bits31, FieldSize::Bits61}) {
    const FieldModel model(size, 3);
    std::vector<FieldArray> in = draw_inputs(g, model, needed_components(g));
    const std::vector<FieldArray> before = in;
    const FieldResult first = eval_field(g, model, in);
    int64_t bad = 0;
    for (int64_t i = 0; i < 24; ++i) bad += first.outputs[0].flag(i * 8) != 0;
    ASSERT_GT(bad, 3);
    const RedrawReport report = redraw_inputs(g, model, in);
    EXPECT_TRUE(report.ok());
    EXPECT_LE(report.rounds, 20);
    EXPECT_TRUE(eval_field(g, model, in).outputs[0].flags.empty());
    for (int64_t i = 0; i < 240; ++i) {
      if (first.outputs[0].flag(i / 10 * 8) != 0) continue;
      EXPECT_EQ(in[0].word(0, i), before[0].word(0, i));
    }
    for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(in[1].word(0, i), before[1].word(0, i));
  }
}

TEST(Blocks, AMaximumInsideAnExponent) {
  // the accumulated maximum is needed in component q only, and compared by p
  expect_same("graph p { X = input : f64[6,14]\n m = reduce_max X {axes=[1], keepdims=true}\n c = "
              "sub X, m\n o = exp c\n return o }",
              "graph f { X = input : f64[6,14]\n O = kernel X grid[x=2] loops[i=4] { X = input : "
              "f64[6,14]\n x = iter X {imap={x:0}, fmap={i:1}}\n"
              "m = reduce_max x {axes=[1], keepdims=true}\n M = accum m {kind=max}\n y = iter X "
              "{imap={x:0}}\n c = sub y, M\n e = exp c\n"
              "o = save e {omap={x:0}} : f64[6,14]\n return o }\n return O }");
}

TEST(Blocks, UndefinedElementsStayWhereTheyAre) {
  const Graph g =
      parse("graph f { X = input : f64[6]\n O = kernel X grid[x=4] { X = input : f64[6]\n x = iter "
            "X {imap={x:0}}\n one = const {value=1} : f64[]\n"
            "y = div one, x\n o = save y {omap={x:0}} : f64[6]\n return o }\n return O }");
  const FieldModel model(FieldSize::Bits31, 1);
  const FieldResult r =
      eval_field(g, model, {FieldArray::of_integers(model, DType::F64, {6}, {1, 0, 2, 3, 0, 5})});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(r.outputs[0].flag(i), i == 1 || i == 4) << i;
}

}  // namespace
}  // namespace tessera
