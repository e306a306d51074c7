// What synthesis offers is what the verifier believes: programs that one small world takes for
// equal, and other inputs, sizes or roundings do not.
#include <gtest/gtest.h>

#include "cost/target.h"
#include "ir/text.h"
#include "search/synth/synth.h"
#include "verify/funnel.h"

namespace tessera {
namespace {

std::vector<Candidate> offered(const Graph& g, SearchReport* report = nullptr) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = 400'000;
  budget.seconds = 3600;  // ends by its steps alone, however slow the machine
  budget.candidates = 8;
  CollectingSink sink;
  const SearchReport r = Synth().run(Subprogram{g}, context, budget, sink);
  if (report) *report = r;
  return std::move(sink.candidates);
}

// None of the first programs offered is refuted; some are offered.
void expect_none_refuted(const char* text) {
  const Graph g = parse(text);
  const std::vector<Candidate> candidates = offered(g);
  EXPECT_FALSE(candidates.empty());
  for (const Candidate& c : candidates) {
    const Verdict verdict = verify(g, c.graph);
    EXPECT_FALSE(verdict.refuted()) << verdict.str() << "\n" << print(c.graph);
  }
}

TEST(Trials, ProductsOfExtentsAreNoConstants) {
  // 1 / mean is 6 / sum where 3·2 elements are looked at.
  expect_none_refuted(R"(graph g {
  a = input : f32[30,40]
  s = sqr a
  m = mean s {axes=[0,1]}
  one = const {value=1} : f32[]
  r = div one, m
  return r
})");
}

TEST(Trials, FewCentredNumbersAreNotAllThereIs) {
  // Of two and three centred numbers, fourth moments are squares of second ones.
  expect_none_refuted(R"(graph g {
  x = input : f64[500]
  m = mean x {axes=[0]}
  d = sub x, m
  f = pow d {exponent=4}
  k = mean f {axes=[0]}
  q = sqr d
  v = mean q {axes=[0]}
  w = sqr v
  r = div k, w
  return r
})");
}

TEST(Trials, RareBranches) {
  // Huber's loss is min(d²/2, |d − 1/2|), but for d between 1/2 and 1.
  expect_none_refuted(R"(graph g {
  x = input : f32[200]
  d = abs x
  one = const {value=1} : f32[]
  half = const {value=0.5} : f32[]
  c = lt d, one
  s = sqr d
  a = mul half, s
  b = sub d, half
  r = where c, a, b
  return r
})");
}

TEST(Trials, SignsOfWhatRootsAreTakenOf) {
  expect_none_refuted(R"(graph g {
  x = input : f32[100]
  s = sqr x
  t = sum s {axes=[0]}
  n = sqrt t
  one = const {value=1} : f32[]
  r = div one, n
  f = min one, r
  y = mul x, f
  return y
})");
}

TEST(Trials, RoundingOfWhatIsFarFromZero) {
  // Σ(x−x̄)(y−ȳ) = Σx(y−ȳ), which is worse far from zero.
  expect_none_refuted(R"(graph g {
  x = input : f64[1000]
  y = input : f64[1000]
  mx = mean x {axes=[0]}
  my = mean y {axes=[0]}
  dx = sub x, mx
  dy = sub y, my
  p = mul dx, dy
  s = sum p {axes=[0]}
  return s
})");
}

TEST(Trials, FewTruthsAreNotTheSameByChance) {
  expect_none_refuted(R"(graph g {
  x = input : f64[500]
  a = slice x {starts=[1], stops=[499], steps=[1]}
  b = slice x {starts=[0], stops=[498], steps=[1]}
  c = slice x {starts=[2], stops=[500], steps=[1]}
  l = gt a, b
  r = gt a, c
  p = and l, r
  return p
})");
}

}  // namespace
}  // namespace tessera
