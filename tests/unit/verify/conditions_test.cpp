// Programs that differ only where a condition holds that random numbers never meet: comparisons
// with constants, with numbers made of constants, and behind the guard of an index.
#include <gtest/gtest.h>

#include "verify/programs.h"

namespace tessera {
namespace {

const std::string kFloats = "x = input : f32[4,8]; a = input : f32[4,8]; b = input : f32[4,8]; ";
const std::string kIntegers = "x = input : i64[4,8]; a = input : f32[4,8]; b = input : f32[4,8]; ";

std::string chosen_by(const std::string& dtype, const std::string& value,
                      const std::string& compare) {
  return "k = const {value=" + value + "} : " + dtype + "[]; c = " + compare +
         " x, k; y = where c, a, b; return y";
}

TEST(Conditions, EqualityWithAConstantIsMet) {
  for (const char* value : {"1000", "-77", "1/2"})
    EXPECT_TRUE(
        compare_programs(kFloats + chosen_by("f32", value, "eq"), kFloats + "return b").refuted())
        << value;
  for (const char* value : {"1000", "-77", "123456789012"})
    EXPECT_TRUE(compare_programs(kIntegers + chosen_by("i64", value, "eq"), kIntegers + "return b")
                    .refuted())
        << value;
  EXPECT_TRUE(
      compare_programs(kFloats + chosen_by("f32", "1000", "ne"), kFloats + "return a").refuted());
  EXPECT_TRUE(compare_programs(kFloats + chosen_by("f32", "1000", "eq"),
                               kFloats + "k = const {value=1000} : f32[]; c = ne x, k; y = where "
                                         "c, b, a; return y")
                  .equal());
}

TEST(Conditions, EqualityDecidesAtTheBoundary) {
  for (const char* value : {"1000", "1/2"})
    EXPECT_TRUE(compare_programs(kFloats + chosen_by("f32", value, "le"),
                                 kFloats + chosen_by("f32", value, "lt"))
                    .refuted())
        << value;
  EXPECT_TRUE(compare_programs(kIntegers + chosen_by("i64", "1000", "le"),
                               kIntegers + chosen_by("i64", "1000", "lt"))
                  .refuted());
}

TEST(Conditions, ConstantsCombine) {
  // 2x + 5 = 1005 where x is 500
  EXPECT_TRUE(compare_programs(kFloats +
                                   "two = const {value=2} : f32[]; k = const {value=1000} : f32[]; "
                                   "d = mul x, two; c = eq d, k; y = where c, a, b; return y",
                               kFloats + "return b")
                  .refuted());
}

TEST(Conditions, OfIntegerProgramsToo) {
  const std::string in = "x = input : i32[4,8]; ";
  // Equal since no whole number lies between 500 and 501, which no proof here knows.
  EXPECT_FALSE(
      compare_programs(in + "k = const {value=500} : i32[]; y = max x, k; return y",
                       in + "k = const {value=501} : i32[]; l = const {value=500} : i32[]; c = le "
                            "x, l; y = max x, k; z = where c, l, y; return z")
          .refuted());
  EXPECT_TRUE(compare_programs(in + "k = const {value=500} : i32[]; y = max x, k; return y",
                               in + "k = const {value=501} : i32[]; l = const {value=500} : i32[]; "
                                    "c = lt x, l; y = max x, k; z = where c, l, y; return z")
                  .refuted());
}

TEST(Conditions, WhatIsNeverMetIsNotProved) {
  // No float of 16 bits is 0.1; three numbers add up to 1000 by a chance of nothing.
  EXPECT_TRUE(
      compare_programs("x = input : f16[4]; a = input : f16[4]; b = input : f16[4]; " +
                           chosen_by("f16", "1/10", "eq"),
                       "x = input : f16[4]; a = input : f16[4]; b = input : f16[4]; return b")
          .unknown());
  const Verdict v = compare_programs(
      kFloats + "k = const {value=1000003} : f32[]; s = mul a, b; t = add s, x; c = eq t, k; y = "
                "where c, a, b; return y",
      kFloats + "return b");
  EXPECT_FALSE(v.equal());
}

TEST(Conditions, GuardedIndicesAreDrawnOutsideToo) {
  // A label of 100 stands for "none": the guard keeps it from the gather.
  const std::string in = "table = input : f32[6]; label = input : i64[16]; ";
  const std::string guarded = "none = const {value=100} : i64[]; zero = const {value=0} : i64[]; "
                              "c = eq label, none; l = where c, zero, label; "
                              "g = gather table, l {axis=0}; f = const {value=0} : f32[]; "
                              "y = where c, f, g; return y";
  EXPECT_TRUE(compare_programs(in + guarded,
                               in + "none = const {value=100} : i64[]; zero = const {value=0} : "
                                    "i64[]; c = eq label, none; l = where c, zero, label; g = "
                                    "gather table, l {axis=0}; return g")
                  .refuted());
  EXPECT_TRUE(compare_programs(in + guarded, in + guarded).equal());
  // Without its guard the gather reads out of range, though nobody sees what.
  const Verdict v = compare_programs(
      in + guarded, in + "none = const {value=100} : i64[]; c = eq label, none; "
                         "g = gather table, label {axis=0}; "
                         "f = const {value=0} : f32[]; y = where c, f, g; return y");
  ASSERT_TRUE(v.refuted());
  EXPECT_EQ(v.counterexample().kind, Difference::Definedness) << v.str();
}

// Indices that are made of two: each may be negative, where a guard adds the extent, but not as the
// constants of the other guard are.
TEST(Conditions, GuardedIndicesStayInRangeTogether) {
  const std::string program =
      "x = input : f64[5,7]; i = input : i64[2,1]; j = input : i64[2]; "
      "zero = const {value=0} : i64[]; five = const {value=5} : i64[]; "
      "seven = const {value=7} : i64[]; "
      "a = lt i, zero; b = add i, five; c = where a, b, i; d = mul c, seven; "
      "e = lt j, zero; f = add j, seven; g = where e, f, j; h = add d, g; "
      "flat = reshape x {shape=[35]}; y = gather flat, h {axis=0}; return y";
  EXPECT_TRUE(compare_programs(program, program).equal());
}

// A square that overflows makes 0 of a quotient that the rewrite, of half the numbers, still knows.
TEST(Conditions, OverflowOfTheOriginalIsNoDecision) {
  const auto normed = [](const std::string& of, const std::string& epsilon) {
    return "x = input : f32[8,6]; " + of +
           "q = sqr d; m = mean q {axes=[1], keepdims=true}; e = " + "const {value=" + epsilon +
           "} : f32[]; v = add m, e; r = rsqrt v; n = mul d, r; zero " +
           "= const : f32[]; c = ge n, zero; y = where c, n, x; return y";
  };
  expect_equal(normed("d = add x, x; ", "0.04"),
               normed("o = const {value=1} : f32[]; d = mul x, o; ", "0.01"));
}

// While other values of the original overflow.
TEST(Conditions, AbsorptionIsADecision) {
  const std::string in = "x = input : f16[4]; a = input : f16[4]; b = input : f16[4]; s = sqr b; ";
  expect_refuted(in + "k = const {value=1} : f16[]; t = add x, k; c = eq t, x; y = where c, a, b; "
                      "return y, s",
                 in + "return b, s");
  // And where what is chosen overflows sooner than the decision is made.
  const std::string squares = "v = input : f16[5,1]; b = input : f16[1,5,1]; m = mul v, v; "
                              "t = unsqueeze m {axes=[0]}; ";
  VerifyOptions options;
  for (options.seed = 1; *options.seed < 60; ++*options.seed) {
    const Verdict v =
        verify(program(squares + "k = const {value=1} : f16[]; u = add b, k; c = eq u, b; "
                                 "d = add t, t; h = const {value=3} : f16[]; e = add d, h; "
                                 "y = where c, e, t; return y"),
               program(squares + "return t"), options);
    EXPECT_TRUE(v.refuted()) << v.str();
  }
  // And where the same input overflows elsewhere in its row, which does not change this element.
  const std::string row = "x = input : f16[2,4]; s = sqr x; m = mean s {axes=[1], keepdims=true}; "
                          "o = const {value=1} : f16[]; p = add m, o; r = rsqrt p; n = mul x, r; "
                          "z = max x, n; ";
  for (options.seed = 1; *options.seed < 20; ++*options.seed) {
    const Verdict v =
        verify(program(row + "u = add x, o; c = eq u, x; d = add z, z; y = where c, d, z; "
                             "return y, n"),
               program(row + "return z, n"), options);
    EXPECT_TRUE(v.refuted()) << v.str();
  }
}

// Behind a condition that no draw meets, so that only a proof can speak of it: what arithmetic made
// of integers is known modulo their width, and what orders, divides, widens or looks up asks for
// more.
TEST(Conditions, IntegersThatWrapAreNotTheirFormulas) {
  const std::string guard = "x = input : i64[1]; y = input : i64[1]; z = input : i64[1]; "
                            "p = input : f32[1]; q = input : f32[1]; xy = mul x, y; "
                            "xyz = add xy, z; j = const {value=-708200092861} : i64[]; "
                            "u = eq xyz, j; xz = mul x, z; xzy = sub xz, y; "
                            "h = const {value=511175442035} : i64[]; v = eq xzy, h; g = and u, v; ",
                    pick = "d = and g, c; r = where d, p, q; return r", none = "return q";
  const auto ints = [](const std::string& type) { return "a = input : " + type + "; "; };
  const std::string bytes = ints("u8[1]") + "b = input : u8[1]; ",
                    words = ints("i32[1]") + "b = input : i32[1]; ",
                    longs = ints("i64[1]") + "b = input : i64[1]; ",
                    chosen = "o = const : i32[]; r = where g, m, o; return r",
                    wide = "A = cast a {dtype=i64}; B = cast b {dtype=i64}; ",
                    far = "k = const {value=1152921504606846976} : i64[]; c = eq t, k; ";
  const std::pair<std::string, std::string> pairs[] = {
      {bytes +
           "s = add a, b; w = cast s {dtype=i32}; n = cast w {dtype=i8}; "
           "m = cast n {dtype=i32}; " +
           chosen,
       bytes + "s = add a, b; m = cast s {dtype=i32}; " + chosen},
      {bytes + "k = const {value=7} : u8[]; s = add a, b; n = mod s, k; m = cast n {dtype=i32}; " +
           chosen,
       bytes +
           "k = const {value=7} : i32[]; A = cast a {dtype=i32}; B = cast b {dtype=i32}; "
           "s = add A, B; m = mod s, k; " +
           chosen},
      {words + "m = mul a, b; c = lt m, a; " + pick,
       words + wide + "m = mul A, B; c = lt m, A; " + pick},
      {words + "m = mul a, b; c = cast m {dtype=bool}; " + pick,
       words + wide + "m = mul A, B; c = cast m {dtype=bool}; " + pick},
      {longs + "m = mul a, b; t = abs m; " + far + pick, longs + none},
      {longs + "m = mul a, b; t = relu m; " + far + pick, longs + none},
      {longs + "t = mod a, b; " + far + pick, longs + none},
      {ints("i32[1]") +
           "l = const {value=300} : i32[]; n = cast l {dtype=u8}; "
           "k = cast n {dtype=i32}; c = gt a, l; m = where c, a, k; " +
           chosen,
       ints("i32[1]") + "l = const {value=44} : i32[]; m = max a, l; " + chosen},
      {ints("u8[1]") + "k = const {value=300} : u8[]; c = lt a, k; " + pick,
       ints("u8[1]") + "r = where g, p, q; return r"},
      {ints("i32[1,1,4]") +
           "lo = const {value=5} : i32[]; l = max a, lo; "
           "t = pool_sum l {size=[1], low=[1], high=[1]}; k = const : i32[]; "
           "w = gt t, k; n = where w, t, lo; m = slice n {starts=[0,0,0], "
           "stops=[1,1,1], steps=[1,1,1]}; " +
           chosen,
       ints("i32[1,1,4]") +
           "lo = const {value=5} : i32[]; l = max a, lo; "
           "n = pool_sum l {size=[1], low=[1], high=[1]}; m = slice n {starts=[0,0,0], "
           "stops=[1,1,1], steps=[1,1,1]}; " +
           chosen},
  };
  VerifyOptions options;
  for (options.seed = 1; *options.seed < 3; ++*options.seed)
    for (const auto& [a, b] : pairs) {
      const Verdict v = verify(program(guard + a), program(guard + b), options);
      EXPECT_FALSE(v.equal()) << a << "\n" << b << "\n" << v.str();
    }
}

}  // namespace
}  // namespace tessera
