// Rewrites that are undefined where the original is defined, at inputs that no sample meets.
#include "programs.h"

namespace tessera {
namespace {

// Zero on a hyperplane that no small number lies on.
const std::string kInputs =
    "x = input : f32[6,4]; y = input : f32[6,4]; a = input : f32[6,4]; "
    "p = const {value=0.73105} : f32[]; q = const {value=1.61803} : f32[]; "
    "k = const {value=0.12345} : f32[]; px = mul x, p; qy = mul y, q; r = sub px, qy; "
    "d = add r, k; ";

Verdict compared(const std::string& a, const std::string& b, uint64_t seed) {
  VerifyOptions options;
  options.seed = seed;
  options.level = Accuracy::Fast;
  return verify(program(kInputs + a), program(kInputs + b), options);
}
void expect_accepted(const std::string& a, const std::string& b) {
  for (uint64_t seed = 1; seed <= 12; seed++)
    EXPECT_TRUE(compared(a, b, seed).equal()) << a << "\n"
                                              << b << "\n"
                                              << compared(a, b, seed).str();
}
void expect_not_accepted(const std::string& a, const std::string& b) {
  for (uint64_t seed = 1; seed <= 12; seed++) EXPECT_FALSE(compared(a, b, seed).equal()) << b;
}

TEST(Definedness, TheSameDivisorsInTheSamePlaces) {
  expect_accepted("z = div a, d; return z", "z = div a, d; return z");
  expect_accepted("u = div a, d; v = div y, d; z = add u, v; return z",
                  "u = add y, a; z = div u, d; return z");
  expect_accepted("s = sqr d; m = mean s {axes=[1], keepdims=true}; r2 = sqrt m; z = div a, r2; "
                  "return z",
                  "s = mul d, d; m = mean s {axes=[1], keepdims=true}; r2 = rsqrt m; "
                  "z = mul a, r2; return z");
  expect_accepted("l = log d; z = add l, a; return z", "l = log d; z = add a, l; return z");
  expect_accepted("c = gt x, y; u = div a, d; z = where c, u, a; return z",
                  "c = lt y, x; u = div a, d; z = where c, u, a; return z");
}

TEST(Definedness, APoleThatTheOriginalDoesNotHave) {
  expect_not_accepted("z = add a, a; return z",
                      "m = mul a, d; n = div m, d; z = add n, a; return z");
  // In one row of six.
  expect_not_accepted(
      "z = add a, a; return z",
      "m = mul a, d; n = div m, d; n0 = slice n {starts=[2,0], stops=[3,4], steps=[1,1]}; "
      "a0 = slice a {starts=[0,0], stops=[2,4], steps=[1,1]}; "
      "a1 = slice a {starts=[3,0], stops=[6,4], steps=[1,1]}; b = concat a0, n0, a1 {axis=0}; "
      "z = add b, a; return z");
}

TEST(Definedness, APoleInAnotherPlace) {
  // Of another result.
  expect_not_accepted("u = div y, d; z = add a, a; return u, z",
                      "u = div y, d; m = mul a, d; n = div m, d; z = add n, a; return u, z");
  // Of the neighbour's row.
  expect_not_accepted(
      "z = div a, d; return z",
      "d0 = slice d {starts=[1,0], stops=[6,4], steps=[1,1]}; "
      "d1 = slice d {starts=[0,0], stops=[1,4], steps=[1,1]}; e = concat d0, d1 {axis=0}; "
      "m = mul a, e; n = div m, e; z = div n, d; return z");
  // Where the original leaves the quotient aside.
  expect_not_accepted("c = gt x, y; u = div a, d; z = where c, u, a; return z",
                      "c = gt x, y; v = where c, a, a; m = mul a, d; n = div m, d; u = div n, d; "
                      "z = where c, u, n; return z");
  // Of what nobody reads.
  expect_not_accepted("u = div y, d; z = add a, a; return z",
                      "m = mul a, d; n = div m, d; z = add n, a; return z");
}

TEST(Definedness, RootsAndLogarithmsOfMoreThanTheOriginals) {
  expect_not_accepted("m = relu d; z = sqrt m; w = add z, a; return w",
                      "z = sqrt d; w = add z, a; return w");
  expect_not_accepted("z = add d, a; return z", "s = sqrt d; t = mul s, s; z = add t, a; return z");
  expect_not_accepted("z = add d, a; return z", "s = log d; t = exp s; z = add t, a; return z");
}

// What is none becomes a number where it is compared, infinity where it is bounded: laws of the
// real numbers that do not hold there.
TEST(Definedness, WhatFollowsMakesNumbersOfWhatIsNone) {
  const std::string in = "x = input : f32[4,8]; y = input : f32[4,8]; k = const {value=2} : f32[]; "
                         "one = const {value=1} : f32[]; many = const {value=700} : f32[]; ";
  const std::string operands[] = {
      "p = mul x, y; q = add p, x; s = sub q, many; ",
      "p = sqr x; q = sqr y; r = add p, q; s = sub r, many; ",
      "r = sum x {axes=[1], keepdims=true}; s = sub r, many; ",
      "p = exp x; q = exp y; r = mul p, q; s = sub many, r; ",
      // Never found: sin is at most 1.
      "p = sin x; q = sin y; m = mul p, q; r = sqr m; e = const {value=0.9999999} : f32[]; "
      "s = sub e, r; ",
  };
  for (const std::string& s : operands)
    for (const char* t : {"t = sqrt s; ", "t = log s; ", "t = rsqrt s; ",
                          "t = pow s {exponent=0.5}; ", "d = div x, s; t = sub d, d; "}) {
      const std::string before = in + s + t;
      EXPECT_FALSE(compare_programs(before + "c = gt t, k; z = where c, t, k; return z",
                                    before + "z = max t, k; return z", Accuracy::Fast)
                       .equal())
          << before;
      EXPECT_FALSE(
          compare_programs(before + "c = ge t, k; n = not c; z = cast n {dtype=f32}; return z",
                           before + "n = lt t, k; z = cast n {dtype=f32}; return z", Accuracy::Fast)
              .equal())
          << before;
      EXPECT_TRUE(compare_programs(before + "u = max t, k; z = relu u; return z",
                                   before + "u = max k, t; z = max u, k; return z", Accuracy::Fast)
                      .equal())
          << before;
    }
  // Of 0 and 0, where both are rare.
  const std::string both = kInputs + "t = div a, d; c2 = const {value=2} : f32[]; ";
  EXPECT_FALSE(compare_programs(both + "c = gt t, c2; z = where c, t, c2; return z",
                                both + "z = max t, c2; return z", Accuracy::Fast)
                   .equal());
  EXPECT_FALSE(
      compare_programs(both + "n = ne t, c2; z = cast n {dtype=f32}; return z",
                       both + "l = lt t, c2; g = gt t, c2; n = or l, g; z = cast n {dtype=f32}; "
                              "return z",
                       Accuracy::Fast)
          .equal());
  for (size_t i = 0; i < 3; i++)
    EXPECT_FALSE(
        compare_programs(in + operands[i] + "t = div one, s; z = min t, k; return z",
                         in + operands[i] + "a = div s, s; t = div a, s; z = min t, k; return z",
                         Accuracy::Fast)
            .equal())
        << operands[i];
}

// Elements are told by their values, and of many some are alike.
TEST(Definedness, ManyElementsAreNotTakenForEachOther) {
  const std::string in = "x = input : f64[120,120]; r = sqrt x; ";
  const std::string outer = "x = input : f64[120,1]; y = input : f64[1,120]; s = add x, y; ";
  const std::string equal[][2] = {
      {in + "z = div x, r; return z", in + "return r"},
      {outer + "q = div x, s; m = reduce_min q {axes=[0]}; return m",
       outer + "o = const {value=1} : f64[]; i = div o, s; q = mul x, i; "
               "m = reduce_min q {axes=[0]}; return m"},
  };
  for (const auto& [a, b] : equal)
    for (uint64_t seed = 1; seed <= 4; seed++) {
      VerifyOptions options;
      options.seed = seed;
      EXPECT_TRUE(verify(program(a), program(b), options).equal()) << b << seed;
    }
}

TEST(Definedness, WhatIsChosenOrMaskedOfWhatIsNone) {
  const std::string in =
      kInputs +
      "zero = const {value=0} : f32[]; c2 = const {value=2} : f32[]; "
      "s0 = sin x; s1 = sin y; m = mul s0, s1; s2 = sqr m; e = const {value=0.9999999} : f32[]; "
      "s = sub e, s2; ";  // never below zero in any draw
  const std::string rewrites[][2] = {
      // A choice is no product with a mask: 0 · inf.
      {"w = abs d; t = div p, w; c = eq w, zero; z = where c, zero, t; return z",
       "w = abs d; t = div p, w; c = ne w, zero; f = cast c {dtype=f32}; z = mul f, t; return z"},
      {"w = abs d; t = div a, w; c = gt w, zero; z = where c, t, zero; return z",
       "w = abs d; t = div a, w; c = gt w, zero; f = cast c {dtype=f32}; z = mul t, f; return z"},
      // 0 · inf by a root.
      {"h = mean d {axes=[1], keepdims=true}; v = sub d, h; o = sqr v; j = mean o {axes=[1], "
       "keepdims=true}; i = rsqrt j; t = mul v, i; c = gt t, zero; z = where c, t, zero; return z",
       "h = mean d {axes=[1], keepdims=true}; v = sub d, h; o = sqr v; j = mean o {axes=[1], "
       "keepdims=true}; i = rsqrt j; t = mul v, i; z = relu t; return z"},
      // Two at once: inf >= inf, and inf - inf is none.
      {"f = add px, qy; t = div x, d; u = div y, f; n = ge t, u; z = cast n {dtype=f32}; return z",
       "f = add px, qy; t = div x, d; u = div y, f; v = sub t, u; n = ge v, zero; "
       "z = cast n {dtype=f32}; return z"},
      {"t = div x, d; t0 = slice t {starts=[0,0], stops=[6,3], steps=[1,1]}; t1 = slice t "
       "{starts=[0,1], stops=[6,4], steps=[1,1]}; n = ge t0, t1; z = cast n {dtype=f32}; return z",
       "t = div x, d; t0 = slice t {starts=[0,0], stops=[6,3], steps=[1,1]}; t1 = slice t "
       "{starts=[0,1], stops=[6,4], steps=[1,1]}; v = sub t0, t1; n = ge v, zero; "
       "z = cast n {dtype=f32}; return z"},
      // Behind a condition that is rare, of one element, and of little weight.
      {"t = sqrt s; l = const {value=50.5} : f32[]; h = const {value=50.6} : f32[]; g1 = gt a, l; "
       "g2 = lt a, h; g = and g1, g2; n = gt t, c2; v = where n, t, c2; z = where g, v, x; return "
       "z",
       "t = sqrt s; l = const {value=50.5} : f32[]; h = const {value=50.6} : f32[]; g1 = gt a, l; "
       "g2 = lt a, h; g = and g1, g2; v = max t, c2; z = where g, v, x; return z"},
      {"i = iota {axis=0} : f32[6,4]; j = iota {axis=1} : f32[6,4]; f = const {value=4} : f32[]; "
       "ij = "
       "mul i, f; n = add ij, j; t = sqrt s; u = const {value=13} : f32[]; g = eq n, u; o = ge t, "
       "c2; v = not o; w = cast v {dtype=f32}; z = where g, w, x; return z",
       "i = iota {axis=0} : f32[6,4]; j = iota {axis=1} : f32[6,4]; f = const {value=4} : f32[]; "
       "ij = "
       "mul i, f; n = add ij, j; t = sqrt s; u = const {value=13} : f32[]; g = eq n, u; v = lt t, "
       "c2; w = cast v {dtype=f32}; z = where g, w, x; return z"},
      {"t = sqrt s; o = ge t, c2; v = not o; w = cast v {dtype=f32}; u = const {value=0.0000001} : "
       "f32[]; z = mul w, u; return z",
       "t = sqrt s; v = lt t, c2; w = cast v {dtype=f32}; u = const {value=0.0000001} : f32[]; "
       "z = mul w, u; return z"},
  };
  const auto in_kernel = [](const std::string& body) {
    return "x = input : f32[4,8]; y = input : f32[4,8]; z = kernel x, y grid[x=1] { ; a = input : "
           "f32[4,8]; b = input : f32[4,8]; c = iter a {imap={x:0}}; e = iter b {imap={x:0}}; one "
           "= "
           "const {value=1} : f32[]; " +
           body +
           "; m = min t, one; o = save m {omap={x:0}} : f32[4,8]; "
           "return o; }; return z";
  };
  EXPECT_FALSE(compare_programs(in_kernel("d = sub c, e; t = div c, d"),
                                in_kernel("d = sub e, c; u = div c, d; t = neg u"), Accuracy::Fast)
                   .equal());
  for (const auto& [a, b] : rewrites)
    EXPECT_FALSE(compare_programs(in + a, in + b, Accuracy::Fast).equal()) << a << "\n" << b;
  // Guards stay what they are.
  expect_equal(in + "t = div a, d; c = eq d, zero; z = where c, zero, t; return z",
               in + "t = div a, d; c = ne d, zero; z = where c, t, zero; return z");
}

// Of many roots some are none in every draw of a small field, and hide nothing for that.
TEST(Definedness, ManyRootsHideNoPole) {
  const std::string in =
      "x = input : f32[4,64]; y = input : f32[4,1]; w = input : f32[4,1]; v = input : f32[4,1]; "
      "s = sqrt x; t = sum s {axes=[1], keepdims=true}; z = add t, y; u = add w, v; "
      "two = const {value=2} : f32[]; a = mul w, two; three = const {value=3} : f32[]; "
      "b = mul v, three; five = const {value=5} : f32[]; c = sub y, a; e = sub c, b; "
      "d = sub e, five; ";
  const Verdict v = compare_programs(in + "o = mul z, u; return o",
                                     in + "r = div d, d; p = mul z, u; o = mul p, r; return o");
  EXPECT_FALSE(v.equal()) << v.str();
  // A pole that both have is none of the rewrite's alone.
  expect_equal(in + "q = mul z, u; o = div q, d; return o",
               in + "q = div u, d; o = mul q, z; return o");
  expect_equal(in + "q = mul z, u; o = div q, d; return o",
               in + "f = neg d; g = neg z; h = div u, f; o = mul g, h; return o");
}

}  // namespace
}  // namespace tessera
