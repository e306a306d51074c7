#include "solve/ilp.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/rng.h"

namespace tessera {
namespace {

std::optional<double> brute_force(const Ilp& ilp) {
  std::optional<double> best;
  const size_t n = ilp.cost.size();
  for (uint32_t set = 0; set < 1u << n; ++set) {
    std::vector<bool> x(n);
    for (size_t j = 0; j < n; ++j) x[j] = (set >> j & 1) != 0;
    if (!ilp.feasible(x)) continue;
    const double v = ilp.value(x);
    if (!best || v < *best) best = v;
  }
  return best;
}

// Knapsacks, covers, choices and equations of all kinds.
Ilp random_ilp(Rng& rng, int most_variables) {
  Ilp ilp;
  const int n = 1 + static_cast<int>(rng.below(static_cast<uint64_t>(most_variables)));
  for (int j = 0; j < n; ++j)
    ilp.add_variable(static_cast<double>(static_cast<int64_t>(rng.below(41)) - 20) / 2);
  const int rows = static_cast<int>(rng.below(8));
  for (int r = 0; r < rows; ++r) {
    std::vector<std::pair<int, double>> terms;
    const bool choice = rng.chance(0.4);
    for (int j = 0; j < n; ++j) {
      if (rng.chance(0.5)) continue;
      terms.emplace_back(j, choice ? 1.0
                                   : static_cast<double>(static_cast<int64_t>(rng.below(11)) - 5));
    }
    const auto relation = static_cast<Relation>(rng.below(3));
    const double bound =
        choice ? 1.0 : static_cast<double>(static_cast<int64_t>(rng.below(13)) - 4);
    ilp.add(std::move(terms), relation, bound);
  }
  return ilp;
}

TEST(Ilp, AgreesWithBruteForce) {
  Rng rng(11);
  int infeasible = 0, optimal = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const Ilp ilp = random_ilp(rng, 12);
    const std::optional<double> best = brute_force(ilp);
    const IlpResult r = solve_ilp(ilp);
    ASSERT_EQ(r.status, best ? IlpStatus::Optimal : IlpStatus::Infeasible) << trial;
    ++(best ? optimal : infeasible);
    if (!best) continue;
    EXPECT_NEAR(r.value, *best, 1e-9) << trial;
    EXPECT_TRUE(ilp.feasible(r.x));
    EXPECT_NEAR(ilp.value(r.x), r.value, 1e-9);
    EXPECT_LE(r.bound, r.value);
  }
  EXPECT_GT(infeasible, 50);
  EXPECT_GT(optimal, 200);
}

TEST(Ilp, HighsAgrees) {
  if (highs_version() == nullptr) GTEST_SKIP() << "HiGHS is not installed";
  Rng rng(12);
  for (int trial = 0; trial < 200; ++trial) {
    const Ilp ilp = random_ilp(rng, 25);
    const IlpResult ours = solve_ilp(ilp), theirs = solve_ilp_highs(ilp);
    ASSERT_EQ(ours.status, theirs.status) << trial;
    if (ours.status == IlpStatus::Optimal) {
      EXPECT_NEAR(ours.value, theirs.value, 1e-6) << trial;
    }
  }
}

// Readers that each choose one of several layouts, shared copies that cost: like the real thing.
Ilp layouts(int tensors, int readers, int options, Rng& rng) {
  Ilp ilp;
  std::vector<std::vector<int>> copy(static_cast<size_t>(tensors));
  for (auto& c : copy)
    for (int o = 0; o < options; ++o)
      c.push_back(ilp.add_variable(o == 0 ? 0 : 1 + 20 * rng.unit()));
  for (int r = 0; r < readers; ++r) {
    const size_t t = rng.below(static_cast<uint64_t>(tensors));
    std::vector<std::pair<int, double>> one;
    for (int o = 0; o < options; ++o) {
      const int y = ilp.add_variable(10 + 10 * rng.unit());
      one.emplace_back(y, 1);
      ilp.add({{y, 1}, {copy[t][static_cast<size_t>(o)], -1}}, Relation::LessEqual, 0);
    }
    ilp.add(std::move(one), Relation::Equal, 1);
  }
  return ilp;
}

TEST(Ilp, LayoutsOfAWholeModelAreProvedOptimal) {
  Rng rng(5);
  const Ilp ilp = layouts(60, 150, 3, rng);
  ASSERT_EQ(ilp.cost.size(), 630u);
  const IlpResult r = solve_ilp(ilp);
  EXPECT_EQ(r.status, IlpStatus::Optimal);
  if (highs_version() != nullptr) {
    EXPECT_NEAR(solve_ilp_highs(ilp).value, r.value, 1e-6);
  }
}

TEST(Ilp, AnEndedBudgetIsNoProof) {
  // Even numbers cannot add up to an odd one; propagation alone does not see it.
  Ilp ilp;
  std::vector<std::pair<int, double>> terms;
  for (int j = 0; j < 40; ++j) terms.emplace_back(ilp.add_variable(1), 2);
  ilp.add(terms, Relation::Equal, 41);
  IlpOptions options;
  options.max_nodes = 100;
  const IlpResult r = solve_ilp(ilp, options);
  EXPECT_EQ(r.status, IlpStatus::Unknown);
  EXPECT_TRUE(r.x.empty());
  // A hard knapsack whose best is not proved in two nodes: the gap says so.
  Rng rng(3);
  Ilp sack;
  terms.clear();
  for (int j = 0; j < 60; ++j) {
    const double weight = 50 + static_cast<double>(rng.below(50));
    terms.emplace_back(sack.add_variable(-weight - static_cast<double>(rng.below(3))), weight);
  }
  sack.add(terms, Relation::LessEqual, 1001);
  options.max_nodes = 2;
  options.root_steps = options.node_steps = 1;
  const IlpResult s = solve_ilp(sack, options);
  EXPECT_NE(s.status, IlpStatus::Infeasible);
  if (s.status == IlpStatus::Feasible) {
    EXPECT_GT(s.gap(), 0);
  }
}

TEST(Ilp, EmptyProgramsHaveOneSolution) {
  EXPECT_EQ(solve_ilp({}).status, IlpStatus::Optimal);
  Ilp impossible;
  impossible.add({}, Relation::GreaterEqual, 1);
  EXPECT_EQ(solve_ilp(impossible).status, IlpStatus::Infeasible);
}

}  // namespace
}  // namespace tessera
