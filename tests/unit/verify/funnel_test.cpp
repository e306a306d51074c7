#include "verify/filter.h"
#include "verify/funnel.h"

#include <cmath>

#include "ir/validate.h"
#include "verify/bench/random_program.h"
#include "verify/programs.h"

namespace tessera {
namespace {

const char* kRmsNorm =
    "x = input : f32[4,6]; w = input : f32[6,5]; s = sqr x : f32[4,6];"
    "m = mean s {axes=[1], keepdims=true} : f32[4,1]; e = const {value=1e-05} : f32[];"
    "v = add m, e : f32[4,1]; r = sqrt v : f32[4,1]; n = div x, r : f32[4,6];"
    "y = matmul n, w : f32[4,5]; return y";
const char* kRmsNormLate =
    "x = input : f32[4,6]; w = input : f32[6,5]; s = sqr x : f32[4,6];"
    "m = mean s {axes=[1], keepdims=true} : f32[4,1]; e = const {value=1e-05} : f32[];"
    "v = add m, e : f32[4,1]; r = sqrt v : f32[4,1]; p = matmul x, w : f32[4,5];"
    "y = div p, r : f32[4,5]; return y";
const char* kRmsNormEpsOutside =
    "x = input : f32[4,6]; w = input : f32[6,5]; s = sqr x : f32[4,6];"
    "m = mean s {axes=[1], keepdims=true} : f32[4,1]; e = const {value=1e-05} : f32[];"
    "q = sqrt m : f32[4,1]; r = add q, e : f32[4,1]; p = matmul x, w : f32[4,5];"
    "y = div p, r : f32[4,5]; return y";

const char* kSoftmaxProgram =
    "x = input : f32[3,8]; m = reduce_max x {axes=[1], keepdims=true} : f32[3,1];"
    "d = sub x, m : f32[3,8]; e = exp d : f32[3,8]; s = sum e {axes=[1], keepdims=true} : f32[3,1];"
    "y = div e, s : f32[3,8]; return y";

TEST(Funnel, CertificateSaysWhatWasDone) {
  const Verdict v = compare_programs(kRmsNorm, kRmsNormLate);
  ASSERT_TRUE(v.equal()) << v.str();
  const Certificate& c = v.certificate();
  EXPECT_LE(c.error_log2, -40);
  EXPECT_EQ(c.basis, "proved");
  EXPECT_EQ(c.seed, 20260101u);
  EXPECT_GE(c.min_draws, 2);
  EXPECT_GE(c.draws.size(), 3u);
  EXPECT_EQ(c.draws[0].field, "p31");
  EXPECT_EQ(c.draws.back().field, "p61");
  for (const FieldDraw& d : c.draws) EXPECT_EQ(d.elements, 20);
  EXPECT_GE(c.gate.size(), 10u);
  for (const GateFamily& g : c.gate) EXPECT_LE(g.worst_ratio, 1) << g.family;
  EXPECT_EQ(Certificate::parse(c.str()), c);
}

TEST(Funnel, SameSeedSameCertificateForAnyThreadCount) {
  VerifyOptions one, two;
  one.seed = two.seed = 5;
  two.threads = 3;
  const Graph a = program(kRmsNorm), b = program(kRmsNormLate);
  EXPECT_EQ(verify(a, b, one).str(), verify(a, b, two).str());
}

TEST(Funnel, SeedsComeFromTheSystemOtherwise) {
  const Graph a = program(kRmsNorm);
  const Verdict u = verify(a, a), v = verify(a, a);
  ASSERT_TRUE(u.equal() && v.equal());
  EXPECT_NE(u.certificate().seed, v.certificate().seed);
}

TEST(Funnel, RecheckReplaysAndDrawsAfresh) {
  const Graph a = program(kRmsNorm), b = program(kRmsNormLate), wrong = program(kRmsNormEpsOutside);
  const Verdict v = verify(a, b);
  ASSERT_TRUE(v.equal());
  const Certificate c = Certificate::parse(v.certificate().str());
  EXPECT_TRUE(recheck(c, a, b).ok) << recheck(c, a, b).what;
  EXPECT_FALSE(recheck(c, a, wrong).ok);
  EXPECT_FALSE(recheck(c, b, a).ok);
  // A forged certificate for a wrong rewrite does not pass: hashes fit, the draws do not.
  Certificate forged = c;
  forged.candidate_hash = structural_hash(wrong);
  EXPECT_FALSE(recheck(forged, a, wrong).ok);
  forged = c;
  forged.draws[0].elements--;
  EXPECT_FALSE(recheck(forged, a, b).ok);
  forged = c;
  forged.draws.clear();
  EXPECT_FALSE(recheck(forged, a, b).ok);
  forged = c;
  forged.error_log2 = -3;
  EXPECT_FALSE(recheck(forged, a, b).ok);
  // Nor does one that claims more than was shown.
  for (const auto& claim : std::initializer_list<void (*)(Certificate&)>{
           [](Certificate& f) { f.error_log2 = -5000; },
           [](Certificate& f) { f.inputs[0] = "X f32[1048576]"; },
           [](Certificate& f) { f.coverage = "all shapes"; },
           [](Certificate& f) { f.basis = "proved, for ever"; }}) {
    forged = c;
    claim(forged);
    EXPECT_FALSE(recheck(forged, a, b).ok) << forged.str().substr(0, 200);
  }
  const Graph odd = program("x = input : f64[4]\n n = neg x\n y = custom n {name=\"f\", "
                            "value=\"x*x*x\", law=\"odd\"}\n return y"),
              moved = program("x = input : f64[4]\n y = custom x {name=\"f\", value=\"x*x*x\", "
                              "law=\"odd\"}\n n = neg y\n return n");
  Certificate assuming = verify(odd, moved).certificate();
  ASSERT_FALSE(assuming.assumptions.empty());
  EXPECT_TRUE(recheck(assuming, odd, moved).ok);
  assuming.assumptions.clear();
  EXPECT_FALSE(recheck(assuming, odd, moved).ok);
}

TEST(Funnel, OnlyEqualMakesVerified) {
  const Graph a = program(kRmsNorm);
  const Acceptance good = accept(a, program(kRmsNormLate)),
                   bad = accept(a, program(kRmsNormEpsOutside));
  ASSERT_TRUE(good.verified.has_value());
  EXPECT_EQ(good.verified->certificate(), good.verdict.certificate());
  EXPECT_TRUE(good.verified->graph() == program(kRmsNormLate));
  EXPECT_FALSE(bad.verified.has_value());
  EXPECT_TRUE(bad.verdict.refuted());
}

// How many channels there are shows in results, also of programs compared on few tiles.
TEST(Funnel, ChannelsOfConvolutionsAreCounted) {
  const std::string weights = "one = const {value=1} : f32[];"
                              "w = broadcast one {shape=[4,64,1,1]} : f32[4,64,1,1];"
                              "x = input : f32[1,64,6,6];";
  const Graph spec = program(weights + "z = add x, one : f32[1,64,6,6];"
                                       "y = conv z, w : f32[1,4,6,6]; return y");
  const auto plus = [&](int n) {
    return program(weights + "c = conv x, w : f32[1,4,6,6]; k = const {value=" + std::to_string(n) +
                   "} : f32[]; y = add c, k : f32[1,4,6,6]; return y");
  };
  VerifyOptions options;
  options.seed = 5;
  options.whole_cost = 0;
  EXPECT_TRUE(verify(spec, plus(2), options).refuted());
  const Verdict right = verify(spec, plus(64), options);
  EXPECT_TRUE(right.equal()) << right.str();
}

TEST(Funnel, InterfaceComesFirst) {
  const Verdict v = compare_programs("x = input : f32[2]; return x",
                                     "x = input : f32[2]; y = input : f32[2]; return x");
  ASSERT_TRUE(v.refuted());
  EXPECT_EQ(v.counterexample().kind, Difference::Interface);
  EXPECT_EQ(v.counterexample().what, "the original has 1 input, the rewrite 2");
  EXPECT_EQ(compare_programs("x = input : f32[2]; return x", "x = input : f64[2]; return x")
                .counterexample()
                .what,
            "input 0 is f32[2] in the original and f64[2] in the rewrite");
}

TEST(Funnel, BudgetAndCancelAreUnknown) {
  const Graph a = program(kRmsNorm), b = program(kRmsNormLate);
  VerifyOptions options;
  options.max_macs = 10;
  EXPECT_EQ(verify(a, b, options).why_unknown().reason, UnknownReason::Budget);
  options.max_macs = 1'000'000;
  const std::atomic<bool> cancel = true;
  options.cancel = &cancel;
  EXPECT_EQ(verify(a, b, options).why_unknown().reason, UnknownReason::Cancelled);
}

TEST(Funnel, TimeAllowedEndsAsUnknown) {
  const Graph g =
      program("x = input : f32[256,256]; y = matmul x, x; z = matmul y, x; "
              "a = matmul z, y; b = matmul a, z; c = matmul b, a; d = matmul c, b; return d");
  VerifyOptions options;
  options.whole_cost = INFINITY;  // far more than is allowed
  options.seconds = 0.002;
  Verifier late(g, options);
  for (int again = 0; again < 2; again++) {
    const Verdict v = late.verify(g);
    ASSERT_TRUE(v.unknown());
    EXPECT_EQ(v.why_unknown().reason, UnknownReason::Time);
    EXPECT_NE(v.why_unknown().what.find("under way: "), std::string::npos);
  }
  const std::atomic<bool> cancel = true;  // the caller's wish counts first
  options.cancel = &cancel;
  EXPECT_EQ(verify(g, g, options).why_unknown().reason, UnknownReason::Cancelled);
  // Time to spare changes nothing, and steps are told.
  const Graph a = program(kRmsNorm), b = program(kRmsNormLate);
  VerifyOptions plenty;
  plenty.seed = 3;
  const std::string unhurried = verify(a, b, plenty).str();
  std::vector<std::string> steps;
  plenty.seconds = 1e6;
  plenty.progress = [&](const std::string& step) { steps.push_back(step); };
  EXPECT_EQ(verify(a, b, plenty).str(), unhurried);
  EXPECT_EQ(steps.at(0), "field draw 1");
  EXPECT_EQ(steps.back().substr(0, 13), "real inputs: ");
}

TEST(Funnel, UnshiftedSoftmaxOverflows) {
  const char* unshifted =
      "x = input : f32[3,8]; e = exp x : f32[3,8];"
      "s = sum e {axes=[1], keepdims=true} : f32[3,1]; y = div e, s : f32[3,8]; return y";
  const Verdict v = compare_programs(kSoftmaxProgram, unshifted);
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_NE(v.counterexample().kind, Difference::Value);
  // The other way round is an improvement, defined at more inputs than the original.
  const Verdict better = compare_programs(unshifted, kSoftmaxProgram);
  EXPECT_TRUE(better.equal()) << better.str();
}

TEST(Funnel, OnlineSoftmaxIsSoftmax) {
  expect_equal(
      "x = input : f32[3,8]; w = input : f32[8,5]; m = reduce_max x {axes=[1], keepdims=true} : "
      "f32[3,1];"
      "d = sub x, m : f32[3,8]; e = exp d : f32[3,8]; s = sum e {axes=[1], keepdims=true} : "
      "f32[3,1];"
      "p = div e, s : f32[3,8]; y = matmul p, w : f32[3,5]; return y",
      "x = input : f32[3,8]; w = input : f32[8,5];"
      "y = kernel x, w grid[x=2] loops[i=3] {; a = input : f32[3,8]; b = input : f32[8,5];"
      "  t = iter a {imap={x:0}, fmap={i:1}} : f32[2,3]; u = iter b {fmap={i:0}} : f32[3,5];"
      "  m = reduce_max t {axes=[1], keepdims=true} : f32[2,1]; d = sub t, m : f32[2,3];"
      "  e = exp d : f32[2,3]; s = sum e {axes=[1], keepdims=true} : f32[2,1]; v = matmul e, u : "
      "f32[2,5];"
      "  n = accum_rescale v, m {loops=[0]} : f32[2,5]; z = accum_rescale s, m {loops=[0]} : "
      "f32[2,1];"
      "  q = div n, z : f32[2,5]; r = save q {omap={x:0}} : f32[3,5]; return r; } : f32[3,5]; "
      "return y");
}

// The rewrite looks at the size of scores, which the original only exponentiates, and has one root
// of a product where the original has one per row and one per column: inputs must be drawn for
// both.
TEST(Funnel, RootsOfProductsOfNorms) {
  const std::string head = R"(graph qknorm {
  Q = input : f32[16,16]
  K = input : f32[16,24]
  V = input : f32[24,4]
  e16 = const {value=16/1000000} : f32[]
  c16 = const {value=16} : f32[]
  k2 = sqr K
  km = sum k2 {axes=[0], keepdims=true}
  ke = add km, e16
  q2 = sqr Q
  qm = sum q2 {axes=[1], keepdims=true}
  qe = add qm, e16
  s0 = matmul Q, K
)";
  const Graph spec = parse(head + R"(  kn = sqrt ke
  qn = sqrt qe
  s1 = div s0, kn
  s2 = div s1, qn
  s = mul s2, c16
  e = exp s
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})");
  const Graph shifted = parse(head + R"(  r = mul qe, ke
  n = rsqrt r
  s1 = mul s0, n
  s = mul s1, c16
  m = reduce_max s {axes=[1], keepdims=true}
  c = sub s, m
  e = exp c
  d = sum e {axes=[1], keepdims=true}
  p = div e, d
  O = matmul p, V
  return O
})");
  VerifyOptions options;
  for (uint64_t seed : {1, 2, 3}) {
    options.seed = seed;
    const Verdict v = verify(spec, shifted, options);
    // Equal over the reals; refused in the end, by the gate, for r overflows at 2^32.
    ASSERT_TRUE(v.refuted()) << v.str();
    EXPECT_EQ(v.counterexample().kind, Difference::Precision) << v.str();
  }
}

TEST(Funnel, LostPrecisionIsRefused) {
  const Verdict v = compare_programs(
      "x = input : f32[4,9]; y = sum x {axes=[1]} : f32[4]; return y",
      "x = input : f32[4,9]; h = cast x {dtype=f16} : f16[4,9]; b = cast h {dtype=f32} : f32[4,9];"
      "y = sum b {axes=[1]} : f32[4]; return y");
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Precision);
}

TEST(Funnel, OnePassVarianceIsRefused) {
  // E[x²] − E[x]² is equal over the reals and useless for data with a large mean.
  const Verdict v = compare_programs(
      "x = input : f32[4,64]; m = mean x {axes=[1], keepdims=true} : f32[4,1]; d = sub x, m : "
      "f32[4,64];"
      "s = sqr d : f32[4,64]; y = mean s {axes=[1]} : f32[4]; r = sqrt y : f32[4]; return r",
      "x = input : f32[4,64]; s = sqr x : f32[4,64]; a = mean s {axes=[1]} : f32[4];"
      "m = mean x {axes=[1]} : f32[4]; b = sqr m : f32[4]; y = sub a, b : f32[4]; r = sqrt y : "
      "f32[4]; return r");
  EXPECT_FALSE(v.equal()) << v.str();
}

TEST(Funnel, BoundaryOfAComparison) {
  expect_refuted(
      "x = input : f32[6]; y = input : f32[6]; c = lt x, y : bool[6]; z = where c, x, y : f32[6];"
      "e = eq x, y : bool[6]; o = cast e {dtype=f32} : f32[6]; r = add z, o : f32[6]; return r",
      "x = input : f32[6]; y = input : f32[6]; c = lt x, y : bool[6]; z = where c, x, y : f32[6];"
      "e = const : f32[6]; r = add z, e : f32[6]; return r");
  const char* text = "x = input : f32[6]; y = input : f32[6]; c = %s x, y : bool[6]; return c";
  char lt[128], le[128];
  std::snprintf(lt, sizeof lt, text, "lt");
  std::snprintf(le, sizeof le, text, "le");
  expect_refuted(lt, le);
  expect_equal(lt, lt);
}

// v/w and w/v have one sign but where v = 0, which needs a whole row of zeros.
TEST(Funnel, BoundaryOfAQuotient) {
  auto program = [](const std::string& quotient) {
    return parse("graph g {\n  x = input : f32[3,9]\n  y = input : f32[3,1]\n"
                 "  a = abs x\n  v = sum a {axes=[1], keepdims=true}\n  s = sqr y\n"
                 "  one = const {value=1} : f32[]\n  w = add s, one\n  q = div " +
                 quotient +
                 "\n  zero = const : f32[]\n  c = le q, zero\n  z = where c, v, y\n"
                 "  return z\n}\n");
  };
  VerifyOptions options;
  for (options.seed = 1; *options.seed <= 8; ++*options.seed) {
    EXPECT_TRUE(verify(program("v, w"), program("v, w"), options).equal());
    EXPECT_TRUE(verify(program("v, w"), program("w, v"), options).refuted()) << *options.seed;
  }
}

TEST(Funnel, SymbolicShapesSayWhereTheyWereTested) {
  const Verdict v =
      compare_programs("x = input : f32[N,M]; y = sum x {axes=[0,1]} : f32[]; return y",
                       "x = input : f32[N,M]; r = sum x {axes=[1]} : f32[N]; y = sum r {axes=[0]} "
                       ": f32[]; return y");
  ASSERT_TRUE(v.equal()) << v.str();
  EXPECT_EQ(v.certificate().bindings.size(), 4u);
  EXPECT_EQ(v.certificate().all_sizes, "x[N,M] with M >= 1, N >= 1");
}

TEST(Funnel, IntegersAreExactModuloTheirWidth) {
  expect_equal(
      "x = input : i32[3,4]; y = input : i32[4,3]; z = matmul x, y : i32[3,3];"
      "t = transpose z {perm=[1,0]} : i32[3,3]; return t",
      "x = input : i32[3,4]; y = input : i32[4,3]; a = transpose x {perm=[1,0]} : i32[4,3];"
      "b = transpose y {perm=[1,0]} : i32[3,4]; t = matmul b, a : i32[3,3]; return t");
  // 16·x·16·x is 0 modulo 2^8, not modulo 2^32.
  const std::string a8 = "x = input : u8[5]; c = const {value=16} : u8[]; m = mul x, c : u8[5];"
                         "y = mul m, m : u8[5]; return y";
  const std::string b8 = "x = input : u8[5]; y = sub x, x : u8[5]; return y";
  expect_equal(a8, b8);
  auto wider = [](std::string s) {
    for (size_t at; (at = s.find("u8")) != std::string::npos;) s.replace(at, 2, "i32");
    return s;
  };
  expect_refuted(wider(a8), wider(b8));
}

TEST(Funnel, CounterexamplesAreSmall) {
  const Verdict v =
      compare_programs("x = input : f32[6,6]; y = sum x {axes=[0]} : f32[6]; return y",
                       "x = input : f32[6,6]; y = sum x {axes=[1]} : f32[6]; return y");
  ASSERT_TRUE(v.refuted());
  int non_zero = 0;
  for (double x : v.counterexample().inputs.at(0).reals) non_zero += x != 0;
  EXPECT_EQ(non_zero, 1) << v.str();
  EXPECT_NE(v.counterexample().spec, v.counterexample().candidate);
}

TEST(Filter, RejectsWrongAndPassesEqualPrograms) {
  const Filter filter(program(kRmsNorm));
  EXPECT_TRUE(filter.may_equal(program(kRmsNorm)));
  EXPECT_TRUE(filter.may_equal(program(kRmsNormLate)));
  EXPECT_FALSE(filter.may_equal(program(kRmsNormEpsOutside)));
  EXPECT_FALSE(filter.may_equal(program(kSoftmaxProgram)));
}

// A search's rewrites fail alike: what refuted one refutes the next, and refutes no honest one.
TEST(Funnel, InputsThatRefutedOneAreTriedOnTheNext) {
  const std::string in = "x = input : f32[8,64]; y = input : f32[8,64]; ";
  const std::string squares = in + "p = sqr x; q = sqr y; m = mul x, y; n = add m, m; ";
  std::vector<std::string> steps;
  VerifyOptions options;
  options.seed = 7;
  options.minimise = false;  // as in searches: small inputs fail by less
  options.progress = [&](const std::string& step) { steps.push_back(step); };
  Verifier verifier(program(in + "d = sub x, y; z = sqr d; return z"), options);
  const Verdict first = verifier.verify(program(squares + "s = add p, q; z = sub s, n; return z"));
  ASSERT_TRUE(first.refuted()) << first.str();
  EXPECT_FALSE(steps.empty());
  steps.clear();
  const Verdict second = verifier.verify(program(squares + "s = sub p, n; z = add s, q; return z"));
  ASSERT_TRUE(second.refuted()) << second.str();
  EXPECT_TRUE(steps.empty()) << steps[0];
  EXPECT_EQ(second.counterexample().inputs[0].reals, first.counterexample().inputs[0].reals);
  const Verdict third = verifier.verify(program(in + "d = sub y, x; z = mul d, d; return z"));
  EXPECT_TRUE(third.equal()) << third.str();
}

}  // namespace
}  // namespace tessera
