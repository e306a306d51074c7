// Programs that were found elsewhere, and searches in slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "driver/optimize.h"
#include "driver/own_cache.h"
#include "driver/partition.h"
#include "driver/results.h"
#include "ir/text.h"

namespace tessera {
namespace {

class Proposals : public OwnCache {
 protected:
  static OptimizeOptions options() { return test_options(); }
};

// A row at a time, by products with a column of ones: what a sum does for less.
const char* kSlow = R"(graph slow {
  X = input : f32[256,512]
  W = input : f32[512,512]
  O = matmul X, W
  s = sum O {axes=[0], keepdims=true}
  return s
})";
const char* kFast = R"(graph fast {
  A = input : f32[256,512]
  B = input : f32[512,512]
  a = sum A {axes=[0], keepdims=true}
  s = matmul a, B
  return s
})";
const char* kWrong = R"(graph wrong {
  A = input : f32[256,512]
  B = input : f32[512,512]
  r = sqr A
  a = sum r {axes=[0], keepdims=true}
  s = matmul a, B
  return s
})";

OptimizeOptions with(OptimizeOptions o, const char* program, const char* found) {
  Proposal p;
  p.of = parse(program);
  p.candidate.graph = parse(found);
  p.candidate.origin = "elsewhere";
  o.proposals = {p};
  o.only_proposals = true;
  return o;
}

TEST_F(Proposals, ARightOneIsProvedRacedAndRemembered) {
  const Graph program = parse(kSlow);
  const OptimizeResult r = optimize(program, with(options(), kSlow, kFast));
  ASSERT_TRUE(r.improved());
  EXPECT_EQ(r.graph(), parse(kFast));
  EXPECT_TRUE(r.certificate()->proved());
  EXPECT_TRUE(r.report.searches.empty());
  // Whoever asks for the program afterwards, under whatever names and with whatever budget, has it.
  OptimizeOptions other = options();
  other.budget_seconds += 3;
  std::string renamed = kSlow;
  for (size_t at; (at = renamed.find('X')) != renamed.npos;) renamed[at] = 'Q';
  const OptimizeResult again = optimize(parse(renamed), other);
  EXPECT_TRUE(again.report.from_cache);
  EXPECT_EQ(again.graph(), parse(kFast));
  EXPECT_EQ(again.graph().tensor(again.graph().inputs()[0]).name, "Q");
}

TEST_F(Proposals, WhatIsAWeightIsTheProgramsToSay) {
  std::string flagged = kFast;
  for (size_t at; (at = flagged.find("= input :")) != flagged.npos;)
    flagged.replace(at, 9, "= input {weight=true} :");
  const OptimizeResult r = optimize(parse(kSlow), with(options(), kSlow, flagged.c_str()));
  ASSERT_TRUE(r.improved());
  for (TensorId t : r.graph().inputs()) EXPECT_FALSE(r.graph().is_weight(t));
}

TEST_F(Proposals, AWrongOneIsRefusedAndNothingIsRemembered) {
  const Graph program = parse(kSlow);
  const OptimizeResult r = optimize(program, with(options(), kSlow, kWrong));
  EXPECT_FALSE(r.improved());
  ASSERT_EQ(r.candidates.size(), 1u);
  EXPECT_EQ(r.candidates[0].why, "differs from the original in a finite field");
  EXPECT_FALSE(optimize(program, options()).report.from_cache);
}

TEST_F(Proposals, ResultsHaveTheirKeysFromThePrograms) {
  const Target target = resolve_target(options());
  std::set<std::string> keys;
  for (const char* text : {kSlow, kFast, kWrong})
    keys.insert(result_key(parse(text), options(), target));
  OptimizeOptions fast = options();
  fast.level = Accuracy::Fast;
  keys.insert(result_key(parse(kSlow), fast, target));
  OptimizeOptions one = options();
  one.threads = 1;
  keys.insert(result_key(parse(kSlow), one, resolve_target(one)));
  EXPECT_EQ(keys.size(), 5u);
}

// The cheapest that a search finds, by canonical text.
std::set<std::pair<double, std::string>> found(const Graph& g, OptimizeOptions o) {
  o.budget_seconds = 600;
  o.use_cache = false;
  std::set<std::pair<double, std::string>> all;
  for (const Candidate& c : search(g, o).candidates) all.insert({c.cost, print_canonical(c.graph)});
  return all;
}

TEST_F(Proposals, SlicesFindTogetherWhatTheWholeFinds) {
  const char* conv = R"(graph conv {
    X = input : f32[1,8,12,12]
    W = input : f32[8,8,3,3]
    y = conv X, W {strides=[1,1], dilations=[1,1], groups=1, low=[1,1], high=[1,1]}
    return y
  })";
  for (const auto& [engine, text] :
       {std::pair("mugraph", kSlow), std::pair("mutate", conv), std::pair("synth", kSlow)}) {
    OptimizeOptions o = options();
    o.engine = engine;
    o.steps = 20'000;
    const Graph g = parse(text);
    const auto whole = found(g, o);
    ASSERT_FALSE(whole.empty()) << engine;
    std::set<std::pair<double, std::string>> together;
    for (o.slices = 3, o.slice = 0; o.slice < o.slices; ++o.slice) {
      const auto some = found(g, o);
      together.insert(some.begin(), some.end());
    }
    ASSERT_FALSE(together.empty()) << engine;
    EXPECT_EQ(*together.begin(), *whole.begin()) << engine;
    // And a bound leaves the cheapest alone.
    o.slices = 1;
    o.slice = 0;
    o.bound = whole.begin()->first;
    const auto bounded = found(g, o);
    ASSERT_FALSE(bounded.empty()) << engine;
    EXPECT_EQ(*bounded.begin(), *whole.begin()) << engine;
    EXPECT_LE(bounded.rbegin()->first, o.bound) << engine;
  }
}

}  // namespace
}  // namespace tessera
