#include "verify/bench/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "eval/eval.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "verify/bench/mutations.h"
#include "verify/bench/random_program.h"
#include "verify/bench/structures.h"
#include "verify/funnel.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

TEST(RandomProgram, IsValidRepeatableAndReadsBack) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    const Graph g = random_program(seed);
    validate(g);
    EXPECT_EQ(g, random_program(seed)) << seed;
    EXPECT_EQ(parse(print(g)), g) << seed;
  }
}

TEST(RandomProgram, CoversTheOperatorsAndLevels) {
  std::set<OpKind> seen, inside;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    const Graph g = random_program(seed);
    for (const Op& op : g.ops()) {
      seen.insert(op.kind);
      if (op.body.valid())
        for (const Op& o : g.body(op).ops()) inside.insert(o.kind);
    }
  }
  for (OpKind kind : all_op_kinds()) {
    const bool wanted = allowed_at(kind, Level::Kernel) && kind != OpKind::Opaque;
    EXPECT_TRUE(!wanted || seen.count(kind)) << name(kind);
  }
  for (OpKind kind : {OpKind::Iter, OpKind::Accum, OpKind::AccumRescale, OpKind::Save})
    EXPECT_TRUE(inside.count(kind)) << name(kind);
}

// Weights that are inputs are drawn and restricted like images, constants are not.
TEST(RandomProgram, ConvolvesWithWeightsThatAreInputs) {
  int plain = 0, grouped = 0, dilated = 0, strided = 0, summed = 0;
  for (uint64_t seed = 0; seed < 2000; seed++) {
    const Graph g = random_program(seed);
    for (const Op& op : g.ops()) {
      if (op.kind != OpKind::Conv || g.producer(op.inputs[1]).kind != OpKind::Input) continue;
      const ConvAttrs& a = g.attrs<ConvAttrs>(op);
      const auto more = [](const std::vector<int64_t>& v) {
        return std::any_of(v.begin(), v.end(), [](int64_t x) { return x > 1; });
      };
      (a.groups > 1 ? grouped : plain)++;
      dilated += more(a.dilations);
      strided += more(a.strides);
      summed += g.type(op.inputs[1]).shape[1].extent > 2;  // enough channels to leave some out
    }
  }
  for (int n : {plain, grouped, dilated, strided, summed}) EXPECT_GE(n, 10);
}

// Wider numbers move like others: f64 programs are compared with them.
TEST(RandomProgram, WideEvaluationAgrees) {
  RandomProgramOptions f64;
  f64.dtype = DType::F64;
  EvalOptions wide;
  wide.precision = Precision::Wide;
  for (uint64_t seed = 0; seed < 600; seed++) {
    const Graph g = random_program(seed, f64);
    const auto in = make_inputs(g, "normal", seed, integer_ranges(g, g, {-8, 8}));
    const auto x = eval_with_magnitude(g, in), y = eval_with_magnitude(g, in, wide);
    for (size_t k = 0; k < x.size(); k++) {
      ASSERT_EQ(x[k].value.ints, y[k].value.ints) << print(g);
      for (size_t i = 0; i < x[k].value.reals.size(); i++) {
        const double u = x[k].value.reals[i], v = y[k].value.reals[i];
        const double scale = x[k].magnitude.reals[i];
        if (!std::isfinite(u) || !std::isfinite(scale)) continue;
        ASSERT_NEAR(u, v, 1e-9 * scale + 1e-300) << print(g);
      }
    }
  }
}

TEST(Mutations, EveryKindFindsPlacesAndKeepsTheInterface) {
  EXPECT_GE(mutations().size(), 25u);
  EXPECT_GE(rewrites().size(), 15u);
  for (const auto* table : {&mutations(), &rewrites()})
    for (const ProgramEdit& edit : *table) {
      int applied = 0;
      for (uint64_t seed = 0; seed < 400 && applied < 3; seed++) {
        const Graph g = random_program(seed);
        Rng rng(seed);
        const auto changed = edit.apply(g, rng);
        if (!changed) continue;
        applied++;
        validate(*changed);
        ASSERT_EQ(changed->outputs().size(), g.outputs().size());
        for (size_t i = 0; i < g.outputs().size(); i++)
          EXPECT_EQ(changed->type(changed->outputs()[i]), g.type(g.outputs()[i])) << edit.name;
        EXPECT_FALSE(*changed == g) << edit.name;
      }
      EXPECT_GT(applied, 0) << edit.name;
    }
}

// The structures of fused kernels: every kind of fault fires and is refused, and so is accepted
// what is sound.
TEST(VerifyBench, StructuresOfFusedKernels) {
  for (const auto* table : {&faulty_structures(), &sound_structures()})
    for (const ProgramEdit& edit : *table) {
      VerifyBenchOptions options;
      options.injected = options.equal = 12;
      options.seed = 5;
      options.kind = edit.name;
      const std::vector<VerifyBenchRow> rows = bench_verify(options);
      ASSERT_EQ(rows.size(), 1u) << edit.name;
      const VerifyBenchRow& row = rows[0];
      EXPECT_EQ(row.count, 12) << edit.name;
      std::string failures;
      for (const std::string& f : row.failures) failures += f + "\n";
      if (table == &faulty_structures()) {
        EXPECT_EQ(row.accepted, 0) << failures;
      } else {
        EXPECT_GE(row.accepted, 10) << failures;
        EXPECT_LE(row.refuted, 1)
            << failures;  // folded scales overflow sooner beside the range's end
      }
    }
}

TEST(VerifyBench, InjectedAreRefusedAndEqualPairsAccepted) {
  VerifyBenchOptions options;
  options.injected = options.equal = 500;
  options.seed = 2026;
  const std::vector<VerifyBenchRow> rows = bench_verify(options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].count, 500);
  EXPECT_EQ(rows[0].accepted, 0) << rows[0].failures.at(0);
  EXPECT_EQ(rows[1].count, 500);
  std::string refused;
  for (const std::string& f : rows[1].failures) refused += f + "\n";
  EXPECT_GE(rows[1].accepted, 495) << refused;
  // Where rounding decides what is negative, and where terms that the original loses by themselves,
  // as in (y - x) - y, take all digits of the rewrite's.
  EXPECT_LE(rows[1].refuted, 3) << refused;
}

// What decides differently at rare inputs, and what never does (branch_faults.cpp,
// branch_laws.cpp).
TEST(VerifyBench, BranchFaultsAreRefused) {
  VerifyBenchOptions options;
  options.injected = options.equal = 0;
  options.branches = 220;
  options.seed = 2028;
  const std::vector<VerifyBenchRow> rows = bench_verify(options);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2].count, 220);
  std::string failures;
  for (const std::string& f : rows[2].failures) failures += f + "\n";
  EXPECT_EQ(rows[2].accepted, 0) << failures;
  EXPECT_EQ(rows[3].count, 220);
  EXPECT_GE(rows[3].accepted, 110);
  failures.clear();
  for (const std::string& f : rows[3].failures)
    if (f.find("\nrefuted\n") != std::string::npos) failures += f + "\n";
  EXPECT_EQ(rows[3].refuted, 0) << failures;
}

// Faults in shallow and deep layers, and sound edits there; most of them need a proof in parts.
TEST(VerifyBench, DeepPrograms) {
  VerifyBenchOptions options;
  options.injected = options.equal = 0;
  options.deep = 150;
  options.seed = 2027;
  const std::vector<VerifyBenchRow> rows = bench_verify(options);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[2].count, 150);
  std::string failures;
  for (const std::string& f : rows[2].failures) failures += f + "\n";
  EXPECT_EQ(rows[2].accepted, 0) << failures;
  EXPECT_EQ(rows[3].count, 150);
  failures.clear();
  for (const std::string& f : rows[3].failures) failures += f + "\n";
  EXPECT_GE(rows[3].accepted, 149) << failures;
  EXPECT_EQ(rows[3].refuted, 0) << failures;
}

}  // namespace
}  // namespace tessera
