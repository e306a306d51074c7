#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "ir/text.h"
#include "search/mugraph/mugraph.h"
#include "search/mugraph/stored_region.h"

namespace tessera {
namespace {

// Several regions: products in a row, a softmax that keeps or drops its shift, a movement that
// merges axes, and two outputs.
const char* kSeveralRegions = R"(graph several {
  X = input : f32[4,64]
  A = input : f32[64,32]
  B = input : f32[32,64]
  C = input : f32[64,48]
  D = input : f32[48,64]
  a = matmul X, A
  b = exp a
  c = matmul b, B
  m = reduce_max c {axes=[1], keepdims=true}
  s = sub c, m
  e = exp s
  t = sum e {axes=[1], keepdims=true}
  p = div e, t
  d = matmul p, C
  f = matmul d, D
  g = sqr f
  h = matmul g, A
  r = reshape h {shape=[128]}
  u = sqr r
  v = sum u {axes=[0]}
  return v, f
})";

// A reduction that is worth splitting.
const char* kSplit = R"(graph split {
  W = input : f32[1048576]
  y = sqr W
  z = sum y {axes=[0]}
  return z
})";

// Texts in memory; cancels after some were remembered.
class Notes : public SearchMemory {
 public:
  std::optional<std::string> recall(const std::string& name) override {
    asked++;
    const auto it = texts.find(name);
    if (it == texts.end()) return std::nullopt;
    known++;
    return it->second;
  }
  void remember(const std::string& name, const std::string& text) override {
    texts[name] = text;
    if (++remembered == stop_after) cancel = true;
  }
  std::map<std::string, std::string> texts;
  int asked = 0, known = 0, remembered = 0, stop_after = -1;
  std::atomic<bool> cancel{false};
};

struct FoundRun {
  SearchReport report;
  std::vector<Candidate> candidates;
};

FoundRun run(const Graph& program, Notes* notes, int threads) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  context.threads = threads;
  context.memory = notes;
  if (notes) context.cancel = &notes->cancel;
  CollectingSink sink;
  FoundRun f;
  Budget budget;
  budget.seconds = 1e6;
  f.report = Mugraph().run({program}, context, budget, sink);
  f.candidates = std::move(sink.candidates);
  return f;
}

void expect_same(const FoundRun& a, const FoundRun& b) {
  EXPECT_EQ(a.report.stop, b.report.stop);
  EXPECT_EQ(a.report.detail, b.report.detail);
  EXPECT_EQ(a.report.values, b.report.values);
  EXPECT_EQ(a.report.edges, b.report.edges);
  EXPECT_EQ(a.report.graphs, b.report.graphs);
  EXPECT_EQ(a.report.tilings, b.report.tilings);
  EXPECT_EQ(a.report.pruned, b.report.pruned);
  EXPECT_EQ(a.report.best_cost, b.report.best_cost);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(print(a.candidates[i].graph), print(b.candidates[i].graph)) << i;
    EXPECT_EQ(a.candidates[i].cost, b.candidates[i].cost);
    EXPECT_EQ(a.candidates[i].derivation, b.candidates[i].derivation);
    EXPECT_EQ(a.candidates[i].notes, b.candidates[i].notes);
    EXPECT_EQ(a.candidates[i].as_written, b.candidates[i].as_written);
  }
}

TEST(Resume, InterruptedAfterAnyRegionEqualsUninterrupted) {
  const Graph program = parse(kSeveralRegions);
  const FoundRun whole = run(program, nullptr, 2);
  ASSERT_FALSE(whole.candidates.empty());
  Notes all;
  expect_same(whole, run(program, &all, 2));
  const int regions = all.remembered;
  ASSERT_GE(regions, 3);
  EXPECT_EQ(all.known, 0);
  for (int stop_after = 1; stop_after < regions; ++stop_after) {
    Notes notes;
    notes.stop_after = stop_after;
    EXPECT_EQ(run(program, &notes, 2).report.stop, StopReason::Cancelled);
    EXPECT_EQ(notes.remembered, stop_after);
    notes.cancel = false;
    notes.stop_after = -1;
    expect_same(whole, run(program, &notes, 2));
    EXPECT_EQ(notes.known, stop_after);
    EXPECT_EQ(notes.remembered, regions);  // no region was searched twice
  }
}

TEST(Resume, SplitReductionsComeBack) {
  const Graph program = parse(kSplit);
  Notes notes;
  const FoundRun whole = run(program, &notes, 2);
  ASSERT_EQ(notes.remembered, 1);
  const auto region = mugraph::read_region(notes.texts.begin()->second);
  ASSERT_TRUE(region);
  EXPECT_GT(std::count_if(region->worlds.begin(), region->worlds.end(),
                          [](const auto& w) { return w.split_axis >= 0; }),
            0);
  EXPECT_GT(std::count_if(region->choices.begin(), region->choices.end(),
                          [](const auto& c) { return !c.plan.parts.empty(); }),
            0);
  expect_same(whole, run(program, &notes, 2));
  EXPECT_EQ(notes.known, 1);
}

// Tensors of two programs have the same numbers; what is kept of one is no answer for the other.
TEST(Resume, ProgramsAreKeptApart) {
  const char* text = R"(graph one {
  X = input : f32[8,9]
  e = exp X
  f = sqr e
  s = sum f {axes=[1], keepdims=true}
  O = div e, s
  return O
})";
  std::string other = text;
  other.replace(other.find("sqr e"), 5, "abs e");
  Notes notes;
  run(parse(text), &notes, 2);
  ASSERT_EQ(notes.remembered, 1);
  expect_same(run(parse(other), nullptr, 2), run(parse(other), &notes, 2));
  EXPECT_EQ(notes.known, 0);
  EXPECT_EQ(notes.remembered, 2);
}

TEST(Resume, ThreadsDoNotMatter) {
  const Graph program = parse(kSeveralRegions);
  const FoundRun whole = run(program, nullptr, 1);
  Notes first;
  first.stop_after = 2;
  run(program, &first, 8);
  for (int threads : {1, 2, 8}) {
    Notes notes;
    notes.texts = first.texts;
    expect_same(whole, run(program, &notes, threads));
    EXPECT_EQ(notes.known, 2);
  }
}

TEST(Resume, TextsThatDoNotFitAreSearchedAgain) {
  const Graph program = parse(kSeveralRegions);
  const FoundRun whole = run(program, nullptr, 2);
  Notes all;
  run(program, &all, 2);
  int changed = 0;
  for (const auto& [name, text] : all.texts) {
    // Operations that the region does not have; plans of the region before; half a text.
    std::string far = text;
    const size_t at = far.find_last_of("0123456789");
    ASSERT_NE(at, std::string::npos);
    far[at] = 'z';
    for (const std::string& bad : {far, all.texts.begin()->second, text.substr(0, text.size() / 2),
                                   std::string("1 2 3"), std::string()}) {
      if (bad == text) continue;
      Notes notes;
      notes.texts[name] = bad;
      const FoundRun f = run(program, &notes, 2);
      EXPECT_FALSE(f.candidates.empty());
      if (bad != all.texts.begin()->second) expect_same(whole, f);
      changed++;
    }
  }
  EXPECT_GT(changed, 8);
}

TEST(Resume, PrintedRegionsReadBack) {
  const Graph program = parse(kSeveralRegions);
  Notes all;
  run(program, &all, 2);
  int plans = 0;
  for (const auto& [name, text] : all.texts) {
    const auto region = mugraph::read_region(text);
    ASSERT_TRUE(region) << name;
    EXPECT_EQ(mugraph::print_region(*region), text);
    plans += int(region->choices.size());
  }
  EXPECT_GT(plans, 20);
}

}  // namespace
}  // namespace tessera
