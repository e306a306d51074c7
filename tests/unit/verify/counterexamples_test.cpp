// The pairs on which published tensor verifiers are known to err, each with the verdict it
// deserves.
#include <cstdio>

#include "verify/programs.h"

namespace tessera {
namespace {

// --- inputs that are not random, tiny primes, exponents of exponents set to zero

TEST(PublishedCounterexamples, SameShapedInputsAreTold) {
  // With inputs 0,1,2,… for every tensor, x0 + x2 "equals" x1 + x1.
  expect_refuted("a = input : f32[8,8]; b = input : f32[8,8]; c = input : f32[8,8];"
                 "y = add a, c : f32[8,8]; return y",
                 "a = input : f32[8,8]; b = input : f32[8,8]; c = input : f32[8,8];"
                 "y = add b, b : f32[8,8]; return y");
}

TEST(PublishedCounterexamples, ExpOfExpIsNoConstant) {
  expect_refuted("x = input : f32[8]; e = exp x : f32[8]; y = exp e : f32[8]; return y",
                 "x = input : f32[8]; c = const {value=1} : f32[]; z = sub x, x : f32[8];"
                 "y = add z, c : f32[8]; return y");
  expect_refuted("x = input : f32[8]; e = exp x : f32[8]; y = exp e : f32[8]; return y",
                 "x = input : f32[8]; s = sqr x : f32[8]; e = exp s : f32[8]; y = exp e : f32[8];"
                 "return y");
}

TEST(PublishedCounterexamples, GeluIsNotSiluTimesExp) {
  expect_refuted("x = input : f32[8]; y = gelu x : f32[8]; return y",
                 "x = input : f32[8]; s = silu x : f32[8]; e = exp x : f32[8];"
                 "y = mul s, e : f32[8]; return y");
}

TEST(PublishedCounterexamples, QuotientOfEqualsIsOne) {
  const char* quotient = "x = input : f32[8]; y = div x, x : f32[8]; return y";
  const char* one = "x = input : f32[8]; y = const {value=1} : f32[8]; return y";
  const Verdict v = compare_programs(quotient, one);
  ASSERT_TRUE(v.equal()) << v.str();
  ASSERT_EQ(v.certificate().assumptions.size(), 1u);
  EXPECT_NE(v.certificate().assumptions[0].find("div x, x"), std::string::npos);
  // Bits differ where the domain is larger; and the reverse is never allowed.
  EXPECT_FALSE(compare_programs(quotient, one, Accuracy::Bitwise).equal());
  const Verdict reverse = compare_programs(one, quotient);
  ASSERT_TRUE(reverse.refuted()) << reverse.str();
  EXPECT_EQ(reverse.counterexample().kind, Difference::Definedness);
}

// --- the range of numbers: underflow is an error of the original, overflow one of the rewrite

void expect_only_forwards(const std::string& in, const std::string& narrow,
                          const std::string& wide) {
  SCOPED_TRACE(narrow);
  const Verdict v = compare_programs(in + narrow, in + wide);
  EXPECT_TRUE(v.equal()) << v.str();
  EXPECT_TRUE(compare_programs(in + wide, in + narrow).refuted());
}

TEST(Range, ExponentialsAreJoinedAndNotTornApart) {
  for (const std::string type : {"f64", "f32"}) {
    const std::string in = "x = input : " + type + "[30,20]; y = input : " + type + "[30,20]; ";
    const std::string apart = "a = exp x; b = exp y; ";
    expect_only_forwards(in, apart + "z = mul a, b; return z", "s = add x, y; z = exp s; return z");
    expect_only_forwards(in, apart + "z = div a, b; return z", "s = sub x, y; z = exp s; return z");
    // No sum of many is finite where its terms' factors are not, unless they are opposed.
    const std::string total = "t = sum z {axes=[0,1]}; return t";
    expect_only_forwards(in, apart + "z = mul a, b; " + total, "s = add x, y; z = exp s; " + total);
  }
}

TEST(Range, UnderflowExcusesNoOtherNumber) {
  const std::string in = "x = input : f64[30,20]; y = input : f64[30,20]; ";
  const std::string original = "a = exp x; b = exp y; z = mul a, b; return z";
  EXPECT_TRUE(compare_programs(in + original, in +
                                                  "c = const {value=0.001} : f64[];"
                                                  "s = add x, y; t = add s, c; z = exp t; return z")
                  .refuted());
  // e^(x + y), but 0 below e^-100, where both factors are still known to all digits.
  EXPECT_TRUE(compare_programs(in + original,
                               in + "c = const {value=-100} : f64[]; n = const {value=0} : f64[];"
                                    "s = add x, y; e = exp s; l = lt s, c; z = where l, n, e;"
                                    "return z")
                  .refuted());
}

TEST(Definedness, AnInfinityIsNotNan) {
  const std::string in = "x = input : f64[40]; one = const {value=1} : f64[]; ";
  const Verdict v = compare_programs(in + "s = sqrt x; y = div one, s; return y",
                                     in + "s = sqrt x; y = div s, x; return y");
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Definedness);
  // The reverse says more than the original.
  EXPECT_TRUE(compare_programs(in + "s = sqrt x; y = div s, x; return y",
                               in + "s = sqrt x; y = div one, s; return y")
                  .equal());
}

TEST(PublishedCounterexamples, RootsOfSquares) {
  expect_equal("x = input : f32[8]; s = sqr x : f32[8]; y = sqrt s : f32[8]; return y",
               "x = input : f32[8]; y = abs x : f32[8]; return y");
  expect_refuted("x = input : f32[8]; s = sqr x : f32[8]; y = sqrt s : f32[8]; return y",
                 "x = input : f32[8]; y = relu x : f32[8]; return y");
}

TEST(PublishedCounterexamples, BoundsOfAClampMatter) {
  const char* clamp =
      "x = input : f32[8]; a = const {value=-1} : f32[]; b = const {value=%d} : f32[];"
      "m = max x, a : f32[8]; y = min m, b : f32[8]; return y";
  auto with = [&](int bound) {
    char text[256];
    std::snprintf(text, sizeof text, clamp, bound);
    return std::string(text);
  };
  expect_equal(with(2), with(2));
  expect_refuted(with(2), with(3));
}

// --- reduced shapes taken as proof

TEST(PublishedCounterexamples, TransposeIsNotReshape) {
  expect_refuted("x = input : f32[3,4]; y = transpose x {perm=[1,0]} : f32[4,3]; return y",
                 "x = input : f32[3,4]; y = reshape x {shape=[4,3]} : f32[4,3]; return y");
  expect_equal("x = input : f32[1,4]; y = transpose x {perm=[1,0]} : f32[4,1]; return y",
               "x = input : f32[1,4]; y = reshape x {shape=[4,1]} : f32[4,1]; return y");
}

TEST(PublishedCounterexamples, MatrixProductsDoNotCommute) {
  expect_refuted(
      "x = input : f32[3,3]; y = input : f32[3,3]; z = matmul x, y : f32[3,3]; return z",
      "x = input : f32[3,3]; y = input : f32[3,3]; z = matmul y, x : f32[3,3]; return z");
}

TEST(PublishedCounterexamples, SumsOverDifferentAxes) {
  expect_refuted("x = input : f32[5,5]; y = sum x {axes=[0]} : f32[5]; return y",
                 "x = input : f32[5,5]; y = sum x {axes=[1]} : f32[5]; return y");
}

TEST(PublishedCounterexamples, BakedMean) {
  expect_refuted(
      "x = input : f32[6,8]; y = mean x {axes=[1]} : f32[6]; return y",
      "x = input : f32[6,8]; s = sum x {axes=[1]} : f32[6]; c = const {value=0.25} : f32[];"
      "y = mul s, c : f32[6]; return y");
  expect_equal(
      "x = input : f32[6,4]; y = mean x {axes=[1]} : f32[6]; return y",
      "x = input : f32[6,4]; s = sum x {axes=[1]} : f32[6]; c = const {value=0.25} : f32[];"
      "y = mul s, c : f32[6]; return y");
}

TEST(PublishedCounterexamples, BakedMeanOfASymbolicShape) {
  expect_refuted(
      "x = input : f32[6,N]; y = mean x {axes=[1]} : f32[6]; return y",
      "x = input : f32[6,N]; s = sum x {axes=[1]} : f32[6]; c = const {value=0.25} : f32[];"
      "y = mul s, c : f32[6]; return y");
}

TEST(PublishedCounterexamples, DroppedTail) {
  // Two tiles of 4 cover 8 columns; of 9 columns the last would be lost.
  auto sum_of_tiles = [](int n) {
    const std::string s = std::to_string(n);
    return "x = input : f32[3," + s +
           "]; l = slice x {starts=[0,0], stops=[3,4], steps=[1,1]} : f32[3,4];"
           "r = slice x {starts=[0,4], stops=[3,8], steps=[1,1]} : f32[3,4];"
           "a = sum l {axes=[1]} : f32[3]; b = sum r {axes=[1]} : f32[3]; y = add a, b : f32[3]; "
           "return y";
  };
  expect_equal("x = input : f32[3,8]; y = sum x {axes=[1]} : f32[3]; return y", sum_of_tiles(8));
  expect_refuted("x = input : f32[3,9]; y = sum x {axes=[1]} : f32[3]; return y", sum_of_tiles(9));
}

TEST(PublishedCounterexamples, TruncatedTaps) {
  // A 3-tap filter with the last tap cut: the same only where there is one output or less.
  expect_refuted(
      "x = input : f32[8]; a = slice x {starts=[0], stops=[6], steps=[1]} : f32[6];"
      "b = slice x {starts=[1], stops=[7], steps=[1]} : f32[6]; c = slice x {starts=[2], "
      "stops=[8], steps=[1]} : f32[6];"
      "s = add a, b : f32[6]; y = add s, c : f32[6]; return y",
      "x = input : f32[8]; a = slice x {starts=[0], stops=[6], steps=[1]} : f32[6];"
      "b = slice x {starts=[1], stops=[7], steps=[1]} : f32[6]; y = add a, b : f32[6]; return y");
}

TEST(PublishedCounterexamples, RowsPlusColumnsMinusTotal) {
  // n·m·X = n·rowsum + m·colsum − total holds for additive tables only (and for n = m = 1).
  expect_refuted(
      "x = input : f32[3,5]; c = const {value=15} : f32[]; y = mul x, c : f32[3,5]; return y",
      "x = input : f32[3,5]; r = sum x {axes=[1], keepdims=true} : f32[3,1];"
      "k = sum x {axes=[0], keepdims=true} : f32[1,5]; t = sum x {axes=[0,1], keepdims=true} : "
      "f32[1,1];"
      "n = const {value=3} : f32[]; m = const {value=5} : f32[]; a = mul r, n : f32[3,1];"
      "b = mul k, m : f32[1,5]; s = add a, b : f32[3,5]; y = sub s, t : f32[3,5]; return y");
}

// --- points of one affine form taken as proof for sums of several

TEST(PublishedCounterexamples, SumsOfTwoAffineAccesses) {
  // A[i,j] + A[j,i] against A[i+j,0] + A[0,i+j]: agree at (0,0), (1,0), (0,1), differ at (1,1).
  expect_refuted(
      "a = input : f32[3,3]; b = slice a {starts=[0,0], stops=[2,2], steps=[1,1]} : f32[2,2];"
      "t = transpose b {perm=[1,0]} : f32[2,2]; y = add b, t : f32[2,2]; return y",
      "a = input : f32[3,3]; c = slice a {starts=[0,0], stops=[3,1], steps=[1,1]} : f32[3,1];"
      "c1 = reshape c {shape=[3]} : f32[3]; r = slice a {starts=[0,0], stops=[1,3], steps=[1,1]} : "
      "f32[1,3];"
      "r1 = reshape r {shape=[3]} : f32[3]; s = add c1, r1 : f32[3];"
      "h = slice s {starts=[0], stops=[2], steps=[1]} : f32[2]; k = slice s {starts=[1], "
      "stops=[3], steps=[1]} : f32[2];"
      "y = stack h, k {axis=0} : f32[2,2]; return y");
}

TEST(PublishedCounterexamples, SlopesThreeAndOneAgainstTwoAndTwo) {
  // x[3v] + x[v+1] against x[2v] + x[2v+1]: agree at v = 0 and 1, differ at 2.
  auto first = [](int n) {
    const std::string s = std::to_string(n);
    return "x = input : f32[8]; a = slice x {starts=[0], stops=[" + std::to_string(3 * n - 2) +
           "], steps=[3]} : f32[" + s + "]; b = slice x {starts=[1], stops=[" +
           std::to_string(n + 1) + "], steps=[1]} : f32[" + s + "]; y = add a, b : f32[" + s +
           "]; return y";
  };
  auto second = [](int n) {
    const std::string s = std::to_string(n);
    return "x = input : f32[8]; a = slice x {starts=[0], stops=[" + std::to_string(2 * n - 1) +
           "], steps=[2]} : f32[" + s + "]; b = slice x {starts=[1], stops=[" +
           std::to_string(2 * n) + "], steps=[2]} : f32[" + s + "]; y = add a, b : f32[" + s +
           "]; return y";
  };
  expect_equal(first(2), second(2));
  expect_refuted(first(3), second(3));
}

}  // namespace
}  // namespace tessera
