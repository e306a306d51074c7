#include "search/synth/large.h"

#include <gtest/gtest.h>

#include <set>

#include "cost/target.h"
#include "counting.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "search/synth/inputs.h"
#include "search/synth/synth.h"
#include "search/synth/trials.h"
#include "verify/funnel.h"

namespace tessera::synth {
namespace {

// A chain of `length` steps x ← tanh(x)·y + x, into which `middle` is put.
Graph chain(int length, const std::string& middle, const std::string& inputs = "") {
  std::string text = "graph g {\n  x0 = input : f32[40,30]\n  y = input : f32[40,30]\n" + inputs;
  int v = 0;
  for (int i = 0; i < length; ++i) {
    const std::string from = "x" + std::to_string(v), n = std::to_string(v);
    if (i == length / 2 && !middle.empty()) {
      text += middle;
      text += "  x" + std::to_string(++v) + " = add " + from + ", z\n";
      continue;
    }
    text += "  t" + n + " = tanh " + from + "\n  p" + n + " = mul t" + n + ", y\n  x" +
            std::to_string(++v) + " = add p" + n + ", " + from + "\n";
  }
  return tessera::parse(text + "  return x" + std::to_string(v) + "\n}");
}

struct Found {
  SearchReport report;
  std::vector<Candidate> candidates;
};
Found search(const Graph& g, int64_t steps = 1'000'000) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget budget;
  budget.steps = steps;
  CollectingSink sink;
  Found f;
  f.report = Synth().run(Subprogram{g}, context, budget, sink);
  f.candidates = std::move(sink.candidates);
  return f;
}

TEST(Large, PartsAreConvexAndGoBackIn) {
  const Graph g = chain(12, "");
  for (uint32_t i = 0; i < g.ops().size(); ++i) {
    if (g.ops()[i].kind == OpKind::Input) continue;
    const Part part = part_above(g, OpId(i), 7);
    const Graph alone = as_graph(g, part);
    validate(alone);
    EXPECT_LE(computing(alone), 7);
    const Graph back = with_part(g, part, alone);
    validate(back);
    EXPECT_EQ(computing(back), computing(g));
    // No operator outside is between two inside.
    std::set<uint32_t> inside;
    for (OpId o : part.ops) inside.insert(o.index);
    std::vector<bool> after(g.ops().size(), false);
    for (uint32_t o = 0; o < g.ops().size(); ++o) {
      bool of_part = false, of_after = false;
      for (TensorId t : g.ops()[o].inputs) {
        of_part = of_part || inside.count(g.tensor(t).producer.index);
        of_after = of_after || after[g.tensor(t).producer.index];
      }
      if (inside.count(o)) {
        EXPECT_FALSE(of_after) << "target " << i << " operator " << o;
      } else {
        after[o] = of_part || of_after;
      }
    }
    EXPECT_TRUE(verify(g, back).equal()) << i;
  }
}

TEST(Large, EqualOperatorsAreUnited) {
  const Graph g = united(tessera::parse(R"(graph g {
  A = input : f32[40,30]
  B = input : f32[40,30]
  a = mul A, B
  b = mul B, A
  c = sub a, A
  d = sub b, A
  e = sub A, b
  f = add c, d
  h = add f, e
  return h
})"));
  EXPECT_EQ(count(g, OpKind::Mul), 1) << print(g);
  EXPECT_EQ(count(g, OpKind::Sub), 2) << print(g);  // subtraction has an order
}

TEST(Large, AGainInTheMiddleIsFound) {
  const struct {
    const char *middle, *inputs;
    OpKind gone;
    int left;
  } cases[] = {
      {"  e = log q\n  z = exp e\n", "  q = input : f32[40,30]\n", OpKind::Log, 0},
      {"  C = matmul A, B\n  r = reshape C {shape=[40000]}\n"
       "  d = slice r {starts=[0], stops=[40000], steps=[201]}\n  z = sum d {axes=[0]}\n",
       "  A = input : f32[200,150]\n  B = input : f32[150,200]\n", OpKind::Matmul, 0},
      {"  C = matmul A, B\n  w = unsqueeze v {axes=[1]}\n  D = matmul C, w\n"
       "  d = squeeze D {axes=[1]}\n  z = sum d {axes=[0]}\n",
       "  A = input : f32[200,150]\n  B = input : f32[150,300]\n  v = input : f32[300]\n",
       OpKind::Neg, 0},
  };
  for (const auto& c : cases) {
    const Graph g = chain(20, c.middle, c.inputs);
    ASSERT_TRUE(is_large(g));
    const Found f = search(g);
    ASSERT_FALSE(f.candidates.empty()) << f.report.detail;
    const Graph& best = f.candidates[0].graph;
    validate(best);
    const Verdict verdict = verify(g, best);
    EXPECT_TRUE(verdict.equal()) << verdict.str().substr(0, 600) << print(best);
    EXPECT_LT(f.candidates[0].cost, f.report.original_cost);
    EXPECT_EQ(count(best, c.gone), c.left) << print(best);
    EXPECT_GT(f.report.figures.at("parts"), 0);
    // Costs that are told are of the whole, and what is told ends where the program does.
    EXPECT_DOUBLE_EQ(f.candidates[0].cost, seconds_as_written(best, Rates()));
    EXPECT_EQ(f.candidates[0].derivation.find('\x01'), std::string::npos);
  }
}

TEST(Large, NothingIsSearchedWhenTheTimeIsSpent) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  Budget spent;
  spent.seconds = 0;
  for (const int length : {2, 20}) {  // one world, and parts
    const Graph g = chain(length, "  e = log y\n  z = exp e\n");
    ASSERT_EQ(is_large(g), length == 20);
    CollectingSink sink;
    const SearchReport r = Synth().run(Subprogram{g}, context, spent, sink);
    EXPECT_EQ(r.stop, StopReason::TimeBudget);
    EXPECT_EQ(r.states(), 0);
    EXPECT_TRUE(sink.candidates.empty());
    EXPECT_FALSE(search(g).candidates.empty());
  }
}

TEST(Large, NoTrialsAreMadeWhenTheTimeIsSpent) {
  const Graph g = chain(2, "");
  const Spec spec = *synth::parse(g);
  World world(spec.table, spec.with_q, 0);
  SampleStore store;
  const auto stopped = [] { return true; };
  const Rates rates;
  EGraph graph(world, rates);
  const Entered entered = enter(graph, spec, *evaluate(world, spec, store));
  EXPECT_FALSE(Trials(spec, world, entered.classes, 0, kPatience, stopped).complete());
  EXPECT_TRUE(Trials(spec, world, entered.classes, 0).complete());
}

TEST(Large, MoreAxesThanOneWorldHolds) {
  // Values of six axes, of which the small sizes have too many elements.
  const Graph g = tessera::parse(R"(graph g {
  T = input : f32[3,4,5,3,4,5]
  w = input : f32[5]
  A = input : f32[200,150]
  B = input : f32[150,200]
  a = mul T, w
  b = sum a {axes=[0,1]}
  C = matmul A, B
  r = reshape C {shape=[40000]}
  d = slice r {starts=[0], stops=[40000], steps=[201]}
  return b, d
})");
  const Found f = search(g);
  ASSERT_FALSE(f.candidates.empty()) << f.report.detail;
  EXPECT_TRUE(verify(g, f.candidates[0].graph).equal());
  EXPECT_EQ(count(f.candidates[0].graph, OpKind::Matmul), 0) << print(f.candidates[0].graph);
}

TEST(Large, PartsSeenBeforeAreNotSearchedAgain) {
  // The same gain ten times: x·2 + x·3.
  std::string text = "graph g {\n  x0 = input : f32[40,30]\n  c = const {value=3} : f32[]\n";
  for (int i = 0; i < 10; ++i) {
    const std::string n = std::to_string(i);
    text += "  a" + n + " = add x" + n + ", x" + n + "\n  b" + n + " = mul x" + n + ", c\n  d" + n +
            " = add a" + n + ", b" + n + "\n  x" + std::to_string(i + 1) + " = tanh d" + n + "\n";
  }
  const Graph g = tessera::parse(text + "  return x10\n}");
  ASSERT_TRUE(is_large(g));
  const Found f = search(g);
  ASSERT_FALSE(f.candidates.empty());
  EXPECT_TRUE(verify(g, f.candidates[0].graph).equal());
  EXPECT_EQ(computing(f.candidates[0].graph), 20) << print(f.candidates[0].graph);
}

TEST(Large, StepsEndTheSearchWithWhatIsFound) {
  const Graph g = chain(40, "  e = log q\n  z = exp e\n", "  q = input : f32[40,30]\n");
  for (int64_t steps : {100, 5'000, 50'000}) {
    const Found f = search(g, steps);
    EXPECT_EQ(f.report.stop, StopReason::StepBudget);
    for (const Candidate& c : f.candidates) EXPECT_LE(c.cost, f.report.original_cost);
  }
}

TEST(Large, IsDeterministic) {
  const Graph g = chain(14, "  a = mul q, y\n  b = mul y, r\n  z = add a, b\n",
                        "  q = input : f32[40,30]\n  r = input : f32[40,30]\n");
  const Found a = search(g), b = search(g);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  ASSERT_FALSE(a.candidates.empty());
  for (size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(print(a.candidates[i].graph), print(b.candidates[i].graph));
    EXPECT_EQ(a.candidates[i].derivation, b.candidates[i].derivation);
  }
}

}  // namespace
}  // namespace tessera::synth
