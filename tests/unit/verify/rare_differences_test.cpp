// Programs that differ where random draws hardly ever come: at one position of a table, in a small
// ball, at signs that a prime gets wrong. None may be proved equal, whatever the seed.
#include "verify/characters.h"
#include "verify/programs.h"

namespace tessera {
namespace {

// Positive where x is near (0, 3/8, 6/8, …), within 1/8.
const std::string kBall = "x = input : f32[8]; i = iota {axis=0} : f32[8];"
                          "h = const {value=3/8} : f32[]; p = mul i, h; d = sub x, p; q = sqr d;"
                          "s = sum q {axes=[0], keepdims=true}; r = const {value=1/64} : f32[];"
                          "u = sub r, s; c = const {value=127/64} : f32[]; w = mul u, c;"
                          "k = const {value=4096} : f32[]; y = sqr x;";
const std::string kPlain = "x = input : f32[8]; y = sqr x; return y";

TEST(RareDifferences, SignsOfOneNumberTimesConstants) {
  expect_never_equal(kPlain, kBall + "m = relu u; n = relu w; e = mul m, n; f = mul e, k;"
                                     "z = add y, f; return z");
}

TEST(RareDifferences, SignsThatLookLikeRoots) {
  expect_never_equal(kPlain, kBall +
                                 "a = sqr u; b = sqrt a; m = add b, u; a2 = sqr w; b2 = sqrt a2;"
                                 "n = add b2, w; e = mul m, n; f = mul e, k; z = add y, f;"
                                 "return z");
}

// More roots than can be told apart: 0 unless all of 64 signs are as one pattern has them.
TEST(RareDifferences, ManySignsThatLookLikeRoots) {
  std::string m = "x = input : f32[64]; y = sum x {axes=[0], keepdims=true}; a = sqr x;"
                  "b = sqrt a; h = const {value=1/2} : f32[]; c = add b, x; m64 = mul c, h;";
  for (int n = 32; n > 0; n /= 2) {
    const std::string k = std::to_string(n), from = "m" + std::to_string(2 * n);
    m += "l" + k + " = slice " + from + " {starts=[0], stops=[" + k + "], steps=[1]};" + "r" + k +
         " = slice " + from + " {starts=[" + k + "], stops=[" + std::to_string(2 * n) +
         "], steps=[1]};" + "m" + k + " = mul l" + k + ", r" + k + ";";
  }
  expect_never_equal(m + "return y", m + "z = add y, m1; return z");
}

TEST(RareDifferences, BehindAnInfinity) {
  const std::string in = "x = input : f32[8]; c = input : bool[8]; i = const {value=-inf} : f32[];"
                         "z = const {value=0} : f32[]; o = const {value=1} : f32[]; y = add x, o;";
  expect_never_equal(in + "m = where c, i, x; r = max m, z; return r",
                     in + "m = where c, i, y; r = max m, z; return r");
  expect_never_equal(in + "m = where c, i, x; r = exp m; return r",
                     in + "m = where c, i, y; r = exp m; return r");
}

TEST(RareDifferences, OnePatternOfIndices) {
  const std::string in = "x = input : f32[2]; i = input : i32[16]; y = gather x, i {axis=0};";
  expect_never_equal(
      in + "return y",
      in + "t = tanh x; g = gather t, i {axis=0}; u = slice t {starts=[0], stops=[1], steps=[1]};"
           "v = slice t {starts=[1], stops=[2], steps=[1]};"
           "l = slice g {starts=[0], stops=[8], steps=[1]};"
           "r = slice g {starts=[8], stops=[16], steps=[1]}; a = sub l, u; b = sub r, v;"
           "p0 = mul a, b; l0 = slice p0 {starts=[0], stops=[4], steps=[1]};"
           "r0 = slice p0 {starts=[4], stops=[8], steps=[1]}; p1 = mul l0, r0;"
           "l1 = slice p1 {starts=[0], stops=[2], steps=[1]};"
           "r1 = slice p1 {starts=[2], stops=[4], steps=[1]}; p2 = mul l1, r1;"
           "l2 = slice p2 {starts=[0], stops=[1], steps=[1]};"
           "r2 = slice p2 {starts=[1], stops=[2], steps=[1]}; p3 = mul l2, r2; z = add y, p3;"
           "return z");
}

TEST(RareDifferences, OnePositionOfATable) {
  std::string sines =
      "x = input : f64[65]; i = input : i64[1]; y = gather x, i {axis=0}; s = sin x;"
      "o = sin y; j = iota {axis=0} : f64[65]; c = const {value=41} : f64[];"
      "d = sub o, s; e = eq j, c; one = const {value=1} : f64[];"
      "f = where e, one, d;";
  std::string last = "f";
  for (int n = 64; n > 0; n /= 2) {  // a product of all but one
    const std::string to = std::to_string(n), from = last, size = std::to_string(n / 2);
    if (n == 64) sines += "f0 = slice f {starts=[0], stops=[64], steps=[1]};", last = "f0";
    if (n == 1) break;
    const std::string l = "l" + to, r = "r" + to, p = "p" + to;
    sines += l + " = slice " + last + " {starts=[0], stops=[" + size + "], steps=[1]};" + r +
             " = slice " + last + " {starts=[" + size + "], stops=[" + to + "], steps=[1]};" + p +
             " = mul " + l + ", " + r + ";";
    last = p;
  }
  expect_never_equal("x = input : f64[65]; i = input : i64[1]; y = gather x, i {axis=0}; return y",
                     sines + "z = add y, " + last + "; return z");
}

// True of few numbers; operands of `and` in one order or the other, so that nothing is the same by
// form.
const std::string kRare =
    "u = input : f32[4]; v = input : f32[4]; k = const {value=624001/16384} : f32[];"
    "l = const {value=3265/64} : f32[]; uv = mul u, v; a = eq uv, k;"
    "u_v = add u, v; b = eq u_v, l; z = const {value=0} : f32[];";
const std::string kRareHere = "e = and a, b; r = cast e {dtype=f32};",
                  kRareThere = "e = and b, a; r = cast e {dtype=f32};";

TEST(RareDifferences, AQuotientThatAnotherDecisionHides) {
  const std::string in = "m = input : f32[4]; y = input : f32[4]; w = input : f32[4];" + kRare;
  const std::string hidden = "t = mul w, r; c = gt m, z; f = cast c {dtype=f32};",
                    there = in + kRareThere +
                            "t = mul w, r; c = gt m, z; n = where c, z, y;"
                            "o = add t, n; return o";
  for (const char* q :
       {"q = div t, f;", "g = pow f {exponent=-1}; q = mul t, g;",
        "g = rsqrt f; h = sqr g; q = mul t, h;", "g = relu m; h = div t, g; q = mul h, m;"})
    expect_never_equal(in + kRareHere + hidden + q + "o = where c, q, y; return o", there);
}

TEST(RareDifferences, AnInfinityTimesWhatMayBeNegative) {
  const std::string in = "x = input : f32[4]; y = input : f32[4]; k = const {value=5/4} : f32[];"
                         "e = const {value=1/1048576} : f32[]; p = sub x, k; p2 = sqr p;"
                         "q = sub p2, e;";
  expect_never_equal(
      in + "n = const {value=-inf} : f32[]; o = const {value=1} : f32[]; m = mul n, q;"
           "t = exp m; d = add o, t; i = div y, d; r = add i, q; return r",
      in + "r = add y, q; return r");
}

TEST(RareDifferences, BehindAMaximumOfPadding) {
  const std::string in = "t = input : f32[1,1,4]; c = input : bool[1,1]; y = input : f32[1,1];"
                         "w = input : f32[1,1]; u = input : f32[1,1]; v = input : f32[1,1];" +
                         kRare.substr(kRare.find("k = ")) +
                         "pp = pool_max t {size=[2], low=[2], high=[0], strides=[1]};"
                         "p0 = slice pp {starts=[0,0,0], stops=[1,1,1], steps=[1,1,1]};"
                         "p = reshape p0 {shape=[1,1]};";
  expect_never_equal(in + "o = where c, p, y; return o",
                     in + kRareThere + "q = mul w, r; x = add y, q; o = where c, p, x; return o");
}

TEST(RareDifferences, IntegersOfWhichNoBoundIsKnown) {
  const std::string largest = "x = input : i64[1,16]; m = reduce_max x {axes=[1]};";
  expect_never_equal(largest + "a = cast m {dtype=f64}; r = abs a; return r",
                     largest + "a = abs m; r = cast a {dtype=f64}; return r");
  const std::string rest =
      "x = input : i64[2,64]; y = input : i64[2,64];"
      "o = const {value=1} : i64[]; d = max y, o; q = mod x, d;"
      "m = reduce_min q {axes=[1]}; c = const {value=4611686018427387903} : i64[];";
  expect_never_equal(rest + "r = max m, c; return r",
                     rest + "z = const {value=0} : i64[]; n = mul m, z; r = add n, c; return r");
}

// Where only s = 0 is out of a logarithm's domain, a sum of two squares.
TEST(RareDifferences, ALogarithmBesideAPowerOrAnOperatorOfTheUsers) {
  const std::string in = "x = input : f32[4]; y = input : f32[4]; k = const {value=5/4} : f32[];"
                         "a = sub x, k; b = sub y, k; a2 = sqr a; b2 = sqr b; s = add a2, b2;"
                         "z = const {value=0} : f32[];";
  const std::string more = "l = log s; l0 = mul l, z; w1 = add w, l0; r = add w1, y; return r";
  for (const char* w :
       {"w = pow s {exponent=5/2};", "w = pow s {exponent=1/3};", "w = pow s {exponent=66};",
        "h = const {value=5/2} : f32[]; w = power s, h;"})
    expect_never_equal(in + w + "r = add w, y; return r", in + w + more);
  expect_never_equal(
      in + "r = add x, y; return r",
      in + "c = custom s {name=\"inverse\", value=\"1/x\"}; c0 = mul c, z; q = add x, y;"
           "r = add q, c0; return r");
}

// Degrees beyond the primes: no draw says anything.
// Of integers by 0 a remainder is 0, at one divisor of 2^32.
TEST(RareDifferences, ARemainderByZero) {
  const std::string in = "x = input : i64[4]; y = input : i32[4]; a = const {value=1103515245} : "
                         "i32[]; b = const {value=12345} : i32[]; p = mul y, a; q = add p, b; "
                         "w = cast q {dtype=i64}; o = const {value=0} : i64[]; m = mod x, w; ";
  const std::string other = "z = eq w, o; r = where z, x, m; return r";
  EXPECT_FALSE(compare_programs(in + "return m", in + other).equal());
  EXPECT_FALSE(compare_programs(in + other, in + "return m").equal());
  const std::string zero = "z = eq w, o; r = where z, o, m; return r";
  EXPECT_FALSE(compare_programs(in + "return m", in + zero).refuted());
}

TEST(RareDifferences, DegreesBeyondThePrimes) {
  std::string a = "x = input : f32[4]; a0 = sin x;", b = a;
  for (int i = 0; i < 12; i++) {
    const std::string n = std::to_string(i), next = std::to_string(i + 1);
    a += "a" + next + " = pow a" + n + " {exponent=64};";
    b += "b" + n + " = pow a" + n + " {exponent=32}; a" + next + " = sqr b" + n + ";";
  }
  expect_never_equal(a + "return a12", b + "return a12");
}

TEST(Gathers, AreMovedToInputs) {
  const std::string in = "x = input : f32[9,4]; b = input : f32[4]; i = input : i32[3];";
  expect_equal(in + "g = gather x, i {axis=0}; a = add g, b; t = tanh a; return t",
               in + "a = add x, b; t = tanh a; g = gather t, i {axis=0}; return g");
  expect_equal(in + "g = gather x, i {axis=0}; t = transpose g {perm=[1,0]}; return t",
               in + "t = transpose x {perm=[1,0]}; g = gather t, i {axis=1}; return g");
  const std::string twice = "x = input : f32[9]; i = input : i32[5]; j = input : i32[2,3];";
  // An index that is not picked need not be one.
  EXPECT_FALSE(
      compare_programs(twice + "k = gather i, j {axis=0}; h = gather x, k {axis=0}; return h",
                       twice + "g = gather x, i {axis=0}; h = gather g, j {axis=0}; return h")
          .equal());
  // Nor where the original has no index.
  EXPECT_TRUE(compare_programs(in + "k = cast i {dtype=f32}; return k",
                               in + "k = cast i {dtype=f32}; z = const {value=0} : f32[8];"
                                    "q = gather z, i {axis=0}; r = add k, q; return r")
                  .refuted());
  const std::string square = "x = input : f32[9,9]; i = input : i32[1];";
  EXPECT_FALSE(
      compare_programs(square + "g = gather x, i {axis=0}; r = slice g {starts=[0,0], stops=[1,1], "
                                "steps=[1,1]}; return r",
                       square + "g = gather x, i {axis=1}; r = slice g {starts=[0,0], stops=[1,1], "
                                "steps=[1,1]}; return r")
          .equal());
  EXPECT_FALSE(compare_programs(in + "g = gather x, i {axis=0}; return g",
                                in + "j = neg i; g = gather x, j {axis=0}; return g")
                   .equal());
}

Characters characters_of(const std::string& body) {
  const Graph g = program("x = input : f32[6]; y = input : f32[6];" + body + " return r");
  return characters(g, g, Signs::Character, 1);
}

TEST(Characters, OfRootsDependOnOneAnotherOrNot) {
  const auto dependent = [&](const std::string& body) { return characters_of(body).dependent; };
  EXPECT_EQ(dependent("r = sqrt x;"), 0);
  EXPECT_EQ(dependent("a = sqrt x; b = sqrt y; r = add a, b;"), 0);
  EXPECT_EQ(dependent("a = sqrt x; b = rsqrt x; r = add a, b;"), 0);  // one radicand
  EXPECT_EQ(dependent("r = gelu x;"), 0);                             // √2 is no sign
  EXPECT_EQ(dependent("a = sqr x; r = sqrt a;"), 1);
  EXPECT_EQ(dependent("a = sqr x; b = mul a, y; c = sqrt b; d = sqrt y; r = add c, d;"), 1);
  EXPECT_EQ(dependent("m = mul x, y; a = sqrt x; b = sqrt y; c = sqrt m; d = add a, b;"
                      "r = add d, c;"),
            1);
  // Where relu(x) is 0, nothing is seen of (relu(x)²·y)·y, which is a square.
  EXPECT_GE(dependent("m = relu x; q = sqr m; v = mul q, y; a = sqrt v; b = sqrt y; r = add a, b;"),
            1);
}

TEST(Characters, AreCountedWhereverTheyAre) {
  const auto signs = [&](const std::string& body) { return characters_of(body).signs; };
  EXPECT_EQ(signs("r = relu x;"), 1);
  EXPECT_EQ(signs("a = relu x; b = relu x; r = add a, b;"), 1);
  EXPECT_EQ(signs("r = max x, y;"), 1);
  EXPECT_EQ(signs("a = relu x; r = sum a {axes=[0]};"), 6);
  const std::string two = "a = unsqueeze x {axes=[1]}; b = unsqueeze y {axes=[1]};"
                          "c = concat a, b {axis=1};";
  EXPECT_EQ(signs(two + "r = reduce_max c {axes=[1]};"), 1);
  EXPECT_EQ(signs("c = const {value=47} : f32[]; r = relu c;"), 1);
  EXPECT_EQ(
      signs("k = kernel x grid[x=6] { U = input : f32[6]; t = iter U {imap={x:0}};"
            "h = relu t; o = save h {omap={x:0}} : f32[6]; return o }; r = sum k {axes=[0]};"),
      6);
}

}  // namespace
}  // namespace tessera
