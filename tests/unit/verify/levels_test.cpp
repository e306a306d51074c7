// The levels of a verdict: which pairs are the same bits, which are as accurate everywhere, and
// which at ordinary magnitudes only. And what programs that ask for NaN, infinities or signs of
// zero are held to besides.
#include <gtest/gtest.h>

#include <cmath>

#include "verify/bitwise.h"
#include "verify/inputs.h"
#include "verify/programs.h"

namespace tessera {
namespace {

const char* const kXyz = "x = input : f32[6,8]; y = input : f32[6,8]; z = input : f32[6,8]; ";

void expect_level(Accuracy level, bool equal, const std::string& a, const std::string& b,
                  const std::string& in = kXyz) {
  const Verdict v = compare_programs(in + a, in + b, level);
  EXPECT_EQ(v.equal(), equal) << name(level) << "\n" << a << "\n" << b << "\n" << v.str();
  if (equal) {
    EXPECT_EQ(v.certificate().level, level);
  }
}
void same_bits(const std::string& a, const std::string& b, const std::string& in = kXyz) {
  expect_level(Accuracy::Bitwise, true, a, b, in);
}
// Equal as numbers, of other bits.
void other_bits(const std::string& a, const std::string& b, const std::string& in = kXyz) {
  expect_level(Accuracy::Bitwise, false, a, b, in);
  expect_level(Accuracy::Close, true, a, b, in);
}

TEST(Levels, BitsHangOnOrderAndRounding) {
  other_bits("a = mul x, y; b = mul x, z; c = add a, b; return c",
             "a = add y, z; c = mul x, a; return c");
  other_bits("a = add x, y; c = add a, z; return c", "a = add y, z; c = add x, a; return c");
  other_bits("a = exp x; b = exp y; c = mul a, b; return c", "a = add x, y; c = exp a; return c");
  other_bits("zero = const {value=0} : f32[]; c = add x, zero; return c", "return x");
  other_bits("c = sub x, y; return c", "a = sub y, x; c = neg a; return c");  // of equal ones: -0
  other_bits("c = sum x {axes=[0,1]}; return c",
             "a = sum x {axes=[1]}; c = sum a {axes=[0]}; return c");
  other_bits("c = max x, y; return c", "c = max y, x; return c");
  other_bits("c = div x, y; return c",
             "one = const {value=1} : f32[]; a = div one, y; c = mul x, a; return c");
}

TEST(Levels, RefutedWhereInputsShowOtherBits) {
  const std::string in = kXyz;
  const Verdict v =
      compare_programs(in + "a = add x, y; c = add a, z; return c",
                       in + "a = add y, z; c = add x, a; return c", Accuracy::Bitwise);
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_NE(v.counterexample().spec, v.counterexample().candidate);
}

// Of 65,536 pairs of bytes 11 tell these apart.
TEST(Levels, JumpsAtWholeNumbersStayWhereTheyAre) {
  const std::string sums[] = {"a = mul f, p; b = mul g, q; s = add a, b; ",
                              "r = div q, p; a = mul g, r; b = add f, a; s = mul b, p; "};
  for (const char* type : {"u8[8,9]", "u8[40,60]", "f64[8,9]"})
    for (const char* jump :
         {"t = cast s {dtype=u8}; ", "t = floor s; ", "n = neg s; t = floor n; "}) {
      std::string in = "x = input : " + std::string(type) + "; y = input : " + type +
                       "; p = const {value=0.299} : f64[]; q = const {value=0.587} : f64[]; " +
                       "f = cast x {dtype=f64}; g = cast y {dtype=f64}; ";
      const Verdict same =
          compare_programs(in + sums[0] + jump + "return t", in + sums[0] + jump + "return t");
      EXPECT_TRUE(same.equal()) << same.str();
      const Verdict other =
          compare_programs(in + sums[0] + jump + "return t", in + sums[1] + jump + "return t");
      EXPECT_TRUE(other.refuted()) << type << jump << other.str();
    }
}

TEST(Levels, ExactIdentitiesKeepBits) {
  same_bits("c = add x, y; return c", "c = add y, x; return c");
  same_bits("c = sub x, y; return c", "a = neg y; c = add x, a; return c");
  same_bits("c = add x, x; return c", "two = const {value=2} : f32[]; c = mul two, x; return c");
  same_bits("one = const {value=1} : f32[]; a = mul x, one; c = div a, one; return c", "return x");
  same_bits("zero = const {value=0} : f32[]; c = sub x, zero; return c", "return x");
  same_bits("a = neg x; b = neg y; c = mul a, b; return c", "c = mul x, y; return c");
  same_bits("a = neg x; c = div a, y; return c", "b = neg y; c = div x, b; return c");
  same_bits("a = neg x; c = abs a; return c", "c = abs x; return c");
  same_bits("c = mul x, x; return c", "c = sqr x; return c");
  same_bits("a = gt x, y; c = where a, z, z; return c", "return z");
  same_bits("a = ne x, y; c = where a, z, y; return c", "a = eq y, x; c = where a, y, z; return c");
}

TEST(Levels, LayoutMovesTerms) {
  same_bits("a = transpose x {perm=[1,0]}; b = transpose y {perm=[1,0]}; c = mul a, b; "
            "d = transpose c {perm=[1,0]}; return d",
            "c = mul x, y; return c");
  same_bits("a = mul x, y; c = slice a {starts=[1,0], stops=[4,8], steps=[1,2]}; return c",
            "a = slice x {starts=[1,0], stops=[4,8], steps=[1,2]}; "
            "b = slice y {starts=[1,0], stops=[4,8], steps=[1,2]}; c = mul a, b; return c");
  same_bits("a = concat x, y {axis=0}; c = neg a; return c",
            "a = neg x; b = neg y; c = concat a, b {axis=0}; return c");
  expect_level(Accuracy::Bitwise, false, "a = concat x, y {axis=0}; return a",
               "a = concat y, x {axis=0}; return a");
}

// An order of additions, a library's function: the same only of the same operands that lie alike.
TEST(Levels, SumsAreFunctionsOfWholeOperands) {
  same_bits("a = add x, y; c = sum a {axes=[1]}; return c",
            "a = add y, x; c = sum a {axes=[1]}; return c");
  same_bits("a = exp x; b = exp x; c = add a, b; return c",
            "a = exp x; two = const {value=2} : f32[]; c = mul a, two; return c");
  other_bits("a = transpose x {perm=[1,0]}; c = sum a {axes=[0]}; return c",
             "c = sum x {axes=[1]}; return c");
  const std::string in = "x = input : f32[6,8]; y = input : f32[8,6]; ";
  same_bits("a = neg x; b = matmul a, y; return b",
            "a = neg x; c = neg a; d = neg c; b = matmul d, y; return b", in);
  other_bits("b = matmul x, y; c = slice b {starts=[0,0], stops=[2,6], steps=[1,1]}; return c",
             "a = slice x {starts=[0,0], stops=[2,8], steps=[1,1]}; c = matmul a, y; return c", in);
}

TEST(Levels, HalvesRoundEveryStep) {
  const std::string in = "x = input : f16[6,8]; y = input : f16[6,8]; ";
  same_bits("a = mul x, y; c = add a, a; return c",
            "a = mul y, x; two = const {value=2} : f16[]; c = mul a, two; return c", in);
  expect_level(Accuracy::Bitwise, false, "a = mul x, y; c = add a, x; return c",
               "u = cast x {dtype=f32}; v = cast y {dtype=f32}; a = mul u, v; b = add a, u; "
               "c = cast b {dtype=f16}; return c",
               in);
}

TEST(Levels, IntegersKeepTheirBitsByAnyProof) {
  const std::string in = "x = input : i32[6]; y = input : i32[6]; z = input : i32[6]; ";
  same_bits("a = mul x, y; b = mul x, z; c = add a, b; return c",
            "a = add y, z; c = mul x, a; return c", in);
}

TEST(Levels, FastForgivesExtremesOnly) {
  const std::string e = "e = exp x; s = sum e {axes=[1], keepdims=true}; p = div e, s; return p",
                    stable = "m = reduce_max x {axes=[1], keepdims=true}; d = sub x, m; e = exp d; "
                             "s = sum e {axes=[1], keepdims=true}; p = div e, s; return p";
  expect_level(Accuracy::Close, false, stable, e);
  expect_level(Accuracy::Fast, true, stable, e);
  expect_level(Accuracy::Bitwise, false, stable, e);
  // What is wrong at ordinary inputs stays refused.
  const std::string big = "k = const {value=1e8} : f32[]; a = add x, k; c = sub a, k; return c";
  expect_level(Accuracy::Fast, false, "return x", big);
  expect_level(Accuracy::Fast, false, "c = mul x, y; return c", "c = mul x, z; return c");
}

TEST(Levels, CertificatesAreReplayed) {
  const Graph a = program(std::string(kXyz) + "a = add x, y; c = mul a, z; return c"),
              b = program(std::string(kXyz) + "a = add y, x; c = mul z, a; return c"),
              other = program(std::string(kXyz) + "a = add y, z; c = mul z, a; return c");
  VerifyOptions options;
  options.level = Accuracy::Bitwise;
  const Verdict v = verify(a, b, options);
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate c = Certificate::parse(v.certificate().str());
  EXPECT_EQ(c, v.certificate());
  EXPECT_LT(c.error_log2, -60);
  EXPECT_TRUE(recheck(c, a, b).ok);
  EXPECT_FALSE(compare_terms(a, other, 1, nullptr).equal);
  // A certificate of numbers does not pass for one of bits.
  const Graph sum =
                  program(std::string(kXyz) + "a = mul x, y; b = mul x, z; c = add a, b; return c"),
              product = program(std::string(kXyz) + "a = add y, z; c = mul x, a; return c");
  Certificate raised = verify(sum, product).certificate();
  EXPECT_TRUE(recheck(raised, sum, product).ok);
  raised.level = Accuracy::Bitwise;
  EXPECT_FALSE(recheck(raised, sum, product).ok);
}

TEST(Levels, WhatCompiledCodeCannotKeepIsNamed) {
  EXPECT_EQ(inexact_operator(program(std::string(kXyz) + "a = mul x, y; c = add a, z; return c")),
            "");
  for (const char* body : {"c = exp x; return c", "c = sum x {axes=[0]}; return c",
                           "c = max x, y; return c", "c = cast x {dtype=i32}; return c",
                           "a = cast x {dtype=f16}; c = cast a {dtype=f32}; return c"})
    EXPECT_NE(inexact_operator(program(std::string(kXyz) + body)), "") << body;
}

// Normal forms are of numbers: no claim for all sizes follows from them.
TEST(Levels, BitsAreProvedAtTheSizesNamed) {
  const std::string in = "x = input : f32[N,8]; y = input : f32[N,8]; ";
  const std::string a = in + "c = add x, y; return c", b = in + "c = add y, x; return c";
  const Verdict close = compare_programs(a, b), bits = compare_programs(a, b, Accuracy::Bitwise);
  ASSERT_TRUE(close.equal() && bits.equal()) << close.str() << bits.str();
  EXPECT_NE(close.certificate().all_sizes, "");
  EXPECT_EQ(bits.certificate().all_sizes, "");
}

// --- programs that ask for special numbers

void only_special_refuses(const std::string& a, const std::string& b) {
  EXPECT_TRUE(compare_programs(a, b).equal()) << a << "\n" << b;
  const Verdict v = compare_programs(a, b, Accuracy::Close, true);
  ASSERT_TRUE(v.refuted()) << a << "\n" << b << "\n" << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Definedness) << v.str();
}

TEST(Special, RefusesOtherOverflow) {
  const std::string in = "a = input : f32[40,30]; b = input : f32[40,30]; ";
  // a + a is infinite where a·b + a·b is not.
  only_special_refuses(in + "c = mul a, b; d = add c, c; return d",
                       in + "c = add a, a; d = mul c, b; return d");
  only_special_refuses(in + "c = add a, b; d = sub c, a; return d", in + "return b");
  // Powers of two are exact: 2ab overflows where ab + ab does.
  EXPECT_TRUE(compare_programs(in + "c = mul a, b; d = add c, c; return d",
                               in + "two = const {value=2} : f32[]; c = mul a, b; d = mul c, two; "
                                    "return d",
                               Accuracy::Close, true)
                  .equal());
}

TEST(Special, RefusesOtherSignsOfZero) {
  const std::string in = "a = input : f64[40,30]; zero = const {value=0} : f64[]; ";
  only_special_refuses(in + "b = add a, zero; return b", in + "return a");  // −0 + 0 = +0
  only_special_refuses(in + "b = neg a; c = sub zero, b; return c", in + "return a");
}

TEST(Special, RefusesOtherNanAndInfinity) {
  const std::string in = "a = input : f32[40,30]; b = input : f32[40,30]; ";
  only_special_refuses(in + "c = mul a, b; d = div c, b; return d", in + "return a");
  only_special_refuses(in + "c = sqrt a; d = mul c, c; return d", in + "return a");
  only_special_refuses(in + "c = log a; d = exp c; return d", in + "return a");
}

TEST(Special, RefusesOtherNumbersMadeOfNanAndInfinity) {
  const std::string in = "a = input : f32[6]; b = input : f32[6]; zero = const : f32[]; "
                         "one = const {value=1} : f32[]; six = const {value=6} : f32[]; ";
  const std::string nan = in + "n = ne a, a; ", inf = in + "e = exp a; c = sub a, a; n = ne c, c; ";
  // Who compares a value with itself asks for them, flag or not.
  const auto refuses = [](const std::string& a, const std::string& b) {
    const Verdict v = compare_programs(a, b);
    ASSERT_TRUE(v.refuted()) << a << "\n" << b << "\n" << v.str();
    EXPECT_EQ(v.counterexample().kind, Difference::Definedness) << v.str();
  };
  refuses(nan + "z = where n, zero, a; return z", in + "return a");
  // So does whose condition only they change.
  for (const char* always :
       {"p = mul a, zero; n = eq p, zero; ", "p = max a, zero; n = ge p, zero; ",
        "p = gt a, zero; q = le a, zero; n = or p, q; ",
        "p = sub a, b; q = sub a, b; n = eq p, q; "})
    for (VerifyOptions options; !options.seed || *options.seed < 20;
         options.seed = options.seed.value_or(0) + 1)
      EXPECT_TRUE(verify(program(in + always + "z = where n, a, six; return z"),
                         program(in + "return a"), options)
                      .refuted())
          << always;
  EXPECT_TRUE(compare_programs(in + "n = gt a, zero; z = where n, a, zero; return z",
                               in + "z = max a, zero; return z")
                  .equal());
  for (const std::string& asks : {nan, inf}) {
    refuses(asks + "z = where n, zero, a; return z", asks + "z = where n, one, a; return z");
    refuses(asks + "z = where n, b, a; return z",
            asks + "c2 = add b, one; z = where n, c2, a; return z");
    refuses(asks + "f = cast n {dtype=f32}; s = sum f {axes=[0]}; z = div s, six; return z",
            asks + "f = cast n {dtype=f32}; s = sum f {axes=[0]}; t = add s, s; "
                   "z = div t, six; return z");
    EXPECT_TRUE(compare_programs(asks + "z = where n, zero, a; y = mul z, b; return y",
                                 asks + "o = not n; z = where o, a, zero; y = mul b, z; return y",
                                 Accuracy::Close, true)
                    .equal());
  }
  // Where all that is left is below zero.
  const std::string least = "i = const {value=-1e+30} : f32[]; ";
  EXPECT_FALSE(
      compare_programs(nan + least + "z = where n, i, a; m = reduce_max z {axes=[0]}; return m",
                       nan + "z = where n, zero, a; m = reduce_max z {axes=[0]}; return m",
                       Accuracy::Close, true)
          .equal());
}

TEST(Special, OnlyItsInputsHoldNegativeZeros) {
  // √y / √z is -inf at z = -0 where √(y / z) is NaN: a verdict must not hang on whether one is
  // drawn.
  Graph g;
  g.add_output(g.add(OpKind::Neg, {g.add_input({DType::F32, {1000, 1000}})}));
  const std::vector<IntRange> ranges = integer_ranges(g, g, {-8, 8});
  const auto zeros = [&](const std::string& family) {
    int64_t all = 0, negative = 0;
    const std::vector<NDArray> inputs = make_inputs(g, family, 7, ranges);
    for (double x : inputs[0].reals) {
      all += x == 0;
      negative += x == 0 && std::signbit(x);
    }
    EXPECT_GT(all, 0) << family;
    return negative;
  };
  EXPECT_EQ(zeros("alternating"), 0);
  EXPECT_EQ(zeros("zeros"), 0);
  EXPECT_GT(zeros("extreme"), 0);
}

}  // namespace
}  // namespace tessera
