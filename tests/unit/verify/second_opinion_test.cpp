#include "verify/opinion/second_opinion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "ir/window.h"
#include "solve/smt.h"
#include "verify/bench/mutations.h"
#include "verify/bench/random_program.h"
#include "verify/funnel.h"
#include "verify/opinion/elements.h"
#include "verify/opinion/smt_script.h"

namespace tessera {
namespace {

SecondOpinionOptions laws_only() {
  SecondOpinionOptions o;
  o.solver = false;
  o.seconds = 4;
  return o;
}

// The second implementation of the operators against the reference, on random programs.
TEST(SecondOpinion, TermsMeanWhatTheInterpreterComputes) {
  int programs = 0, compared = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    const Graph g = random_program(seed);
    bool reals = true;
    for (TensorId t : g.inputs()) reals = reals && is_float(g.type(t).dtype);
    if (!reals) continue;
    Terms terms(seed, 200'000);
    std::vector<Elements> outputs;
    try {
      outputs = evaluate(terms, g, variables(terms, g));
    } catch (const NoTerms&) {
      continue;
    }
    programs++;
    for (int point = 0; point < Terms::kPoints; point++) {
      std::vector<NDArray> inputs;
      int64_t next = 0;
      for (TensorId t : g.inputs()) {
        inputs.push_back(NDArray::zeros(g.type(t).dtype, extents(g.type(t).shape)));
        for (double& x : inputs.back().reals) x = terms.input_at(next++, point);
      }
      const std::vector<WithMagnitude> exact = eval_with_magnitude(g, inputs);
      for (size_t k = 0; k < exact.size(); k++)
        for (size_t i = 0; i < exact[k].value.reals.size(); i++) {
          const TermId t = outputs[k].at[i];
          if (t >= kMinusInfinity) continue;
          const TermValue s = terms.shadow(t, point);
          const double x = exact[k].value.reals[i], scale = exact[k].magnitude.reals[i];
          if (!std::isfinite(s.value) || !std::isfinite(x) || !std::isfinite(scale)) continue;
          compared++;
          EXPECT_LE(std::fabs(s.value - x), 1e-6 * (scale + s.scale))
              << "seed " << seed << " point " << point << "\n"
              << print(g);
        }
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(programs, 200);
  EXPECT_GT(compared, 5000);
}

Opinion laws(const std::string& a, const std::string& b) {
  return second_opinion(parse(a), parse(b), laws_only()).opinion;
}
std::string law_text(const std::string& body) {
  return "graph g {\n  x = input : f32[2,3]\n  y = input : f32[2,3]\n" + body + "  return z\n}\n";
}

TEST(SecondOpinion, LawsOfOperators) {
  const std::vector<std::pair<const char*, const char*>> equal = {
      {"t = mul x, y\n z = exp t\n",
       "t = neg x\n u = mul y, t\n v = exp u\n c = const {value=1} : f32[]\n z = div c, v\n"},
      {"a = exp x\n b = exp y\n z = mul a, b\n", "t = add y, x\n z = exp t\n"},
      {"t = sqr x\n z = sqrt t\n", "z = abs x\n"},
      {"c = const {value=4} : f32[]\n t = sqr x\n u = mul c, t\n z = rsqrt u\n",
       "a = abs x\n c = const {value=0.5} : f32[]\n z = div c, a\n"},
      {"c = const {value=768} : f32[]\n r = sqrt c\n z = mul x, r\n",
       "c = const {value=3} : f32[]\n r = sqrt c\n s = const {value=16} : f32[]\n t = mul r, s\n "
       "z = mul x, t\n"},
      {"a = relu x\n n = neg x\n b = relu n\n z = sub a, b\n",
       "c = const {value=1} : f32[]\n z = mul x, c\n"},
      {"z = max x, y\n", "t = sub x, y\n u = relu t\n z = add u, y\n"},
      {"c = lt x, y\n z = where c, x, y\n", "z = min x, y\n"},
      {"c = le x, y\n z = where c, x, y\n", "c = gt x, y\n z = where c, y, x\n"},
      {"z = silu x\n",
       "e = exp x\n c = const {value=1} : f32[]\n d = add e, c\n q = div e, d\n z = mul q, x\n"},
      {"z = gelu x\n", "n = neg x\n t = gelu n\n z = add x, t\n"},
      {"s = sum x {axes=[1], keepdims=true}\n d = div x, s\n z = sum d {axes=[1], keepdims=true}\n",
       "s = sum x {axes=[1], keepdims=true}\n z = div s, s\n"},
  };
  for (const auto& [a, b] : equal) {
    EXPECT_EQ(laws(law_text(a), law_text(b)), Opinion::Agrees) << a << "\n" << b;
    EXPECT_EQ(laws(law_text(b), law_text(a)), Opinion::Agrees) << a << "\n" << b;
  }
  const std::vector<std::pair<const char*, const char*>> unequal = {
      {"t = sqr x\n z = sqrt t\n", "z = relu x\n"},
      {"z = max x, y\n", "z = add x, y\n"},
      {"c = lt x, y\n z = where c, x, y\n", "z = max x, y\n"},
      {"z = exp x\n", "z = exp y\n"},
      {"z = gelu x\n", "n = neg x\n t = gelu n\n z = sub x, t\n"},
      {"z = tanh x\n", "z = erf x\n"},
  };
  for (const auto& [a, b] : unequal)
    EXPECT_EQ(laws(law_text(a), law_text(b)), Opinion::Disagrees) << a << "\n" << b;
}

// Equal but for ties, which no random point meets: never "agrees", as no law says so.
TEST(SecondOpinion, TiesAreNotOverlooked) {
  const std::string one = "i = const {value=1} : f32[]\n o = const : f32[]\n";
  const std::string a = law_text(one + "c = lt x, y\n z = where c, i, o\n"),
                    b = law_text(one + "c = le x, y\n z = where c, i, o\n");
  EXPECT_EQ(laws(a, b), Opinion::CannotTell);
  if (find_z3()) {
    EXPECT_EQ(second_opinion(parse(a), parse(b)).opinion, Opinion::CannotTell);
  }
}

// What normal forms leave open: orders of several numbers.
TEST(SecondOpinion, SolverSettlesOrder) {
  if (!find_z3()) GTEST_SKIP() << kInstallZ3;
  const std::vector<std::pair<const char*, const char*>> equal = {
      {"a = max x, y\n b = min x, y\n z = mul a, b\n", "z = mul x, y\n"},
      {"m = reduce_max x {axes=[1], keepdims=true}\n t = sub x, m\n z = reduce_max t {axes=[1], "
       "keepdims=true}\n",
       "m = reduce_max x {axes=[1], keepdims=true}\n z = sub m, m\n"},
      {"o = const : f32[]\n c = lt x, y\n t = where c, x, o\n e = exp t\n z = mul e, y\n",
       "i = const {value=1} : f32[]\n c = lt x, y\n t = exp x\n e = where c, t, i\n z = mul e, "
       "y\n"},
  };
  int by_solver = 0;
  for (const auto& [a, b] : equal) {
    const SecondOpinion o = second_opinion(parse(law_text(a)), parse(law_text(b)));
    EXPECT_EQ(o.opinion, Opinion::Agrees) << a << "\n" << o.str();
    by_solver += o.by_solver > 0;
  }
  EXPECT_GE(by_solver, 2);
}

TEST(SecondOpinion, LimitsAndMissingSolversAreToldClearly) {
  const std::string a = law_text("m = reduce_max x {axes=[1], keepdims=true}\n t = sub x, m\n"
                                 " n = reduce_max t {axes=[1], keepdims=true}\n z = mul x, n\n"),
                    b = law_text("z = sub x, x\n");
  SecondOpinionOptions o;
  o.z3 = "/nowhere/z3";
  const SecondOpinion told = second_opinion(parse(a), parse(b), o);
  EXPECT_EQ(told.opinion, Opinion::CannotTell);
  EXPECT_NE(told.what.find("pip install z3-solver"), std::string::npos) << told.str();
  // No time: no answer.
  o.seconds = 0;
  EXPECT_NE(second_opinion(random_program(3), random_program(3), o).opinion, Opinion::Disagrees);
}

TEST(SecondOpinion, DisagreementMakesEqualUnknown) {
  const Graph g = parse(law_text("z = add x, y\n"));
  VerifyOptions options;
  options.seed = 1;
  options.second_opinion = true;
  const Verdict v = verify(g, g, options);
  ASSERT_TRUE(v.equal());
  EXPECT_EQ(v.certificate().second_opinion.rfind("agrees: ", 0), 0u);
  EXPECT_EQ(Certificate::parse(v.certificate().str()), v.certificate());
  SecondOpinion no;
  no.opinion = Opinion::Disagrees;
  no.what = "output 0";
  const Verdict changed = after(v, no);
  ASSERT_TRUE(changed.unknown());
  EXPECT_EQ(changed.why_unknown().reason, UnknownReason::SecondOpinion);
}

// Edits that verify() refutes with real inputs at which values differ must never find agreement,
// and edits that it accepts never a disagreement.
TEST(SecondOpinion, NeverAgreesWithUnsoundEdits) {
  int unsound = 0, disagrees = 0;
  std::set<std::string> kinds;
  for (const ProgramEdit& edit : mutations())
    for (uint64_t seed = 0, made = 0; seed < 300 && made < 4; seed++) {
      const Graph g = random_program(seed * 31 + 5);
      Rng rng(seed);
      const auto changed = edit.apply(g, rng);
      if (!changed) continue;
      made++;
      VerifyOptions options;
      options.seed = seed;
      options.minimise = false;
      const Verdict v = verify(g, *changed, options);
      const SecondOpinion o = second_opinion(g, *changed, laws_only());
      const std::string all =
          std::string(edit.name) + "\n" + print(g) + print(*changed) + v.str() + o.str();
      EXPECT_FALSE(v.equal() && o.opinion == Opinion::Disagrees) << all;
      if (!v.refuted() || v.counterexample().kind != Difference::Value) continue;
      unsound++;
      kinds.insert(edit.name);
      disagrees += o.opinion == Opinion::Disagrees;
      EXPECT_NE(o.opinion, Opinion::Agrees) << all;
    }
  EXPECT_GE(unsound, 200);
  EXPECT_GE(kinds.size(), 60u);
  EXPECT_GE(disagrees, unsound * 7 / 10);
}

TEST(SecondOpinion, AgreesWithSoundEdits) {
  int equal = 0, agrees = 0;
  std::string shares;
  std::map<std::string, int> why;
  for (const ProgramEdit& edit : rewrites()) {
    int here = 0, all = 0;
    for (uint64_t seed = 0; seed < 1000 && all < 6; seed++) {
      const Graph g = random_program(mix64(seed) ^ uint64_t(&edit - rewrites().data()));
      Rng rng(seed);
      const auto changed = edit.apply(g, rng);
      if (!changed) continue;
      const SecondOpinion o = second_opinion(g, *changed, laws_only());
      EXPECT_NE(o.opinion, Opinion::Disagrees) << edit.name << "\n"
                                               << print(g) << print(*changed) << o.str();
      all++;
      here += o.opinion == Opinion::Agrees;
      if (o.opinion == Opinion::CannotTell) why[o.what]++;
    }
    equal += all;
    agrees += here;
    shares +=
        std::string(edit.name) + " " + std::to_string(here) + "/" + std::to_string(all) + "\n";
  }
  for (const auto& [what, n] : why) shares += "  " + std::to_string(n) + " " + what + "\n";
  EXPECT_GE(agrees, equal * 9 / 10);
  std::printf("second opinion agrees with %d of %d equal pairs\n%s", agrees, equal, shares.c_str());
}

// Programs far too large for terms, by smaller instances of the same kind.
TEST(SecondOpinion, LargeProgramsBySmallerInstances) {
  auto norm = [](const std::string& eps) {
    return parse("graph g {\n  x = input : f32[16,4096]\n  w = input : f32[4096,6144]\n"
                 "  s = sqr x\n  m = mean s {axes=[1], keepdims=true}\n"
                 "  e = const {value=" +
                 eps +
                 "} : f32[]\n  d = add m, e\n  r = rsqrt d\n"
                 "  n = mul x, r\n  z = matmul n, w\n  return z\n}\n");
  };
  const Graph late = parse(
      "graph g {\n  x = input : f32[16,4096]\n  w = input : f32[4096,6144]\n"
      "  z = kernel x, w grid[x=4, y=48] loops[i=64] {\n"
      "    p = input : f32[16,4096]\n    q = input : f32[4096,6144]\n"
      "    t = iter p {imap={x:0}, fmap={i:1}}\n    u = iter q {imap={y:1}, fmap={i:0}}\n"
      "    s = sqr t\n    n = sum s {axes=[1], keepdims=true}\n    l = accum n {kind=sum, "
      "loops=[0]}\n"
      "    y = matmul t, u\n    o = accum y {kind=sum, loops=[0]}\n"
      "    c = const {value=0.000244140625} : f32[]\n    k = mul l, c\n"
      "    e = const {value=0.01} : f32[]\n    d = add k, e\n    r = sqrt d\n    v = div o, r\n"
      "    z = save v {omap={x:0, y:1}} : f32[16,6144]\n    return z\n  }\n  return z\n}\n");
  const SecondOpinion same = second_opinion(norm("0.01"), late, laws_only());
  EXPECT_EQ(same.opinion, Opinion::Agrees) << same.str();
  EXPECT_FALSE(same.shapes.empty());
  EXPECT_EQ(second_opinion(norm("0.02"), late, laws_only()).opinion, Opinion::CannotTell);
}

// Equal only since the constant is the number of elements that are summed.
TEST(SecondOpinion, CountsOfSmallerInstances) {
  const std::string head =
      "graph g {\n  x = input : f32[64,4096]\n  c = const {value=0.000244140625} : f32[]\n"
      "  s = sum x {axes=[1], keepdims=true}\n  m = mul s, c\n";
  const Graph two_passes = parse(head + "  d = sub x, m\n  q = sqr d\n  v = sum q {axes=[1]}\n"
                                        "  z = mul v, c\n  return z\n}\n");
  auto one_pass = [&](const std::string& factor) {
    return parse(head +
                 "  q = sqr x\n  v = mean q {axes=[1]}\n  t = squeeze m {axes=[1]}\n"
                 "  u = sqr t\n  k = const {value=" +
                 factor +
                 "} : f32[]\n"
                 "  w = mul u, k\n  z = sub v, w\n  return z\n}\n");
  };
  const SecondOpinion same = second_opinion(two_passes, one_pass("1"), laws_only());
  EXPECT_EQ(same.opinion, Opinion::Agrees) << same.str();
  EXPECT_EQ(second_opinion(two_passes, one_pass("2"), laws_only()).opinion, Opinion::CannotTell);
}

TEST(SecondOpinion, IntegersOfNothingAreNoTerms) {
  const std::string pool = "z = pool_max n {size=[1], low=[1], high=[1]}\n";
  const Graph a = parse(law_text("n = input : i32[1,1,4]\n" + pool)),
              b = parse(law_text("m = input : i32[1,1,4]\nk = neg m\nn = neg k\n" + pool));
  EXPECT_EQ(second_opinion(a, b, {}).opinion, Opinion::CannotTell);
}

// Clipped values are alike in many places; the pairs that make others simple are asked first.
TEST(SecondOpinion, LawsBelowProducts) {
  if (!find_z3("")) GTEST_SKIP() << "there is no Z3";
  const std::string in = "graph g {\n v = input : f64[4,4]\n w = input : f64[4,4]\n zero = const : "
                         "f64[]\n one = const {value=1} : f64[]\n four = const {value=4} : f64[]\n "
                         "nine = const {value=9} : f64[]\n a = max v, one\n c = min a, four\n ",
                    out = " p = matmul u, u\n z = matmul p, w\n return z\n}\n";
  for (uint64_t seed = 1; seed <= 3; seed++) {
    VerifyOptions options;
    options.level = Accuracy::Fast;
    options.seed = seed;
    const Verdict v = verify(parse(in + "b = max c, zero\n u = min b, nine\n" + out),
                             parse(in + "u = min c, nine\n" + out), options);
    EXPECT_TRUE(v.equal()) << v.str();
  }
}

// A fault of the bench once wrote a script of more than a gigabyte.
TEST(SecondOpinion, ScriptsAreNoLongerThanASolverReads) {
  const auto asked = [](int64_t functions) {
    Terms terms(1);
    std::vector<TermId> all;
    for (int64_t f = 1; f <= functions; f++) {
      std::vector<TermId> of;
      for (int64_t i = 0; i < 64; i++)
        of.push_back(terms.mul(terms.variable(i), terms.integer(f * i + 1)));
      all.push_back(terms.function("f", terms.power(terms.sum(of), 2), Terms::Parity::None));
    }
    return smt_script(terms, {{terms.sum(all), Terms::kZero}}, false, 100);
  };
  EXPECT_NE(asked(4).find("check-sat"), std::string::npos);
  EXPECT_LT(asked(150).size(), 100U);
}

}  // namespace
}  // namespace tessera
