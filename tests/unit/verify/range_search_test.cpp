// Rewrites that leave the range of a format, or lose its digits, where the original is finite and
// accurate; and their neighbours that do not.
#include <cmath>

#include "eval/eval.h"
#include "verify/programs.h"

namespace tessera {
namespace {

std::string with_type(std::string text, const std::string& type) {
  for (size_t at; (at = text.find('T')) != std::string::npos;) text.replace(at, 1, type);
  return text;
}

// `good` keeps what `bad` loses; both stand behind `in`, where T is the dtype.
void expect_only_towards(const std::string& in, const std::string& bad, const std::string& good,
                         const std::vector<std::string>& types) {
  for (const std::string& type : types) {
    SCOPED_TRACE(type + ": " + bad);
    const std::string a = with_type(in + good, type), b = with_type(in + bad, type);
    const Verdict v = compare_programs(a, b);
    ASSERT_TRUE(v.refuted()) << v.str();
    EXPECT_FALSE(v.counterexample().inputs.empty());
    const Verdict back = compare_programs(b, a), same = compare_programs(a, a);
    EXPECT_TRUE(back.equal()) << back.str();
    EXPECT_TRUE(same.equal()) << same.str();
  }
}

const std::vector<std::string> kAllRanges = {"f16", "bf16", "f32", "f64"};

// Rounding explains nearly any error of one element that has few digits, but not those of most.
TEST(RangeSearch, FarFromZero) {
  for (const char* columns : {"2", "6", "64"})
    expect_only_towards(
        std::string("x = input : T[4,") + columns + "]; m = mean x {axes=[1], keepdims=true}; ",
        "q = sqr x; s = mean q {axes=[1], keepdims=true}; p = sqr m; "
        "v = sub s, p; return v",
        "d = sub x, m; q = sqr d; v = mean q {axes=[1], keepdims=true}; return v", kAllRanges);
  expect_only_towards("x = input : f32[4,64]; ",
                      "y = sum x {axes=[1]}; z = cast y {dtype=T}; return z",
                      "y = cast x {dtype=T}; z = sum y {axes=[1]}; return z", {"f64"});
}

TEST(RangeSearch, FarFromZeroAtOtherSpreadsAndOfBothSigns) {
  const std::string rest = "w = add v, e; r = sqrt w; z = div y, r; return z";
  expect_only_towards(
      "x = input : T[4,64]; c = const {value=0.01} : T[]; e = const {value=0.1} : T[]; "
      "y = mul x, c; m = mean y {axes=[1], keepdims=true}; ",
      "q = sqr y; s = mean q {axes=[1], keepdims=true}; p = sqr m; v = sub s, p; " + rest,
      "d = sub y, m; q = sqr d; v = mean q {axes=[1], keepdims=true}; " + rest, {"bf16"});
  expect_only_towards("x = input : f64[4,64]; ",
                      "y = cast x {dtype=T}; z = sum y {axes=[1]}; return z",
                      "y = sum x {axes=[1]}; z = cast y {dtype=T}; return z", {"f32", "bf16"});
}

// The middle error of few sums is a matter of chance: one of five was refuted.
TEST(RangeSearch, AnotherOrderOfFewSums) {
  const std::string in = "x = input : f64[100]; y = input : f64[100]; ";
  VerifyOptions options;
  for (uint64_t seed = 0; seed < 40; seed++) {
    options.seed = seed;
    const Verdict v = verify(program(in + "z = mul x, y; s = sum z {axes=[0]}; return s"),
                             program(in + "a = reshape x {shape=[1,100]}; "
                                          "b = reshape y {shape=[100,1]}; s = matmul a, b; "
                                          "z = reshape s {shape=[]}; return z"),
                             options);
    EXPECT_TRUE(v.equal()) << seed << ": " << v.str();
  }
}

// What is looked at far from zero takes nothing from the ends of the range.
TEST(RangeSearch, FewResultsOfManyElements) {
  expect_only_towards("x = input : T[16384]; y = input : T[16384]; two = const {value=2} : T[]; ",
                      "a = add x, y; s = div a, two; z = reduce_max s {axes=[0]}; return z",
                      "a = div x, two; b = div y, two; s = add a, b; "
                      "z = reduce_max s {axes=[0]}; return z",
                      {"f32"});
}

TEST(RangeSearch, FactorsAndTheirInverses) {
  expect_only_towards("x = input : T[4,8]; c = const {value=8} : T[]; ",
                      "y = mul x, c; z = div y, c; return z",
                      "y = div x, c; z = mul y, c; return z", kAllRanges);
  // A long way down and up again.
  expect_only_towards("x = input : T[8]; c = const {value=1e+30} : T[]; ",
                      "y = div x, c; z = mul y, c; return z", "return x", {"bf16", "f32"});
}

// Accurate beside a constant, where its expansion has no digits left.
TEST(RangeSearch, BesideConstants) {
  const std::string c = "c = const {value=1000} : T[]; d = const {value=2000} : T[]; "
                        "e = const {value=1000000} : T[]; ";
  const std::string square = "u = sub x, c; v = sqr u; ",
                    expanded = "a = sqr x; b = mul x, d; u = sub a, b; v = add u, e; ";
  for (const std::string& after : {std::string("return v"), std::string("z = sqrt v; return z"),
                                   std::string("m = mean v {axes=[1]}; z = sqrt m; return z")})
    for (const char* type : {"f32", "f64"}) {
      const std::string in = "x = input : T[4,6]; " + c;
      EXPECT_FALSE(compare_programs(with_type(in + square + after, type),
                                    with_type(in + expanded + after, type))
                       .equal())
          << after;
    }
  // Of another in each column.
  const std::string in =
      "x = input : f32[5,2]; c = const {value=640} : f32[]; d = const {value=360} "
      ": f32[]; p = slice x {starts=[0,0], stops=[5,1], steps=[1,1]}; "
      "q = slice x {starts=[0,1], stops=[5,2], steps=[1,1]}; ";
  EXPECT_FALSE(
      compare_programs(
          in + "a = sub p, c; b = sub q, d; e = sqr a; f = sqr b; g = add e, f; h = sqrt g; return "
               "h",
          in +
              "c2 = const {value=1280} : f32[]; d2 = const {value=720} : f32[]; k = const "
              "{value=539200} : f32[]; a = sqr p; b = mul p, c2; e = sqr q; f = mul q, d2; g = sub "
              "a, b; l = sub e, f; m = add g, l; n = add m, k; h = sqrt n; return h")
          .equal());
  const std::string twice = "x = input : f32[4,6]; c = const {value=1000} : f32[]; two = const "
                            "{value=2} : f32[]; ";
  EXPECT_TRUE(compare_programs(twice + "a = sub x, c; z = mul a, two; return z",
                               twice + "a = mul x, two; d = mul c, two; z = sub a, d; return z")
                  .equal());
}

TEST(RangeSearch, ExponentialsOfOpposedNumbers) {
  const std::string in = "x = input : f16[6]; y = input : f16[6]; ";
  for (uint64_t seed = 1; seed <= 6; seed++) {
    VerifyOptions options;
    options.seed = seed;
    EXPECT_FALSE(verify(program(in + "s = add x, y; z = exp s; return z"),
                        program(in + "a = exp x; b = exp y; z = mul a, b; return z"), options)
                     .equal());
  }
}

// One result that overflows excuses no other.
TEST(RangeSearch, ResultsBesideOneThatOverflows) {
  const std::string in = "x = input : f16[2,2]; one = const {value=1} : f16[]; ",
                    out = "m = mean u {axes=[0]}; p = pow m {exponent=3}; return p, m";
  const Verdict v =
      compare_programs(in + "u = mul x, one; " + out,
                       in + "y = add x, one; e = eq y, x; d = add x, x; u = where e, d, x; " + out);
  EXPECT_FALSE(v.equal()) << v.str();
}

TEST(RangeSearch, HalvesBeforeOrAfterTheSum) {
  expect_only_towards("a = input : T[16]; b = input : T[16]; c = const {value=2} : T[]; ",
                      "s = add a, b; y = div s, c; return y",
                      "p = div a, c; q = div b, c; y = add p, q; return y", kAllRanges);
}

TEST(RangeSearch, SumsBeforeTheScale) {
  const std::string in = "x = input : T[4,64]; c = const {value=0.015625} : T[]; ";
  const std::string after = "s = sum x {axes=[1]}; y = mul s, c; return y",
                    before = "p = mul x, c; y = sum p {axes=[1]}; return y";
  expect_only_towards(in, after, before, {"f16"});
  // Where the range is wide, sums may reach overflow sooner by the number of their terms.
  expect_equal(with_type(in + before, "f32"), with_type(in + after, "f32"));
}

TEST(RangeSearch, ProductsBeforeQuotients) {
  const std::string two = "x = input : T[16]; y = input : T[16]; ";
  expect_only_towards(two, "a = sqr x; b = sqr y; z = div a, b; return z",
                      "q = div x, y; z = sqr q; return z", {"f32", "f64"});
  expect_only_towards(two, "q = mul y, y; z = div x, q; return z",
                      "q = div x, y; z = div q, y; return z", {"f32"});
  expect_only_towards(two + "v = input : T[16]; w = input : T[16]; ",
                      "p = mul x, y; q = mul v, w; z = div p, q; return z",
                      "p = div x, v; q = div y, w; z = mul p, q; return z", {"f16"});
}

TEST(RangeSearch, NormsWithoutScaling) {
  const std::string in = "x = input : f32[8]; y = input : f32[8]; ";
  expect_refuted(in + "a = abs x; b = abs y; m = max a, b; c = div x, m; d = div y, m; e = sqr c;"
                      "f = sqr d; s = add e, f; r = sqrt s; z = mul r, m; return z",
                 in + "e = sqr x; f = sqr y; s = add e, f; z = sqrt s; return z");
}

TEST(RangeSearch, ExponentialsOfWhatIsSmallAtFirst) {
  const std::string in = "x = input : T[3,8]; c = const {value=1e-05} : T[]; z = mul x, c; ",
                    tail = "s = sum e {axes=[1], keepdims=true}; y = div e, s; return y";
  expect_only_towards(in, "e = exp z; " + tail,
                      "m = reduce_max z {axes=[1], keepdims=true}; d = sub z, m; e = exp d; " +
                          tail,
                      {"bf16", "f32", "f64"});
}

TEST(RangeSearch, WhatIsAbsorbedBehindABranch) {
  expect_only_towards(
      "x = input : T[16]; t = const {value=10000000} : T[]; zero = const {value=0} : T[];"
      "three = const {value=3} : T[]; d = sub x, t; m = max d, zero; y = mul m, three; ",
      "big = const {value=1e+20} : T[]; u = add y, big; v = sub u, big; return v", "return y",
      {"f32", "f64"});
}

TEST(RangeSearch, VarianceAtAnyMean) {
  expect_only_towards(
      "x = input : T[4,16]; m = mean x {axes=[1], keepdims=true}; ",
      "s = sqr x; a = mean s {axes=[1], keepdims=true}; b = sqr m; y = sub a, b; return y",
      "d = sub x, m; s = sqr d; y = mean s {axes=[1], keepdims=true}; return y",
      {"f16", "f32", "f64"});
}

// At the edge of the original's own range the order of operations decides which is first.
// Rounding of the large terms would explain that all digits go, but the original's cancel exactly.
TEST(RangeSearch, OfTermsThatCancelExactlyNothingIsLost) {
  const std::string in = "x = input : f32[8,16]; one = const {value=1} : f32[]; "
                         "m = reduce_max x {axes=[1], keepdims=true}; ";
  for (const char* spec : {"d = sub m, m; y = add d, one; z = squeeze y {axes=[1]}; return z",
                           "d = sub x, m; e = exp d; s = sum e {axes=[1], keepdims=true}; "
                           "p = div e, s; z = sum p {axes=[1]}; return z"}) {
    const Verdict v = compare_programs(
        in + spec, in + "a = add m, one; y = sub a, m; z = squeeze y {axes=[1]}; return z");
    EXPECT_TRUE(v.refuted()) << spec << v.str();
  }
  // Terms that are lost in the original, too, or in the original alone.
  const std::string two = "x = input : f32[8]; y = input : f32[8]; a = add x, y; ";
  EXPECT_TRUE(compare_programs(two + "z = sub a, x; return z", two + "return y").equal());
  EXPECT_TRUE(
      compare_programs(two + "s = sum a {axes=[0]}; t = sum x {axes=[0]}; z = sub s, t; return z",
                       two + "z = sum y {axes=[0]}; return z")
          .equal());
}

TEST(RangeSearch, EdgesOfTheOriginalAreNoFaults) {
  for (const std::string type : {"f32", "f64"}) {
    expect_equal(
        with_type("a = input : T[4,7]; b = input : T[7,5]; c = input : T[5,3]; p = matmul a, b;"
                  "y = matmul p, c; return y",
                  type),
        with_type("a = input : T[4,7]; b = input : T[7,5]; c = input : T[5,3]; p = matmul b, c;"
                  "y = matmul a, p; return y",
                  type));
    const std::string sum = "a = input : T[4,6]; b = input : T[4,6]; c = input : T[4,6]; ";
    const std::string apart = sum + "p = mul a, c; q = mul b, c; y = add p, q; return y",
                      joined = sum + "p = add a, b; y = mul p, c; return y";
    expect_equal(with_type(apart, type), with_type(joined, type));
    expect_equal(with_type(joined, type), with_type(apart, type));
    const std::string norm = "x = input : T[4,14]; w = input : T[14,5]; s = sqr x;"
                             "m = mean s {axes=[1], keepdims=true}; r = sqrt m; ";
    expect_equal(with_type(norm + "n = div x, r; y = matmul n, w; return y", type),
                 with_type(norm + "p = matmul x, w; y = div p, r; return y", type));
  }
}

// Where a sum overflows, what follows may be right by luck: 1 / inf is 0, inf - inf is nothing.
TEST(RangeSearch, SaturationIsNoMeasure) {
  const std::string in = "x = input : f32[6,6,6]; ",
                    out = "q = sqr t; c = const {value=1e-05} : f32[]; a = add q, c; y = rsqrt a; "
                          "return y";
  expect_equal(in + "t = matmul x, x; " + out,
               in +
                   "a1 = slice x {starts=[0,0,0], stops=[6,6,4], steps=[1,1,1]};"
                   "b1 = slice x {starts=[0,0,0], stops=[6,4,6], steps=[1,1,1]};"
                   "a2 = slice x {starts=[0,0,4], stops=[6,6,6], steps=[1,1,1]};"
                   "b2 = slice x {starts=[0,4,0], stops=[6,6,6], steps=[1,1,1]};"
                   "p1 = matmul a1, b1; p2 = matmul a2, b2; t = add p1, p2; " +
                   out);
}

TEST(RangeSearch, WideEvaluationMovesWholeElements) {
  const Graph g = program(
      "x = input : f64[3,4]; i = iota {axis=0} : i64[4]; a = gather x, i {axis=1};"
      "b = concat a, x {axis=0}; c = transpose b {perm=[1,0]}; d = reshape c {shape=[2,12]};"
      "e = pad d {low=[1,0], high=[0,2]}; f = triu e; h = repeat f {repeats=[2,1]}; return h");
  std::vector<double> values;
  for (int n = 1; n <= 12; n++) values.push_back(1.0 / n);
  const std::vector<NDArray> in = {NDArray::of(DType::F64, {3, 4}, values)};
  EvalOptions wide;
  wide.precision = Precision::Wide;
  const WithMagnitude w = eval_with_magnitude(g, in, wide)[0];
  EXPECT_EQ(w.value.reals, eval(g, in)[0].reals);
  EXPECT_EQ(w.rest, std::vector<double>(w.value.reals.size(), 0));
}

TEST(RangeSearch, DoublesAreMeasuredWithMoreThanDoubles) {
  const Graph third = program("x = input : f64[1]; c = const {value=3} : f64[]; y = div x, c; "
                              "return y");
  const std::vector<NDArray> one = {NDArray::of(DType::F64, {1}, {1})};
  EvalOptions wide;
  wide.precision = Precision::Wide;
  const WithMagnitude y = eval_with_magnitude(third, one, wide)[0];
  const double error = y.error(0, eval(third, one)[0].reals[0]);
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0x1p-54);
  // An original that rounds does not say that it is exact.
  const Verdict v = verify(third, third);
  ASSERT_TRUE(v.equal()) << v.str();
  double most = 0;
  for (const GateFamily& f : v.certificate().gate) most = std::fmax(most, f.spec_error);
  EXPECT_GT(most, 0x1p-56);
  EXPECT_LT(most, 0x1p-52);
}

// All elements of one draw share the error of the one sum that they are divided by.
TEST(RangeSearch, OneUnluckySumIsNoFault) {
  const std::string in = "x = input : f32[100]; one = const {value=1} : f32[]; ";
  const std::string out = "r = sqrt m; d = div one, r; z = mul x, d; return z";
  const Graph a = program(in + "s = sqr x; m = sum s {axes=[0]}; " + out);
  const Graph b = program(in +
                          "p = unsqueeze x {axes=[0]}; q = unsqueeze x {axes=[1]}; "
                          "s = matmul p, q; m = squeeze s {axes=[0,1]}; " +
                          out);
  VerifyOptions o;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    o.seed = seed;
    const Verdict v = verify(a, b, o);
    ASSERT_TRUE(v.equal()) << seed << ": " << v.str();
  }
}

// An original that saturates is finite: terms that cancel beyond the range excuse no rewrite that
// alone has them.
TEST(RangeSearch, SaturatedOriginalsAreFinite) {
  const auto refuse = [](const std::string& a, const std::string& b, const std::string& type) {
    SCOPED_TRACE(a + " -> " + b);
    const Verdict v = compare_programs(with_type(a, type), with_type(b, type));
    EXPECT_TRUE(v.refuted()) << v.str();
  };
  const std::string two = "x = input : T[8]; y = input : T[8]; ";
  for (const char* type : {"f16", "f32"})
    refuse(two + "d = sub x, y; p = mul x, d; z = tanh p; return z",
           two + "q = sqr x; r = mul x, y; d = sub q, r; z = tanh d; return z", type);
  refuse(two + "c = const {value=0} : T[]; d = sub x, y; s = add x, y; p = mul d, s; "
               "z = gt p, c; return z",
         two + "q = sqr x; r = sqr y; z = gt q, r; return z", "f32");
  refuse(two + "d = sub x, y; p = mul x, d; z = sigmoid p; return z",
         two + "q = sqr x; r = mul x, y; d = sub q, r; z = sigmoid d; return z", "f32");
}

// Sums that are cut off are scaled together, too.
TEST(RangeSearch, QuotientsOfNorms) {
  const std::string norms = "x = input : T[8,16]; y = input : T[8,16]; p = mul x, y; "
                            "n = sum p {axes=[1]}; q = sqr x; s = sum q {axes=[1]}; r = sqr y; "
                            "t = sum r {axes=[1]}; ";
  for (const char* type : {"f32", "f64"}) {
    const Verdict v = compare_programs(
        with_type(norms + "a = sqrt s; b = sqrt t; d = mul a, b; z = div n, d; return z", type),
        with_type(norms + "a = mul s, t; d = sqrt a; z = div n, d; return z", type));
    EXPECT_FALSE(v.equal()) << type;
  }
}

// Their terms cancel where an input's signs are waves, whose tails are none.
TEST(RangeSearch, WideSumsOfProductsAreNoNarrowOnes) {
  struct Pair {
    const char *inputs, *wide, *narrow;
  };
  const std::vector<Pair> pairs = {
      {"x = input : f32[8,64]; w = input : f32[64,8]; ", "y = matmul a, b; ", "z = matmul x, w; "},
      {"x = input : f32[8,21]; w = input : f32[21,8]; ", "y = matmul a, b; ", "z = matmul x, w; "},
      {"x = input : f32[40,8]; w = input : f32[40,8]; ", "m = mul a, b; y = sum m {axes=[0]}; ",
       "m = mul x, w; z = sum m {axes=[0]}; "},
      {"x = input : f32[64]; w = input : f32[64]; ", "m = mul a, b; y = sum m {axes=[0]}; ",
       "m = mul x, w; z = sum m {axes=[0]}; "},
      {"x = input : f32[16,32]; w = input : f32[1]; ",
       "t = transpose a {perm=[1,0]}; y = matmul a, t; ",
       "t = transpose x {perm=[1,0]}; z = matmul x, t; "},
  };
  const std::string casts = "a = cast x {dtype=f64}; b = cast w {dtype=f64}; ";
  for (const Pair& p : pairs) {
    const std::string in = p.inputs;
    const Verdict v = compare_programs(in + casts + p.wide + "z = cast y {dtype=f32}; return z",
                                       in + p.narrow + "return z");
    EXPECT_TRUE(v.refuted()) << p.inputs << v.str();
  }
  // Another order in the wide type is as good.
  const std::string in = "x = input : f32[8,64]; w = input : f32[64,8]; v = input : f32[8,8]; "
                         "a = cast x {dtype=f64}; b = cast w {dtype=f64}; c = cast v {dtype=f64}; ";
  const Verdict same =
      compare_programs(in + "m = matmul a, b; y = matmul m, c; z = cast y {dtype=f32}; return z",
                       in + "m = matmul b, c; y = matmul a, m; z = cast y {dtype=f32}; return z");
  EXPECT_TRUE(same.equal()) << same.str();
}

TEST(NumericGate, BeyondAPoleIsItsSign) {
  const std::string in = "x = input : f32[8]; y = input : f32[8]; one = const {value=1} : f32[]; "
                         "hi = const {value=10} : f32[]; lo = const {value=-10} : f32[]; ";
  const std::string clip = "a = max p, lo; z = min a, hi; return z";
  const Verdict v = compare_programs(in + "d = sub y, x; p = div one, d; " + clip,
                                     in + "d = sub x, y; q = div one, d; p = neg q; " + clip);
  EXPECT_TRUE(v.refuted()) << v.str();
  const Verdict same =
      compare_programs(in + "p = div x, y; " + clip, in + "q = div one, y; p = mul x, q; " + clip);
  EXPECT_TRUE(same.equal()) << same.str();
}

TEST(NumericGate, SumsOfIntegersAreNotThoseOfFloats) {
  const std::string in = "x = input : i64[4,16]; y = input : i64[4,16]; s = sum x {axes=[1]}; "
                         "t = sum y {axes=[1]}; ";
  for (const char* c : {"gt", "eq"}) {
    const Verdict v = compare_programs(
        in + "z = " + c + " s, t; return z",
        in + "a = cast s {dtype=f64}; b = cast t {dtype=f64}; z = " + c + " a, b; return z");
    EXPECT_TRUE(v.refuted()) << v.str();
  }
  const std::string product = "x = input : i32[4,8]; y = input : i32[8,4]; w = input : i32[8,4]; "
                              "s = matmul x, y; t = matmul x, w; ";
  const Verdict v = compare_programs(
      product + "z = gt s, t; return z",
      product + "a = cast s {dtype=f32}; b = cast t {dtype=f32}; z = gt a, b; return z");
  EXPECT_TRUE(v.refuted()) << v.str();
  EXPECT_TRUE(compare_programs(in + "z = gt s, t; return z", in + "z = lt t, s; return z").equal());
}

}  // namespace
}  // namespace tessera
