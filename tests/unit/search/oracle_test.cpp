// The search against plain enumeration on random small programs: it never has a worse best graph of
// one kernel, and what both propose is right.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "eval/eval.h"
#include "ir/text.h"
#include "search/exhaustive.h"

namespace tessera {
namespace {

// Two to five operators over tensors of [4,6] and their row sums, one output that uses the last.
Graph small_program(uint64_t seed) {
  std::mt19937_64 rng(seed);
  Graph g("small");
  struct Item {
    TensorId tensor;
    bool row;  // [4,1]
  };
  std::vector<Item> items;
  const Type full{DType::F64, {Dim(4), Dim(6)}};
  const int inputs = 1 + int(rng() % 2);
  for (int i = 0; i < inputs; ++i) items.push_back({g.add_input(full, i ? "Y" : "X"), false});
  const int operators = 2 + int(rng() % 3);
  for (int i = 0; i < operators; ++i) {
    const Item a = items[items.size() - 1 - rng() % std::min<size_t>(2, items.size())];
    const Item b = items[rng() % items.size()];
    const bool row = a.row && b.row;
    switch (rng() % 8) {
    case 0: items.push_back({g.add(OpKind::Mul, {a.tensor, b.tensor}), row}); break;
    case 1: items.push_back({g.add(OpKind::Add, {a.tensor, b.tensor}), row}); break;
    case 2: items.push_back({g.add(OpKind::Sqr, {a.tensor}), a.row}); break;
    case 3: items.push_back({g.add(OpKind::Exp, {a.tensor}), a.row}); break;
    case 4: items.push_back({g.add(OpKind::Relu, {a.tensor}), a.row}); break;
    case 5: {
      TensorId e = g.add(OpKind::Exp, {b.tensor});  // a divisor that is not zero
      items.push_back({g.add(OpKind::Div, {a.tensor, e}), row});
      break;
    }
    default:
      if (a.row) {
        items.push_back({g.add(OpKind::Sub, {a.tensor, items[0].tensor}), false});
      } else {
        ReduceAttrs axes;
        axes.axes = {1};
        axes.keepdims = true;
        items.push_back({g.add(OpKind::Sum, {a.tensor}, axes), true});
      }
    }
  }
  g.set_outputs({items.back().tensor});
  return without_dead_code(g);
}

std::vector<Candidate> search_oracle(const Graph& g, const Target& target, bool exhaustive,
                                     int threads, SearchReport& report) {
  Context context;
  context.target = &target;
  context.threads = threads;
  mugraph::ExhaustiveOptions limits;
  limits.max_operators = 8;
  limits.max_states = 200'000;
  CollectingSink sink;
  Budget budget;
  budget.steps = 200'000;
  if (exhaustive)
    report = mugraph::Exhaustive(limits).run({g}, context, budget, sink);
  else
    report = Mugraph().run({g}, context, budget, sink);
  return std::move(sink.candidates);
}

TEST(Oracle, NeverWorseThanPlainEnumeration) {
  // Where launches are dear, where tiles and loops decide, and where no row fits.
  const Target targets[] = {
      default_cpu_target(),
      parse_target("target small\nkind cpu\ncores 2\nvector_bytes 16\nlaunch 20ns\nblock 1ns\n"
                   "iteration 1ns\nlevel dram capacity 16G bandwidth 10G\n"
                   "level l1 capacity 1K bandwidth 100G per_core\n"
                   "matmul f32 10G\npointwise f32 1G\n"),
      // Not a row fits: loops, and passes where rows are used twice.
      parse_target("target least\nkind cpu\ncores 2\nvector_bytes 16\nlaunch 20ns\nblock 1ns\n"
                   "iteration 1ns\nlevel dram capacity 16G bandwidth 10G\n"
                   "level l1 capacity 96 bandwidth 100G per_core\n"
                   "matmul f32 10G\npointwise f32 1G\n")};
  std::set<uint64_t> seen;
  int compared = 0;
  for (uint64_t seed = 1; compared < 240 && seed < 1500; ++seed) {
    const Graph g = small_program(seed);
    if (g.inputs().empty() || g.ops().size() < 3 || !seen.insert(structural_hash(g)).second)
      continue;
    const Target& target = targets[seed % 3];
    SearchReport plain_report, report;
    const std::vector<Candidate> plain = search_oracle(g, target, true, 1, plain_report);
    if (plain.empty() || plain_report.stop != StopReason::Exhausted) continue;
    const std::vector<Candidate> ours = search_oracle(g, target, false, 1, report);
    double best = INFINITY;
    for (const Candidate& c : ours) {
      if (c.graph.bodies().size() == 1) best = std::min(best, c.cost);
    }
    EXPECT_LE(best, plain[0].cost * (1 + 1e-9)) << "seed " << seed << "\n"
                                                << print(g) << print(plain[0].graph);
    ++compared;
    if (compared % 10 != 0) continue;
    // The same for any number of threads.
    for (int threads : {2, 8}) {
      SearchReport other;
      const std::vector<Candidate> again = search_oracle(g, target, false, threads, other);
      ASSERT_EQ(again.size(), ours.size());
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_EQ(print(again[i].graph), print(ours[i].graph)) << "seed " << seed;
      EXPECT_EQ(other.states(), report.states());
    }
  }
  EXPECT_EQ(compared, 240);
}

}  // namespace
}  // namespace tessera
