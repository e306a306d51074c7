#include "search/synth/rates.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "search/synth/synth.h"

namespace tessera {
namespace {

using synth::CostKind;
using synth::Rates;

struct FoundByRates {
  SearchReport report;
  std::vector<Candidate> candidates;
};
FoundByRates synthesize(const char* text, const SynthOptions& options) {
  const Graph g = parse(text);
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 200'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  CollectingSink sink;
  FoundByRates found;
  found.report = Synth(options).run(Subprogram{g}, context, budget, sink);
  found.candidates = std::move(sink.candidates);
  return found;
}
bool uses(const Graph& g, OpKind kind) {
  for (const Op& op : g.ops())
    if (op.kind == kind) return true;
  return false;
}
constexpr const char* kSums = R"(graph g {
  A = input : f32[200,200]
  x = input : f32[200]
  u = mul A, x
  y = sum u {axes=[1]}
  return y
})";

TEST(SynthRates, WhatIsMeasuredDecides) {
  SynthOptions options;
  options.rates.set({{"matrix_vector", {{100, 600}, {40'000, 2'500}}}});
  ASSERT_FALSE(synthesize(kSums, options).candidates.empty());
  EXPECT_TRUE(uses(synthesize(kSums, options).candidates[0].graph, OpKind::Matmul));
  // On a machine whose products crawl, nothing is cheaper than the program.
  options.rates.set({{"matrix_vector", {{100, 1e9}}}});
  const FoundByRates slow = synthesize(kSums, options);
  if (!slow.candidates.empty()) {
    EXPECT_FALSE(uses(slow.candidates[0].graph, OpKind::Matmul)) << print(slow.candidates[0].graph);
  }
}

TEST(SynthRates, TimesAreInterpolatedAndProportionalBeyond) {
  constexpr const char* add = R"(graph g {
  A = input : f32[N,100]
  B = input : f32[N,100]
  y = add A, B
  return y
})";
  SynthOptions options;
  options.rates.set({{"simple", {{1'000, 200}, {3'000, 600}}}});
  auto seconds = [&](int n) {
    std::string text = add;
    for (size_t at; (at = text.find('N')) != std::string::npos;)
      text.replace(at, 1, std::to_string(n));
    return synthesize(text.c_str(), options).report.original_cost;
  };
  EXPECT_NEAR(seconds(5), 200e-9, 1e-12);    // never less than a call
  EXPECT_NEAR(seconds(20), 400e-9, 1e-12);   // between
  EXPECT_NEAR(seconds(60), 1200e-9, 1e-12);  // beyond
}

TEST(SynthRates, FusedLoopsCostWhatTheyWrite) {
  constexpr const char* chain = R"(graph g {
  A = input : f32[200,200]
  B = input : f32[200,200]
  t = mul A, B
  u = add t, A
  y = add u, A
  return y
})";
  constexpr const char* product = R"(graph g {
  A = input : f32[200,200]
  B = input : f32[200,200]
  t = mul A, B
  y = matmul t, B
  return y
})";
  SynthOptions fused, calls;
  fused.rates.kind = CostKind::Fused;
  const std::map<std::string, synth::TimeCurve> curves{{"simple", {{1, 5'000}, {40'000, 7'000}}},
                                                       {"matrix_product", {{8e6, 100'000}}}};
  fused.rates.set(curves);
  calls.rates.set(curves);
  EXPECT_NEAR(synthesize(chain, calls).report.original_cost, 21e-6, 1e-9);
  const FoundByRates one = synthesize(chain, fused);
  ASSERT_FALSE(one.candidates.empty());
  // A call of 5 us is every program's; beyond that one loop and a little for each operation.
  EXPECT_GT(one.report.original_cost, 2e-6);
  EXPECT_LT(one.report.original_cost, 4e-6);
  for (const Candidate& c : one.candidates) {
    EXPECT_GT(c.cost, 2e-6);
    EXPECT_LT(c.cost, 4e-6);
  }
  // A product reads an array, which a loop of its own has to write.
  const FoundByRates two = synthesize(product, fused);
  for (const Candidate& c : two.candidates) EXPECT_GT(c.cost, 97e-6) << print(c.graph);
}

TEST(SynthRates, FlopsCountOperationsOnly) {
  SynthOptions options;
  options.rates.kind = CostKind::Flops;
  const FoundByRates found = synthesize(R"(graph g {
  A = input : f32[10,20]
  B = input : f32[20,10]
  t = matmul A, B
  u = transpose t {perm=[1,0]}
  y = mul u, u
  return y
})",
                                        options);
  EXPECT_NEAR(found.report.original_cost, (2 * 10 * 20 * 10 + 100) * 1e-9, 1e-10);
}

TEST(SynthRates, NonsenseIsRefused) {
  Rates rates;
  EXPECT_THROW(rates.set({{"speed", {{1, 1}}}}), Error);
  EXPECT_THROW(rates.set({{"simple", {{10, 1}, {5, 1}}}}), Error);
  EXPECT_THROW(rates.set({{"simple", {{0, 1}}}}), Error);
  EXPECT_THROW(rates.set({{"simple", {{1, -1}}}}), Error);
}

TEST(SynthRates, WithoutHolesTheEnumerationAloneSearches) {
  SynthOptions whole, plain;
  plain.holes = false;
  // Nothing but a hole finds the 4: no constant of the program is one.
  constexpr const char* text = R"(graph g {
  A = input : f32[64,64]
  B = input : f32[64,64]
  t = const {value=3} : f32[]
  u = const {value=7} : f32[]
  p = mul A, B
  x = mul u, p
  y = mul p, t
  w = sub x, y
  return w
})";
  const FoundByRates with = synthesize(text, whole), without = synthesize(text, plain);
  ASSERT_FALSE(with.candidates.empty());
  EXPECT_EQ(computing_ops(with.candidates[0].graph), 2) << print(with.candidates[0].graph);
  EXPECT_NE(with.report.best_cost, without.report.best_cost);
}

}  // namespace
}  // namespace tessera
