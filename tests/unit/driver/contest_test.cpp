#include "driver/contest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backend/cpu/fuse.h"
#include "base/folder.h"
#include "base/sha256.h"
#include "driver/own_cache.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

std::vector<Outcome> outcomes(const std::vector<double>& costs) {
  std::vector<Outcome> list(costs.size());
  for (size_t i = 0; i < costs.size(); i++) list[i].model_seconds = costs[i];
  return list;
}

std::vector<size_t> spread_all(const std::vector<Outcome>& list, size_t wanted) {
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t(0));
  spread(order, list, wanted);
  std::vector<size_t> sorted = order;  // nothing is lost or doubled
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); i++) EXPECT_EQ(sorted[i], i);
  return order;
}

using Order = std::vector<size_t>;

TEST(Spread, TakesEvenlyFromCandidatesThatTheModelCannotTellApart) {
  EXPECT_EQ(spread_all(outcomes(std::vector<double>(12, 1.0)), 5),
            (Order{0, 3, 6, 9, 1, 2, 4, 5, 7, 8, 10, 11}));
  EXPECT_EQ(spread_all(outcomes(std::vector<double>(6, 1.0)), 5), (Order{0, 1, 3, 4, 2, 5}));
}

TEST(Spread, LeavesRanksThatMeanSomething) {
  EXPECT_EQ(spread_all(outcomes({1, 1.1, 1.2, 1.3, 1.4, 1.5}), 3), (Order{0, 1, 2, 3, 4, 5}));
  // As many as take part: all of them do.
  EXPECT_EQ(spread_all(outcomes(std::vector<double>(5, 1.0)), 5), (Order{0, 1, 2, 3, 4}));
  EXPECT_EQ(spread_all({}, 5), Order{});
}

TEST(Spread, EndsWhereTheModelTellsOrDoubts) {
  // Costs are compared with the first, 2% above it is as far as a tie goes.
  std::vector<Outcome> list = outcomes({1, 1.01, 1.015, 1.019, 1.02, 1.03, 1.031, 1.032});
  EXPECT_EQ(spread_all(list, 3), (Order{0, 2, 1, 3, 4, 5, 6, 7}));
  list = outcomes(std::vector<double>(8, 1.0));
  list[4].notes = {"a doubt"};
  EXPECT_EQ(spread_all(list, 3), (Order{0, 2, 1, 3, 4, 5, 6, 7}));
}

TEST(Spread, OneOrTwoPlacesLeaveTheBest) {
  for (size_t wanted : {size_t(1), size_t(2)})
    EXPECT_EQ(spread_all(outcomes(std::vector<double>(6, 1.0)), wanted), (Order{0, 1, 2, 3, 4, 5}));
}

TEST(HeedExperts, TheirBestRaces) {
  std::vector<Outcome> list = outcomes(std::vector<double>(9, 1.0));
  list[6].origin = list[8].origin = "patterns";
  Order order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  heed_experts(order, list, 5);
  EXPECT_EQ(order, (Order{0, 1, 2, 6, 3, 4, 5, 7, 8})) << "the last place is the program's own";
  const Order before = order;
  heed_experts(order, list, 5);
  EXPECT_EQ(order, before) << "one is there already";
  list[6].notes = {"a doubt"};
  order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  heed_experts(order, list, 5);
  EXPECT_EQ(order[3], 8u);
  for (size_t few : {size_t(1), size_t(2), size_t(9)}) {
    order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    heed_experts(order, list, few);
    EXPECT_EQ(order[8], 8u) << few;
  }
}

class Race : public OwnCache {};

// What is reported as faster is faster than all that plain compilation does: the very code that a
// user gets without a search is what candidates run against.
TEST_F(Race, StartsFromPlainCompilation) {
  OptimizeOptions o = test_options(600);
  o.disable = {"mugraph", "fold", "patterns"};
  const std::function<void(const Progress&)> nothing;
  Session session(o, nothing, nullptr, nullptr);
  ModuleOptions plain;
  KernelPool pool(o.threads);
  plain.pool = &pool;
  int fused = 0;
  for (const std::string& file : files_of(source_dir() + "/examples", ".ug")) {
    const Graph program = parse(*read_file(file), file);
    Candidate itself;
    itself.graph = program;
    const PartResult found = improve(session, program, 0, "", {1, 500, 600}, nullptr, &itself);
    ASSERT_TRUE(found.original) << file;
    Cache cache;
    const std::string source = Module::compile(program, cache, plain)->source();
    EXPECT_EQ(found.original.source(), source) << file;
    if (found.rewrite) {
      EXPECT_EQ(found.rewrite->code().code().source(), source) << file;
    }
    EXPECT_GT(found.original_timing.median_s, 0) << file;
    EXPECT_TRUE(!found.rewrite || found.speedup > 1) << file;
    fused += !(fuse_operators(program, best_isa()) == program);
  }
  EXPECT_GE(fused, 5) << "programs that tell fused code from other code";
}

TEST_F(Race, CodesAreThoseOfTheirPrograms) {
  OptimizeOptions o = test_options(60);
  o.threads = 3;
  const std::function<void(const Progress&)> nothing;
  Session session(o, nothing, nullptr, nullptr);
  std::vector<Outcome> list(5);
  std::vector<Outcome*> pointers;
  for (size_t i = 0; i < list.size(); i++) {
    const std::string n = std::to_string(8 * (i + 1));
    list[i].graph = parse("graph g {\nx = input : f32[" + n + "," + n +
                          "]\ny = exp x\nz = add y, x\nreturn z\n}");
    pointers.push_back(&list[i]);
  }
  const std::vector<CompiledCode> codes = session.codes_for(pointers);
  ASSERT_EQ(codes.size(), list.size());
  for (size_t i = 0; i < list.size(); i++) {
    EXPECT_EQ(codes[i].cpu->output_types(),
              std::vector{list[i].graph.type(list[i].graph.outputs()[0])});
    std::string why;
    const auto checked = session.check(list[i].graph, codes[i], why);
    ASSERT_TRUE(checked) << why;
    EXPECT_EQ(checked->graph(), list[i].graph);
  }
  EXPECT_TRUE(session.codes_for({}).empty());
  // Code of another program is no code of this one, unless its source is known to be.
  std::string why;
  const Graph other = parse("graph g {\nx = input : f32[8,8]\ny = sqr x\nreturn y\n}");
  EXPECT_FALSE(session.check(other, codes[0], why));
  EXPECT_NE(why, "");
  EXPECT_FALSE(session.check(other, codes[0], why, std::string(64, '0')));
  EXPECT_TRUE(session.check(other, codes[0], why, sha256_hex(codes[0].source())));
}

// A proof of one program and code of another are no rewrite.
TEST_F(Race, ProofAndCodeAreOfOneProgram) {
  OptimizeOptions o = test_options(60);
  const std::function<void(const Progress&)> nothing;
  Session session(o, nothing, nullptr, nullptr);
  Outcome twice, sum;
  twice.graph = parse("graph g {\nx = input : f32[8]\ny = add x, x\nz = exp y\nreturn z\n}");
  sum.graph =
      parse("graph g {\nx = input : f32[8]\nc = const {value=2} : f32[]\ny = mul x, c\nz = exp y\n"
            "return z\n}");
  Verifier verifier(twice.graph, session.verify_options());
  const auto proof = session.prove(verifier, sum);
  ASSERT_TRUE(proof) << sum.why;
  const auto right = session.check(sum, session.code_for(sum));
  const auto wrong = session.check(twice, session.code_for(twice));
  ASSERT_TRUE(right && wrong);
  EXPECT_EQ(Rewrite(*proof, *right).graph(), sum.graph);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Rewrite(*proof, *wrong), "");
}

TEST(Noise, ThatHidesAGainIsTold) {
  std::vector<double> even(40, 1.0), noisy, slower(40, 1.02), faster(40, 0.5);
  for (int i = 0; i < 40; i++) noisy.push_back(i % 4 < 2 ? 0.5 : 2.0);
  const auto told = [&](const std::vector<std::vector<double>>& others) {
    std::vector<Rounds> rounds{{"original", even}};
    for (const auto& seconds : others) rounds.push_back({"candidate", seconds});
    return too_noisy(summarize(rounds));
  };
  EXPECT_TRUE(told({noisy}));
  EXPECT_TRUE(told({slower, noisy}));
  EXPECT_FALSE(told({slower})) << "not faster, and sure of it";
  EXPECT_FALSE(told({noisy, faster})) << "there is a winner";
  EXPECT_FALSE(told({}));
  EXPECT_GT(summarize({{"noisy", noisy}})[0].spread, 0.5);
  EXPECT_EQ(summarize({{"even", even}})[0].spread, 0);
}

TEST_F(Race, WhatIsKeptIsMeasured) {
  OptimizeOptions o = test_options(60);
  o.disable = {"mugraph", "fold", "patterns", "synth", "mutate"};
  const Graph program = parse("graph g { X = input : f32[64,64]\n y = exp X\n return y }");
  const OptimizeResult kept = optimize(program, o);
  ASSERT_FALSE(kept.improved());
  EXPECT_GT(kept.original_s, 0);
  EXPECT_EQ(kept.original_s, kept.seconds);
  const OptimizeResult again = optimize(program, o);
  EXPECT_TRUE(again.report.from_cache);
  EXPECT_EQ(again.original_s, kept.original_s) << "as it was measured then";
}

}  // namespace
}  // namespace tessera
