// The search against plain enumeration on random small programs: it never has a worse best graph of
// one kernel, and what both propose is right.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "cost/analytical.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "ir/walk.h"
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

// The program of one value, of inputs and of values that other kernels have stored.
Graph part_of(const Graph& g, TensorId value, const std::set<uint32_t>& stored) {
  Graph part("part");
  std::map<uint32_t, TensorId> made;
  const auto make = [&](auto& self, TensorId t) -> TensorId {
    const auto [it, fresh] = made.try_emplace(t.index);
    if (!fresh) return it->second;
    const Op& op = g.producer(t);
    if (is_input(op.kind) || (t.index != value.index && stored.count(t.index) != 0))
      return made[t.index] = part.add_input(g.type(t), "t" + std::to_string(t.index));
    std::vector<TensorId> operands;
    for (TensorId x : op.inputs) operands.push_back(self(self, x));
    return made[t.index] = part.add(op.kind, operands, op.attrs);
  };
  part.set_outputs({make(make, value)});
  return part;
}

// Kernel graphs of up to five kernels, each of which stores a value of the program (or the result)
// and is the cheapest of all block graphs for it: Algorithm 1 with the kernels' results drawn from
// the program's values. The cost of the cheapest; infinite where a part has no block graph.
double best_of_several(const Graph& g, const Target& target, size_t& kernels) {
  const AnalyticalModel model(target);
  std::vector<TensorId> inner;
  for (const Op& op : g.ops())
    if (!is_leaf(op.kind) && op.result().index != g.outputs()[0].index)
      inner.push_back(op.result());
  double best = INFINITY;
  for (unsigned chosen = 0; chosen < 1u << inner.size(); ++chosen) {
    std::set<uint32_t> stored;
    for (size_t i = 0; i < inner.size(); ++i)
      if (chosen >> i & 1) stored.insert(inner[i].index);
    if (stored.size() > 4) continue;
    Graph whole("whole");
    std::map<std::string, TensorId> made;  // by the name that parts have for it
    for (TensorId t : g.inputs()) made["t" + std::to_string(t.index)] = whole.add_input(g.type(t));
    std::set<uint32_t> results = stored;
    results.insert(g.outputs()[0].index);
    bool found_all = true;
    for (uint32_t t : results) {
      SearchReport report;
      const auto found = search_oracle(part_of(g, TensorId{t}, stored), target, true, 1, report);
      found_all = found_all && !found.empty() && report.stop == StopReason::Exhausted;
      if (!found_all) break;
      const Graph& part = found[0].graph;
      std::map<uint32_t, TensorId> map;
      for (const Op& op : part.ops()) {
        std::vector<TensorId> in;
        for (TensorId x : op.inputs) in.push_back(map.at(x.index));
        TensorId& to = map[op.result().index];
        if (is_input(op.kind))
          to = made.at(part.tensor(op.result()).name);
        else if (op.body.valid())
          to = whole.op(whole.add_graph_op(op.kind, in, part.body(op), {"k"})).result();
        else
          to = whole.add(op.kind, in, op.attrs);
      }
      made["t" + std::to_string(t)] = map.at(part.outputs()[0].index);
    }
    if (!found_all) continue;
    whole.set_outputs({made.at("t" + std::to_string(g.outputs()[0].index))});
    const double cost = model.cost(whole).seconds;
    if (cost < best) best = cost, kernels = results.size();
  }
  return best;
}

TEST(Oracle, NeverWorseThanEnumerationOfSeveralKernels) {
  // Launches are nearly free, and a row does not fit: storing what is used twice may pay. Memory is
  // as fast as the cache, since the search takes for cached what a kernel has just stored.
  const Target target =
      parse_target("target free\nkind cpu\ncores 2\nvector_bytes 16\nlaunch 1ns\nblock 1ns\n"
                   "iteration 1ns\nlevel dram capacity 16G bandwidth 100G\n"
                   "level l1 capacity 96 bandwidth 100G per_core\n"
                   "matmul f32 10G\npointwise f32 0.1G\n");
  std::set<uint64_t> seen;
  int compared = 0, several = 0;
  for (uint64_t seed = 1; compared < 80 && seed < 1500; ++seed) {
    const Graph g = small_program(seed);
    if (g.inputs().empty() || g.ops().size() < 4 || !seen.insert(structural_hash(g)).second)
      continue;
    // Where exponentials may overflow, the whole program has steps that its parts do not need; a
    // value and its double are one value to the search, which stores either.
    if (any_op(g, [](const Graph&, const Op& op) {
          return op.kind == OpKind::Exp ||
                 (op.kind == OpKind::Add && op.inputs[0].index == op.inputs[1].index);
        }))
      continue;
    size_t kernels = 0;
    const double plain = best_of_several(g, target, kernels);
    if (std::isinf(plain)) continue;
    SearchReport report;
    const std::vector<Candidate> ours = search_oracle(g, target, false, 1, report);
    double best = INFINITY;
    for (const Candidate& c : ours) best = std::min(best, c.cost);
    EXPECT_LE(best, plain * (1 + 1e-9)) << "seed " << seed << ", " << kernels << " kernels\n"
                                        << print(g);
    ++compared;
    several += kernels > 1;
  }
  EXPECT_EQ(compared, 80);
  std::cout << several << " of " << compared << " in several kernels\n";
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
