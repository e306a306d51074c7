// Synthesis over integers (modulo 2^n, as NumPy computes) and over several dtypes in one program.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "cost/target.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/inputs.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"
#include "verify/programs.h"

namespace tessera {
namespace {

using synth::Sample;
using synth::SampleStore;
using synth::Spec;
using synth::World;

// Every rewrite found, each of which has to be proved.
std::vector<Graph> offered_rewrites(const std::string& text) {
  const Graph g = program(text);
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  CollectingSink sink;
  Synth().run(Subprogram{g}, context, budget, sink);
  std::vector<Graph> all;
  for (Candidate& c : sink.candidates) {
    validate(c.graph);
    const Verdict v = verify(g, c.graph);
    EXPECT_TRUE(v.equal()) << v.str() << print(g) << print(c.graph);
    all.push_back(std::move(c.graph));
  }
  return all;
}
std::string best_text(const std::string& text) {
  const std::vector<Graph> all = offered_rewrites(text);
  return all.empty() ? "nothing found" : print(all[0]);
}
int count_ops(const std::string& text, const std::string& op) {
  int n = 0;
  for (size_t at = text.find("= " + op); at != std::string::npos; at = text.find("= " + op, at + 1))
    ++n;
  return n;
}

const char* const kIntegerPrograms[] = {
    "B = mul A, A; C = sub B, A; D = neg C; return D",
    "B = abs A; C = sign A; D = mul B, C; return D",
    "s = sum A {axes=[1]}; m = reduce_max A {axes=[0]}; n = reduce_min A {axes=[0, 1]}; "
    "return s, m, n",
    "B = transpose A {perm=[1,0]}; C = matmul A, B; return C",
    "B = pow A {exponent=3}; C = max A, B; D = min A, B; M = mod B, C; return M, D",
    "B = lt A, A; C = neg A; D = le C, A; E = where D, A, C; return E, B",
    "B = triu A {k=0}; C = sqr B; D = relu C; return D",
    "B = cast A {dtype=i8}; C = add B, B; D = cast C {dtype=i64}; return D",
    "c = const {value=-7} : i8[]; B = cast c {dtype=DT}; C = mul A, B; return C",
};

// What the world says of integers is what the reference interpreter computes, wraps included.
TEST(SynthIntegers, TheWorldAgreesWithTheInterpreter) {
  for (const char* body : kIntegerPrograms) {
    for (const char* dtype : {"i64", "i32", "i8", "u8"}) {
      std::string text = "A = input : " + std::string(dtype) + "[3,2]; " + body + "";
      if (const size_t at = text.find("DT"); at != std::string::npos) text.replace(at, 2, dtype);
      const Graph g = program(text);
      const std::optional<Spec> spec = synth::parse(g);
      ASSERT_TRUE(spec) << text;
      World world(spec->table, spec->with_q, 3);
      for (const Rational& c : spec->constants) world.constant(c);
      SampleStore store;
      const auto values = evaluate(world, *spec, store);
      ASSERT_TRUE(values) << text;
      const Sample& a = (*values)[0];
      NDArray input = NDArray::zeros(a.dims.dtype, {3, 2});
      ASSERT_EQ(world.dims().count(a.dims, 0), 6);
      input.ints.assign(a.v, a.v + 6);
      const std::vector<NDArray> expected = eval(g, {input});
      for (size_t o = 0; o < expected.size(); ++o) {
        const Sample& s = (*values)[spec->outputs[o]];
        ASSERT_EQ(world.dims().count(s.dims, 0), expected[o].size()) << text;
        for (size_t i = 0; i < expected[o].ints.size(); ++i)
          EXPECT_EQ(s.v ? s.v[i] : int64_t(s.p[i]), expected[o].ints[i])
              << text << " element " << i;
      }
    }
  }
}

TEST(SynthIntegers, RingLawsHoldModuloTwoToTheN) {
  for (const std::string dtype : {"i64", "i32", "i8", "u8"}) {
    const std::string A = "A = input : " + dtype + "[90,70]; ";
    const std::string four = best_text(A + "B = add A, A; C = add A, A; D = add B, C; return D");
    EXPECT_EQ(count_ops(four, "add") + count_ops(four, "mul"), 1) << four;
    EXPECT_NE(four.find("value=4"), std::string::npos) << four;
    const std::string one =
        best_text(A + "B = input : " + dtype + "[90,70]; C = add A, B; D = sub C, A; return D");
    EXPECT_EQ(count_ops(one, "add") + count_ops(one, "sub"), 0) << one;
    const std::string common =
        best_text(A + "B = input : " + dtype + "[90,70]; C = input : " + dtype +
                  "[90,70]; D = mul A, B; E = mul C, B; F = add D, E; return F");
    EXPECT_EQ(count_ops(common, "mul"), 1) << common;
  }
}

TEST(SynthIntegers, WhatWrapsIsNotCancelled) {
  // 16·(16·x) is 0 in 8 bits.
  const std::string zero =
      best_text("A = input : u8[90,70]; c = const {value=16} : u8[]; B = mul A, c; C = mul B, c; "
                "return C");
  EXPECT_EQ(zero.find("value=16"), std::string::npos) << zero;
  // max(x + 1, x) is not x + 1, |x| can be negative, and 2x < 2y is not x < y.
  for (const char* body : {"B = add A, one; C = max A, B; return C",
                           "B = abs A; C = abs B; D = neg C; E = abs D; return E",
                           "B = add A, A; C = add one, one; D = lt B, C; return D"}) {
    offered_rewrites("A = input : i8[90,70]; one = const {value=1} : i8[]; " + std::string(body) +
                     "");
  }
  const std::string most = best_text(
      "A = input : i8[90,70]; one = const {value=1} : i8[]; o = add A, one; B = sub o, A; "
      "C = mul B, A; D = add C, one; E = max A, D; return E");
  EXPECT_EQ(count_ops(most, "max"), 1) << most;
}

TEST(SynthIntegers, CastsOfSumsAreNotSumsOfCasts) {
  const char* wrapped = "A = input : u8[30,20]; B = input : u8[30,20]; C = add A, B; "
                        "D = cast C {dtype=f32}; return D";
  for (const Graph& g : offered_rewrites(wrapped))
    EXPECT_EQ(count_ops(print(g), "cast"), 1) << print(g);
  const char* apart = "A = input : u8[30,20]; B = input : u8[30,20]; C = cast A {dtype=f32}; "
                      "D = cast B {dtype=f32}; E = add C, D; return E";
  const Verdict v = verify(program(wrapped), program(apart));
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Value);
}

TEST(SynthIntegers, SeveralDtypesAreRewrittenEachInItsOwn) {
  const std::string product =
      best_text("A = input : f32[90,70]; B = input : f64[90,70]; C = cast A {dtype=f64}; "
                "D = mul C, B; E = cast A {dtype=f64}; F = mul E, B; G = add D, F; return G");
  EXPECT_EQ(count_ops(product, "cast"), 1) << product;
  EXPECT_EQ(count_ops(product, "mul") + count_ops(product, "add"), 2) << product;
  // Rounding to f32 and back is no identity.
  const std::string rounded =
      best_text("A = input : f64[90,70]; B = cast A {dtype=f32}; C = cast B {dtype=f64}; "
                "D = add C, C; E = sub D, C; return E");
  EXPECT_EQ(count_ops(rounded, "cast"), 2) << rounded;
  EXPECT_EQ(count_ops(rounded, "sub"), 0) << rounded;
}

TEST(SynthIntegers, MeansOfIntegersStayFloats) {
  const std::string mean =
      best_text("A = input : i32[900]; B = cast A {dtype=f64}; m = sum B {axes=[0]}; "
                "C = cast A {dtype=f64}; n = sum C {axes=[0]}; s = add m, n; return s");
  EXPECT_EQ(count_ops(mean, "sum"), 1) << mean;
  EXPECT_EQ(count_ops(mean, "cast"), 1) << mean;
}

// Where integers and floats meet, the verifier looks at integers that wrap.
TEST(SynthIntegers, TheVerifierSeesWrapsAmongFloats) {
  for (const char* dtype : {"u8", "i8", "i32", "i64"}) {
    const std::string in = "A = input : " + std::string(dtype) + "[30,20]; ";
    const Graph before = program(in + "B = mul A, A; C = cast B {dtype=f64}; return C");
    const Graph after = program(in + "B = cast A {dtype=f64}; C = mul B, B; return C");
    EXPECT_TRUE(verify(before, after).refuted()) << dtype;
    EXPECT_TRUE(verify(before, before).equal()) << dtype;
  }
}

// log(q / (p + q)) = log(1 − p / (p + q)), which is log 0 where q is lost beside p.
TEST(SynthIntegers, WhatIsLostBesideOneIsNotTakenFromIt) {
  const std::string in = "p = input : f64[50]; q = input : f64[50]; s = add p, q; ";
  const Verdict v = compare_programs(
      in + "r = div q, s; l = log r; m = mul q, l; t = sum m {axes=[0]}; return t",
      in + "one = const {value=1} : f64[]; r = div p, s; u = sub one, r; l = log u; m = mul q, l; "
           "t = sum m {axes=[0]}; return t");
  ASSERT_TRUE(v.refuted()) << v.str();
}

// 2·Σ max(x, 0) = Σ|x| + Σx, which is 0 only up to rounding where all numbers are negative.
TEST(SynthIntegers, SumsThatCancelAreNoSumsOfZeros) {
  const Verdict v = compare_programs(
      "A = input : f32[90,700]; B = relu A; s = sum B {axes=[1]}; t = add s, s; return t",
      "A = input : f32[90,700]; B = abs A; s = sum B {axes=[1]}; T = reshape A {shape=[90,10,70]}; "
      "U = sum T {axes=[1]}; r = sum U {axes=[1]}; u = add s, r; return u");
  ASSERT_TRUE(v.refuted()) << v.str();
  EXPECT_EQ(v.counterexample().kind, Difference::Precision);
}

}  // namespace
}  // namespace tessera
