// Rewrites that are equal over the real numbers and decide otherwise where they round, or lose all
// digits: found by programs that nobody had tried.
#include "verify/programs.h"

namespace tessera {
namespace {

// 41 / 41 is 1, and 41 · (1 / 41) in f32 is less. No denominator is ever 0, so that the programs
// are compared in regions, and what decides lies behind them.
TEST(Rounding, JumpsBehindARegion) {
  for (const std::string type : {"u8", "i32"}) {
    const std::string in = "x = input : " + type + "[9]; y = input : " + type +
                           "[9]; f = cast x {dtype=f32}; g = cast y {dtype=f32}; "
                           "one = const {value=1} : f32[]; d = add g, one; ",
                      quotient = "q = div f, d; ", product = "i = div one, d; q = mul f, i; ";
    for (const std::string jump :
         {"r = floor q; return r", "r = cast q {dtype=i32}; return r", "r = ge q, one; return r"})
      expect_never_equal(in + quotient + jump, in + product + jump);
    expect_equal(in + quotient + "r = exp q; return r", in + product + "r = exp q; return r");
    const std::string fourth = in + "four = const {value=4} : f32[]; q = div f, four; r = floor q; "
                                    "return r";
    expect_equal(fourth,
                 in + "c = const {value=0.25} : f32[]; q = mul f, c; r = floor q; return r");
  }
}

TEST(Rounding, RowsOfSmallWholeNumbersTie) {
  const std::string in = "x = input : u8[4,64]; f = cast x {dtype=f32}; "
                         "m = reduce_max f {axes=[1], keepdims=true}; one = const {value=1} : "
                         "f32[]; d = add m, one; c = const {value=255} : f32[]; ",
                    out = "r = cast q {dtype=u8}; return r";
  expect_never_equal(in + "p = mul f, c; q = div p, d; " + out,
                     in + "i = div one, d; p = mul f, i; q = mul p, c; " + out);
  for (const std::string type : {"f32", "u8", "i32"}) {
    const std::string mean = "x = input : " + type + "[4,10]; " +
                             (type == "f32" ? "f = neg x; " : "f = cast x {dtype=f32}; ") +
                             "three = const {value=3} : f32[]; ten = const {value=10} : f32[]; ";
    expect_never_equal(mean + "m = mean f {axes=[1]}; r = ge m, three; return r",
                       mean + "q = div f, ten; m = sum q {axes=[1]}; r = ge m, three; return r");
  }
}

// Subnormal inputs have few digits: what a scale leaves of them is no decision, though the programs
// have others.
TEST(Rounding, SubnormalInputsAreScaledInAnyOrder) {
  const std::string in = "q = input : f32[4,8]; k = input : f32[8,6]; m = input : f32[4,6]; "
                         "w = input : f32[1]; t = reduce_max m {axes=[1], keepdims=true}; "
                         "e = eq t, w; zero = const {value=0} : f32[]; ",
                    out = "r = add p, m; y = where e, zero, r; return r, y";
  const Graph twice = program(in +
                              "s = const {value=0.59375} : f32[]; a = mul q, s; "
                              "b = mul k, s; p = matmul a, b; " +
                              out),
              once = program(in +
                             "s = const {value=0.3525390625} : f32[]; a = mul q, s; "
                             "p = matmul a, k; " +
                             out);
  for (uint64_t seed = 0; seed < 12; seed++) {
    VerifyOptions options;
    options.seed = seed;
    const Verdict v = verify(twice, once, options);
    EXPECT_TRUE(v.equal()) << v.str();
  }
}

// Positions up to 4096, of which f16 holds those up to 2048.
TEST(Rounding, PositionsInFewerDigits) {
  for (const std::string compare : {"eq", "lt", "ge"})
    for (const std::string to : {"f16", "bf16"}) {
      const std::string n = to == "f16" ? "4096" : "300",
                        in = "x = input : i32[4]; u = unsqueeze x {axes=[1]}; "
                             "i = iota {axis=0} : i32[" +
                             n + "]; ";
      expect_never_equal(in + "y = " + compare + " u, i; return y",
                         in + "c = cast u {dtype=" + to + "}; d = cast i {dtype=" + to +
                             "}; y = " + compare + " c, d; return y");
    }
}

TEST(Rounding, IntegersThatAFloatDoesNotHoldAreTriedAll) {
  for (const std::string n : {"1", "9"}) {
    const std::string in = "x = input : u8[" + n + "]; y = input : u8[" + n +
                           "]; a = cast x {dtype=i32}; b = cast y {dtype=i32}; p = mul a, b; ";
    expect_never_equal(in + "c = const {value=5000} : i32[]; r = gt p, c; return r",
                       in + "q = cast p {dtype=f16}; c = const {value=5000} : f16[]; r = gt q, c; "
                            "return r");
  }
}

// Sums are as good in other orders, and with factors taken in or out.
TEST(Rounding, OrdersOfSums) {
  const std::string three = "x = input : f32[12]; y = input : f32[12]; z = input : f32[12]; ";
  const std::string factored = three + "d = sub x, y; r = mul d, z; return r",
                    expanded = three + "p = mul x, z; q = mul y, z; r = sub p, q; return r";
  expect_equal(expanded, factored);
  expect_equal(factored, expanded);
  expect_equal("x = input : f32[8,16]; r = sum x {axes=[0,1]}; return r",
               "x = input : f32[8,16]; s = sum x {axes=[0]}; r = sum s {axes=[0]}; return r");
  expect_equal(
      "x = input : f32[8,16]; w = input : f32[16,16]; a = input : f32[16,4]; b = input : "
      "f32[4,16]; p = matmul x, w; h = matmul x, a; q = matmul h, b; r = add p, q; return r",
      "x = input : f32[8,16]; w = input : f32[16,16]; a = input : f32[16,4]; b = input : "
      "f32[4,16]; m = matmul a, b; v = add w, m; r = matmul x, v; return r");
}

// |A·x − b|² multiplied out.
TEST(Rounding, ResidualsThatNearlyVanish) {
  for (const std::string type : {"f32", "f64"}) {
    const std::string in = "a = input : " + type + "[12,5]; b = input : " + type +
                           "[12]; x = input : " + type +
                           "[5,1]; c = matmul a, x; y = squeeze c "
                           "{axes=[1]}; ",
                      direct = in + "d = sub y, b; q = sqr d; r = sum q {axes=[0]}; return r";
    expect_never_equal(direct, in +
                                   "p = sqr y; s = sum p {axes=[0]}; t = mul y, b; u = sum t "
                                   "{axes=[0]}; q = sqr b; v = sum q {axes=[0]}; w = add s, v; "
                                   "two = const {value=2} : " +
                                   type + "[]; m = mul u, two; r = sub w, m; return r");
    expect_equal(direct, in + "d = sub b, y; q = mul d, d; r = sum q {axes=[0]}; return r");
  }
}

// Roots that lie far from where a search begins.
TEST(Rounding, SquaresOfWhatVanishesFarAway) {
  for (const std::string type : {"f32", "f64"}) {
    const auto square = [&](const std::string& value, double c, bool multiplied) {
      const std::string in = "x = input : " + type +
                             "[12,5]; k = const {value=" + std::to_string(c) + "} : " + type +
                             "[]; " + value;
      if (!multiplied) return in + "d = sub y, k; r = sqr d; return r";
      return in + "p = sqr y; two = const {value=2} : " + type +
             "[]; t = mul y, k; u = mul t, two; v = sqr k; w = sub p, u; r = add w, v; return r";
    };
    for (const auto& [value, c] :
         std::vector<std::pair<std::string, double>>{{"z = sqr x; y = mul z, x; ", 7},
                                                     {"z = sqr x; y = sum z {axes=[1]}; ", 1000},
                                                     {"z = sqr x; y = add z, x; ", 7},
                                                     {"y = exp x; ", 100}})
      expect_never_equal(square(value, c, false), square(value, c, true));
  }
}

// Compensated sums, splittings and numbers added to round are what the program means: over the
// reals they are zero or nothing.
TEST(Rounding, ErrorsOfRoundingAreKept) {
  const std::string x = "x = input : f32[8,9]; ", y = "y = input : f32[8,9]; ",
                    two_sum = x + y +
                              "s = add x, y; b = sub s, x; t = sub s, b; u = sub x, t; "
                              "v = sub y, b; e = add u, v; ";
  expect_never_equal(two_sum + "return e", x + y +
                                               "d = sub x, x; e = sub y, y; r = add d, e; "
                                               "return r");
  expect_never_equal(two_sum + "r = add s, e; return r", x + y + "r = add x, y; return r");
  const std::string same = x + "c = const {value=1} : f32[]; r = mul x, c; return r";
  expect_never_equal(x + "c = const {value=12582912} : f32[]; s = add x, c; r = sub s, c; return r",
                     same);
  const std::string half = "x = input : f16[8,16]; e = const {value=8} : f16[]; p = mul x, e; "
                           "c = const {value=1536} : f16[]; ";
  expect_never_equal(half + "s = add p, c; r = sub s, c; q = div r, e; return q",
                     half + "q = div p, e; return q");
  expect_never_equal(x + "c = const {value=4097} : f32[]; p = mul x, c; q = sub p, x; r = sub p, "
                         "q; return r",
                     same);
  for (const std::string type : {"f16", "bf16"})
    expect_never_equal(x + "h = cast x {dtype=" + type +
                           "}; f = cast h {dtype=f32}; r = sub x, f; "
                           "return r",
                       x + "r = sub x, x; return r");
  VerifyOptions fast;
  fast.level = Accuracy::Fast;
  EXPECT_TRUE(verify(program(two_sum + "r = add s, e; return r"),
                     program(x + y + "r = add x, y; return r"), fast)
                  .equal());
  // Terms that mostly cancel are none: they move with their inputs.
  expect_equal(x + y +
                   "m = mean x {axes=[1], keepdims=true}; d = sub x, m; q = sqr d; r = mean q "
                   "{axes=[1]}; return r",
               x + y +
                   "m = mean x {axes=[1], keepdims=true}; d = sub m, x; q = sqr d; r = mean q "
                   "{axes=[1]}; return r");
  // Nor is the mean of what was centred, which a norm behind a norm takes.
  const std::string twice = x + "m = mean x {axes=[1], keepdims=true}; d = sub x, m; n = mean d "
                                "{axes=[1], keepdims=true}; e = sub d, n; ";
  expect_equal(twice + "r = add e, e; return r",
               twice + "c = const {value=2} : f32[]; r = mul e, c; return r");
}

// Code rounds 16-bit values inside kernels before casts: E[x²] − E[x]² loses all digits there, too.
TEST(Rounding, CastsInsideKernels) {
  const std::string x = "x = input : bf16[16,32]\n";
  expect_never_equal(
      x + "f = cast x {dtype=f32}\n m = mean f {axes=[1], keepdims=true}\n h = cast m "
          "{dtype=bf16}\n d = sub x, h\n q = sqr d\n g = cast q {dtype=f32}\n v = mean g "
          "{axes=[1]}\n r = cast v {dtype=bf16}\n return r",
      x + "r = kernel x grid[x=2] {\n x = input : bf16[16,32]\n t = iter x {imap={x:0}}\n f = cast "
          "t {dtype=f32}\n q = sqr t\n g = cast q {dtype=f32}\n s = mean f {axes=[1]}\n n = mean g "
          "{axes=[1]}\n a = cast s {dtype=bf16}\n b = cast n {dtype=bf16}\n p = sqr a\n e = sub b, "
          "p\n o = save e {omap={x:0}} : bf16[16]\n return o }\n return r");
}

}  // namespace
}  // namespace tessera
