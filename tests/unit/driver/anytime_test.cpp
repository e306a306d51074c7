// The budget, cancelling, and searches that go on where they stopped.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "backend/check.h"
#include "backend/cpu/module.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/process.h"
#include "driver/own_cache.h"
#include "driver/results.h"
#include "driver/saved_search.h"
#include "ir/text.h"

namespace tessera {
namespace {

// Regions of one part.
const char* kRegions = R"(graph regions {
  X = input : f32[8,64]
  A = input : f32[64,32]
  B = input : f32[32,64]
  C = input : f32[64,48]
  D = input : f32[48,64]
  a = matmul X, A
  b = exp a
  c = matmul b, B
  d = sqr c
  e = matmul d, C
  f = matmul e, D
  g = sqr f
  h = matmul g, A
  return h
})";

// Three parts, two of them equal.
const char* kParts = R"(graph parts {
  X = input : f32[64,96]
  Y = input : f32[64,96]
  a = exp X
  s = sum a {axes=[1], keepdims=true}
  p = div a, s
  b = exp Y
  t = sum b {axes=[1], keepdims=true}
  q = div b, t
  u = reshape p {shape=[6144]}
  v = reshape q {shape=[6144]}
  w = concat u, v {axis=0}
  x = sqr w
  y = sum x {axes=[0]}
  return y, p, q
})";

class Anytime : public OwnCache {
 protected:
  static OptimizeOptions options() { return test_options(600); }
  std::vector<std::string> saved() const {
    std::vector<std::string> files;
    const std::string folder = directory_ + "/searches";
    if (!std::filesystem::exists(folder)) return files;
    for (const auto& f : std::filesystem::directory_iterator(folder))
      files.push_back(f.path().string());
    return files;
  }
  // Ends the search at its `n`-th report.
  SearchOutcome search_until(const Graph& program, int n) {
    std::atomic<bool> cancel{false};
    int reports = 0;
    return search(
        program, options(), [&](const Progress&) { cancel = cancel || ++reports >= n; }, &cancel);
  }
};

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void expect_same(const SearchOutcome& a, const SearchOutcome& b) {
  EXPECT_EQ(a.report.states(), b.report.states());
  EXPECT_EQ(a.report.pruned, b.report.pruned);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (size_t i = 0; i < a.candidates.size(); i++)
    EXPECT_EQ(print(a.candidates[i].graph), print(b.candidates[i].graph));
}

TEST(Deadline, EndsWhenSpentOrAbandonedNotWhenCancelled) {
  std::atomic<bool> cancel{false}, abandon{false};
  Deadline spent(1e-3, nullptr, nullptr);
  while (!spent.ended()) std::this_thread::yield();
  EXPECT_TRUE(spent.over());
  Deadline open(1e6, &cancel, &abandon);
  EXPECT_FALSE(open.cancelled());
  cancel = true;
  EXPECT_TRUE(open.cancelled());
  EXPECT_FALSE(open.ended());
  abandon = true;
  while (!open.ended()) std::this_thread::yield();
  EXPECT_FALSE(open.over());
}

TEST(Deadline, StopsTheCompilerAndTheCheck) {
  std::atomic<bool> stop{true};
  const ProcessResult slept = run_process({"/bin/sleep", "1000"}, 2000, &stop);
  EXPECT_TRUE(slept.cancelled);
  EXPECT_FALSE(slept.timed_out);

  const Graph g = parse("graph g { X = input : f32[4,5] Y = exp X return Y }");
  Cache cache;
  ModuleOptions module_options;
  auto module = Module::compile(g, cache, module_options);
  CheckOptions check;
  CheckReport report;
  auto run = [&](auto in, auto out) { module->run(in, out); };
  EXPECT_TRUE(check_compiled(g, run, check, &report));
  check.cancel = &stop;
  EXPECT_FALSE(check_compiled(g, run, check, &report));
  EXPECT_NE(report.what.find("stopped"), std::string::npos) << report.what;
}

TEST_F(Anytime, AStoppedCompilerIsNoRefusal) {
  std::atomic<bool> stop{true};
  Cache cache;
  ModuleOptions module_options;
  module_options.cancel = &stop;
  try {
    Module::compile(parse("graph g { X = input : f32[4,5] Y = exp X return Y }"), cache,
                    module_options);
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::Cancelled) << e.what();
  }
}

TEST_F(Anytime, CancellingDuringTheSearchProvesWhatWasFound) {
  std::atomic<bool> cancel{false};
  const OptimizeResult r = optimize(
      parse(kRegions), options(),
      [&](const Progress& p) { cancel = cancel || (p.search && p.search->best_cost > 0); },
      &cancel);
  EXPECT_TRUE(r.report.cancelled);
  EXPECT_TRUE(r.report.unfinished);
  EXPECT_TRUE(r.report.resumable);
  ASSERT_FALSE(r.candidates.empty());
  EXPECT_EQ(r.improved(), (r.certificate() != nullptr));
  EXPECT_EQ(r.module() == nullptr, !r.report.original_failed.empty());
}

// x = x² / 2 + 1/10, `steps` times: unrolled, its polynomial has a degree of 2^steps.
Graph recurrence(int steps) {
  Graph g("recurrence");
  const Type type{DType::F32, {Dim(8)}};
  TensorId x = g.add_input(type, "x");
  for (int i = 0; i < steps; i++) {
    const TensorId half = g.add_const(Rational::ratio(1, 2), {DType::F32, {}});
    const TensorId tenth = g.add_const(Rational::ratio(1, 10), {DType::F32, {}});
    const TensorId square = g.add(OpKind::Mul, {x, x});
    x = g.add(OpKind::Add, {g.add(OpKind::Mul, {square, half}), tenth});
  }
  g.add_output(x);
  return g;
}

// A guard against hanging; nothing is timed.
TEST_F(Anytime, UnrolledRecurrencesEnd) {
  OptimizeOptions o = options();
  o.budget_seconds = 0.2;
  for (int steps : {200, 4000}) {
    const OptimizeResult r = optimize(recurrence(steps), o);
    EXPECT_FALSE(r.improved());
    EXPECT_TRUE(r.graph() == r.original);
  }
}

// It may have been the machine's load.
TEST_F(Anytime, ThatNothingWasCompiledIsNotRemembered) {
  OptimizeOptions o = options();
  o.budget_seconds = 1e-6;
  for (int run = 0; run < 2; run++) {
    const OptimizeResult r = optimize(parse(kRegions), o);
    EXPECT_FALSE(r.report.from_cache);
    EXPECT_EQ(r.module(), nullptr);
    EXPECT_EQ(r.report.original_failed, "the budget ended before it was compiled");
  }
}

TEST_F(Anytime, AbandoningStopsAtOnce) {
  std::atomic<bool> cancel{true}, abandon{true};
  const OptimizeResult r = optimize(parse(kRegions), options(), {}, &cancel, &abandon);
  EXPECT_FALSE(r.improved());
  EXPECT_TRUE(r.report.unfinished);
  for (const Outcome& o : r.candidates) EXPECT_NE(o.fate, Fate::Chosen);
}

TEST_F(Anytime, ASpentBudgetKeepsTheOriginalAndTheSearch) {
  OptimizeOptions none = options();
  none.budget_seconds = 1e-6;
  const OptimizeResult r = optimize(parse(kRegions), none);
  EXPECT_FALSE(r.improved());
  EXPECT_TRUE(r.graph() == r.original);
  EXPECT_TRUE(r.report.unfinished);
  EXPECT_EQ(r.module() == nullptr, !r.report.original_failed.empty());
  EXPECT_EQ(saved().size(), 1u);
  // With time, the same program is improved or kept, and nothing is left over.
  OptimizeOptions more = options();
  more.resume = true;
  const OptimizeResult again = optimize(parse(kRegions), more);
  EXPECT_FALSE(again.report.unfinished);
  EXPECT_NE(again.module(), nullptr);
  EXPECT_NE(again.report.resumed.find("resumed after"), std::string::npos) << again.report.resumed;
  EXPECT_TRUE(saved().empty());
}

TEST_F(Anytime, EqualPartsAreSearchedOnce) {
  OptimizeOptions o = options();
  o.use_cache = false;
  const OptimizeResult r = optimize(parse(kParts), o);
  EXPECT_EQ(r.report.parts, 3);
  EXPECT_EQ(r.report.searches.size(), 2u);
  EXPECT_TRUE(saved().empty()) << "kept although the cache is off";
}

TEST_F(Anytime, ResumedSearchEqualsAnUninterruptedOne) {
  const Graph program = parse(kRegions);
  const SearchOutcome whole = search(program, options());
  EXPECT_FALSE(whole.resumable);
  EXPECT_TRUE(whole.resumed.empty());
  int taken_up = 0;
  for (int n : {1, 4, 8, 12}) {
    const SearchOutcome part = search_until(program, n);
    if (!part.resumable) continue;  // was done by then
    ASSERT_EQ(saved().size(), 1u);
    OptimizeOptions resume = options();
    resume.resume = true;
    resume.budget_seconds = 500;  // another budget is no other search
    const SearchOutcome rest = search(program, resume);
    expect_same(whole, rest);
    EXPECT_NE(rest.resumed.find("resumed after"), std::string::npos) << rest.resumed;
    taken_up += rest.resumed.find("; 0 finished") == std::string::npos;
    EXPECT_TRUE(saved().empty());
  }
  EXPECT_GT(taken_up, 0);
}

TEST_F(Anytime, SavedSearchesThatAreDamagedOrForeignAreIgnored) {
  const Graph program = parse(kRegions);
  const SearchOutcome whole = search(program, options());
  OptimizeOptions resume = options();
  resume.resume = true;
  EXPECT_NE(search(program, resume).resumed.find("nothing to resume"), std::string::npos);

  search_until(parse(kParts), 1);
  ASSERT_EQ(saved().size(), 1u);
  const std::string foreign = read_all(saved()[0]);
  ASSERT_TRUE(search_until(program, 4).resumable);
  std::string path;
  for (const std::string& f : saved())
    if (read_all(f) != foreign) path = f;
  const std::string good = read_all(path);
  ASSERT_GT(good.size(), 200u);
  std::string flipped = good;
  flipped[flipped.size() / 2] ^= 1;
  std::string other_version = good;
  other_version.replace(other_version.find("search 2"), 8, "search 9");
  for (const std::string& bad : {flipped, good.substr(0, good.size() - 1), foreign, other_version,
                                 std::string("hello\n"), std::string()}) {
    std::ofstream(path, std::ios::binary) << bad;
    const SearchOutcome r = search(program, resume);
    EXPECT_NE(r.resumed.find("ignored"), std::string::npos) << r.resumed;
    EXPECT_EQ(r.resumed.find('\n'), std::string::npos);
    expect_same(whole, r);
  }
  std::ofstream(path, std::ios::binary) << good;
  EXPECT_NE(search(program, resume).resumed.find("resumed after"), std::string::npos);
}

TEST_F(Anytime, PartsThatAreDoneAreNotSearchedAgain) {
  std::atomic<bool> cancel{false};
  const OptimizeResult first = optimize(
      parse(kParts), options(),
      [&](const Progress& p) { cancel = cancel || p.part == "3/3" || p.part == "2/3"; }, &cancel);
  EXPECT_TRUE(first.report.unfinished);
  ASSERT_EQ(saved().size(), 1u);
  OptimizeOptions resume = options();
  resume.resume = true;
  const OptimizeResult second = optimize(parse(kParts), resume);
  EXPECT_FALSE(second.report.unfinished);
  EXPECT_FALSE(second.report.from_cache);
  EXPECT_LT(second.report.searches.size(), 2u);
  EXPECT_EQ(second.improved(), (second.certificate() != nullptr));
  EXPECT_TRUE(saved().empty());
}

// Whatever the saved file says about a candidate, nothing is handed out without a proof. The part
// is so large that leaving it out is worth one.
TEST_F(Anytime, ASavedResultThatIsWrongIsNotBelieved) {
  const Graph program = parse(R"(graph parts {
  X = input : f32[512,960]
  Y = input : f32[64]
  a = exp X
  s = sum a {axes=[1], keepdims=true}
  p = div a, s
  u = reshape p {shape=[491520]}
  w = concat u, Y {axis=0}
  y = sum w {axes=[0]}
  return y, p
})");
  Cache cache;
  OptimizeOptions o = options();
  SavedSearch plant(cache, program, o, resolve_target(o));
  const Graph part = parse(R"(graph parts {
  X = input : f32[512,960]
  a = exp X
  s = sum a {axes=[1], keepdims=true}
  p = div a, s
  return p
})");
  const Graph wrong = parse("graph w { X = input : f32[512,960] p = neg X return p }");
  StoredResult stored;
  stored.improved = true;
  stored.winner.graph = wrong;
  stored.winner.origin = "mugraph";
  stored.winner.speedup = 9;
  MemoryOf(plant, memory_prefix(part)).remember("result", print_result(stored));
  ASSERT_TRUE(plant.save(1));
  o.resume = true;
  const OptimizeResult r = optimize(program, o);
  EXPECT_NE(r.report.resumed.find("1 finished piece"), std::string::npos) << r.report.resumed;
  EXPECT_FALSE(r.improved());
  bool refuted = false;
  for (const Outcome& c : r.candidates) refuted = refuted || c.fate == Fate::Refuted;
  EXPECT_TRUE(refuted);
}

}  // namespace
}  // namespace tessera
