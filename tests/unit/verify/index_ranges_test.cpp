// Indices that are computed: in which range they lie, and that programs are compared wherever they
// are in range.
#include "verify/index_ranges.h"

#include <gtest/gtest.h>

#include "verify/programs.h"

namespace tessera {
namespace {

const std::string kTwo = "x = input : f32[8,4]; i = input : i64[3]; j = input : i64[3]; ";
const std::string kSum = kTwo + "k = add i, j; y = gather x, k {axis=0}; return y";
// NumPy's indices, which may count from the end, into all of a matrix.
const std::string kWrapped =
    "x = input : f64[5,7]; i = input : i64[2,1]; j = input : i64[2]; "
    "zero = const {value=0} : i64[]; five = const {value=5} : i64[]; "
    "seven = const {value=7} : i64[]; "
    "a = lt i, zero; b = add i, five; c = where a, b, i; d = mul c, seven; "
    "e = lt j, zero; f = add j, seven; g = where e, f, j; h = add d, g; "
    "flat = reshape x {shape=[35]}; y = gather flat, h {axis=0}; return y";

IntRange range(int64_t low, int64_t high) { return {low, high}; }
std::vector<IntRange> widened(const std::string& text, IntRange most) {
  const Graph g = program(text);
  std::vector<IntRange> ranges(g.inputs().size());
  widen_index_ranges(g, ranges, std::vector<IntRange>(ranges.size(), most));
  EXPECT_TRUE(indices_in_range(g, ranges));
  return ranges;
}
bool in_range(const std::string& index, IntRange i) {
  return indices_in_range(program("x = input : f32[8,4]; i = input : i32[3]; "
                                  "p = const {value=3} : i32[]; n = const {value=-1} : i32[]; "
                                  "z = const {value=0} : i32[]; " +
                                  index + "; y = gather x, k {axis=0}; return y"),
                          {range(0, 0), i});
}

TEST(IndexRanges, FollowOperators) {
  EXPECT_TRUE(in_range("k = add i, p", range(-3, 4)));
  EXPECT_FALSE(in_range("k = add i, p", range(-4, 4)));
  EXPECT_FALSE(in_range("k = add i, p", range(-3, 5)));
  EXPECT_TRUE(in_range("k = sub p, i", range(-4, 3)));
  EXPECT_FALSE(in_range("k = sub p, i", range(-4, 4)));
  EXPECT_TRUE(in_range("k = mul i, n", range(-7, 0)));
  EXPECT_FALSE(in_range("k = mul i, n", range(-7, 1)));
  EXPECT_TRUE(in_range("k = abs i", range(-7, 7)));
  EXPECT_FALSE(in_range("k = abs i", range(-8, 7)));
  EXPECT_TRUE(in_range("k = mod i, p", range(INT32_MIN, INT32_MAX)));
  EXPECT_FALSE(in_range("k = mod i, n", range(0, 5))) << "which has the divisor's sign";
  EXPECT_TRUE(in_range("m = max i, z; k = min m, p", range(INT32_MIN, INT32_MAX)));
  EXPECT_FALSE(in_range("k = min i, p", range(-1, 100)));
  EXPECT_FALSE(in_range("m = add i, p; k = max m, z", range(0, INT32_MAX))) << "the sum wraps";
  EXPECT_TRUE(in_range("c = cumsum i {axis=0}; k = reshape c {shape=[3]}", range(0, 2)));
  EXPECT_FALSE(in_range("k = cumsum i {axis=0}", range(0, 3)));
  EXPECT_FALSE(in_range("f = cast i {dtype=f32}; k = cast f {dtype=i32}", range(0, 1)))
      << "nothing is known of floats";
}

TEST(IndexRanges, FollowConditionsElementByElement) {
  EXPECT_TRUE(in_range("c = lt i, z; a = add i, p; k = where c, a, i", range(-3, 7)));
  EXPECT_FALSE(in_range("c = lt i, z; a = add i, p; k = where c, a, i", range(-4, 7)));
  EXPECT_FALSE(in_range("c = le i, n; k = where c, i, i", range(-1, 7)));
  EXPECT_TRUE(in_range("c = eq i, n; k = where c, p, i", range(-1, 7)));
  EXPECT_FALSE(in_range("c = ne i, n; k = where c, p, i", range(-1, 7)));
  // The element that is selected is not the one that the condition is about.
  EXPECT_FALSE(in_range("c = lt i, z; t = slice i {starts=[0], stops=[1]}; a = add t, p; "
                        "m = max i, z; b = broadcast a {shape=[3]}; k = where c, m, b",
                        range(-5, 4)));
}

TEST(IndexRanges, AreWidenedTogether) {
  const auto two = widened(kSum, range(-100, 100));
  EXPECT_EQ(two[1].high + two[2].high, 7);
  EXPECT_EQ(two[1].low + two[2].low, 0);
  EXPECT_GE(std::min(two[1].high, two[2].high), 3) << "each gets its share";
  const auto wrapped = widened(kWrapped, range(-100, 100));
  EXPECT_EQ(wrapped[1], range(-5, 4));
  EXPECT_EQ(wrapped[2], range(-7, 6));
  const auto most = widened(kWrapped, range(-2, 3));
  EXPECT_EQ(most[1], range(-2, 3));
}

// At zeros alone these could not be told apart.
TEST(IndexRanges, ComputedIndicesAreCompared) {
  expect_equal(kSum, kSum);
  expect_equal(kSum, kTwo + "k = add j, i; y = gather x, k {axis=0}; return y");
  for (const char* other :
       {"k = sub i, j", "n = const {value=2} : i64[]; m = mul i, n; k = add m, j",
        "n = const {value=3} : i64[]; m = min i, n; k = add m, j", "k = add i, i"})
    expect_refuted(kSum, kTwo + other + "; y = gather x, k {axis=0}; return y");
  expect_equal(kWrapped, kWrapped);
}

// What the original reads decides where programs are compared, not what a rewrite can read.
TEST(IndexRanges, ARewriteThatReadsLessIsRefuted) {
  expect_refuted(kTwo +
                     "y = gather x, i {axis=0}; z = gather x, j {axis=0}; w = add y, z; return w",
                 kTwo + "s = slice x {starts=[0,0], stops=[4,4]}; y = gather s, i {axis=0}; "
                        "z = gather x, j {axis=0}; w = add y, z; return w");
}

TEST(IndexRanges, NoSeedLeavesTheRange) {
  const Graph a = program(kWrapped);
  const std::string text = kWrapped;
  const size_t at = text.find("h = add d, g");
  const Graph b = program(std::string(text).replace(at, 12, "h = add g, d"));
  for (uint64_t seed = 0; seed < 12; seed++) {
    VerifyOptions options;
    options.seed = seed;
    options.threads = 1;
    EXPECT_TRUE(verify(a, b, options).equal()) << seed;
  }
}

// What elements are picked from may be computed, of whole rows too.
TEST(IndexRanges, PickedBeforeOrAfterwards) {
  const std::string w = kTwo + "w = input : f32[4,6]; ", n = "n = add i, j; ";
  const std::string end = "; return y";
  const std::string product = w + n + "p = matmul x, w; y = gather p, n {axis=0}" + end;
  expect_equal(product, w + n + "g = gather x, n {axis=0}; y = matmul g, w" + end);
  expect_never_equal(product, w + n + "g = gather x, i {axis=0}; y = matmul g, w" + end);
  const std::string columns = w + n + "p = matmul x, w; y = gather p, n {axis=1}" + end;
  expect_equal(columns, w + n + "g = gather w, n {axis=1}; y = matmul x, g" + end);
  const std::string sums = w + n + "s = sum x {axes=[1]}; y = gather s, n {axis=0}" + end;
  expect_equal(sums, w + n + "g = gather x, n {axis=0}; y = sum g {axes=[1]}" + end);
  // One row that may be picked often.
  const std::string one = "x = input : f32[1,4]; i = input : i64[3]; ";
  expect_equal(one + "t = tanh x; y = gather t, i {axis=0}" + end,
               one + "g = gather x, i {axis=0}; y = tanh g" + end);
}

}  // namespace
}  // namespace tessera
