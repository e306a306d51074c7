// The plan's own checker against plans broken on purpose: every fault that matters must be named.
#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"
#include "ir/text.h"
#include "plan/plain_plan.h"
#include "plan/plan.h"

namespace tessera {
namespace {

const char* const kChain = R"(graph g {
  X = input : f32[64,64]
  W = input {weight=true} : f32[64,64]
  V = exp W : f32[64,64]
  a = matmul X, V : f32[64,64]
  b = matmul X, W : f32[64,64]
  c = mul a, b : f32[64,64]
  d = reduce_max c {axes=[1], keepdims=true} : f32[64,1]
  e = sub c, d : f32[64,64]
  y = matmul e, V : f32[64,64]
  z = exp a : f32[64,64]
  return y, z, X
}
)";

// The same with an operand in panels.
Plan packed_plan(const Graph& g) {
  PlanBuilder builder(g, {});
  for (OpId id : builder.ops()) {
    const Op& op = g.op(id);
    Task task;
    task.op = id;
    task.once = builder.once(id);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool panels = op.kind == OpKind::Matmul && i == 1;
      task.layouts.push_back(panels ? Layout{{}, 16} : Layout{});
      task.reads.push_back(builder.slot(op.inputs[i], task.layouts.back()));
    }
    task.writes.push_back(builder.slot(op.result()));
    builder.add(std::move(task));
  }
  return builder.finish();
}

int task_of(const Plan& p, const Graph& g, OpKind kind) {
  for (size_t i = 0; i < p.tasks.size(); ++i)
    if (p.tasks[i].kind == TaskKind::Code && g.op(p.tasks[i].op).kind == kind)
      return static_cast<int>(i);
  return -1;
}

struct Fault {
  const char* name;
  std::function<void(Plan&, const Graph&)> inject;
};

TEST(PlanFault, EveryInjectedFaultIsNamed) {
  const Graph g = parse(kChain);
  const Plan good = packed_plan(g);
  ASSERT_EQ(plan_fault(g, good), "") << good.str(g);
  const auto merge = [](Schedule& s, size_t at) {  // without the barrier after phase `at`
    s.phases[at].insert(s.phases[at].end(), s.phases[at + 1].begin(), s.phases[at + 1].end());
    s.phases.erase(s.phases.begin() + static_cast<long>(at) + 1);
  };
  std::vector<Fault> faults;
  for (size_t at = 0; at + 1 < good.run.phases.size(); ++at)
    faults.push_back({"missing barrier", [=](Plan& p, const Graph&) { merge(p.run, at); }});
  faults.push_back({"missing barrier once", [=](Plan& p, const Graph&) { merge(p.once, 0); }});
  faults.push_back({"phases exchanged", [](Plan& p, const Graph&) {
                      std::swap(p.run.phases.front(), p.run.phases.back());
                    }});
  faults.push_back(
      {"task dropped", [](Plan& p, const Graph&) { p.run.phases.front().pop_back(); }});
  faults.push_back({"task twice", [](Plan& p, const Graph&) {
                      p.run.phases.back().push_back(p.run.phases.front()[0]);
                    }});
  faults.push_back({"all buffers at zero", [](Plan& p, const Graph&) {
                      for (Slot& s : p.slots)
                        if (s.place == Place::Arena) s.offset = 0;
                    }});
  faults.push_back({"kept copies at zero", [](Plan& p, const Graph&) {
                      for (Slot& s : p.slots)
                        if (s.place == Place::Kept) s.offset = 0;
                    }});
  faults.push_back({"beyond the arena", [](Plan& p, const Graph&) {
                      for (Slot& s : p.slots)
                        if (s.place == Place::Arena && s.used) s.offset += p.arena.bytes;
                    }});
  faults.push_back({"wrong layout", [](Plan& p, const Graph& graph) {
                      p.tasks[static_cast<size_t>(task_of(p, graph, OpKind::Matmul))].layouts[1] =
                          Layout{{}, 32};
                    }});
  faults.push_back({"layout not asked for", [](Plan& p, const Graph& graph) {
                      p.tasks[static_cast<size_t>(task_of(p, graph, OpKind::Matmul))].layouts[1] =
                          Layout{};
                    }});
  faults.push_back({"wrong operand", [](Plan& p, const Graph& graph) {
                      Task& t = p.tasks[static_cast<size_t>(task_of(p, graph, OpKind::Sub))];
                      std::swap(t.reads[0], t.reads[1]);
                    }});
  faults.push_back({"in place too early", [](Plan& p, const Graph& graph) {
                      const Task& t = p.tasks[static_cast<size_t>(task_of(p, graph, OpKind::Mul))];
                      p.slots[static_cast<size_t>(t.writes[0])].alias = p.root(t.reads[0]);
                    }});
  faults.push_back({"computed once that is not", [](Plan& p, const Graph& graph) {
                      p.tasks[static_cast<size_t>(task_of(p, graph, OpKind::Sub))].once = true;
                    }});
  faults.push_back({"output not copied", [](Plan& p, const Graph&) { p.copies.clear(); }});
  for (const Fault& fault : faults) {
    Plan bad = good;
    fault.inject(bad, g);
    EXPECT_NE(plan_fault(g, bad), "") << fault.name << "\n" << bad.str(g);
  }
  EXPECT_GE(faults.size(), 15u);
}

TEST(PlanFault, EachBufferMovedOntoAnother) {
  // Any two buffers of the arena that are alive together, put at one place.
  const Graph g = parse(kChain);
  const Plan good = plan_kernel_graph(g);
  int caught = 0, harmless = 0;
  for (size_t a = 0; a < good.slots.size(); ++a) {
    for (size_t b = 0; b < good.slots.size(); ++b) {
      const Slot &s = good.slots[a], &t = good.slots[b];
      if (a == b || s.place != Place::Arena || t.place != Place::Arena || !s.used || !t.used ||
          s.alias >= 0 || t.alias >= 0 || s.offset == t.offset)
        continue;
      Plan bad = good;
      bad.slots[a].offset = t.offset;
      ++(plan_fault(g, bad).empty() ? harmless : caught);
    }
  }
  EXPECT_GT(caught, 2);
  EXPECT_GE(harmless, 0);
}

TEST(PlanOptions, EachCanBeSwitchedOff) {
  const Graph g = parse(kChain);
  const Plan all = plan_kernel_graph(g);
  EXPECT_EQ(all.run.barriers(), all.run.least_barriers);
  EXPECT_FALSE(all.once.phases.empty());
  PlanOptions o;
  o.schedule = false;
  const Plan serial = plan_kernel_graph(g, o);
  EXPECT_GT(serial.run.barriers(), all.run.barriers());
  o = {};
  o.memory = false;
  const Plan apart = plan_kernel_graph(g, o);
  EXPECT_GT(apart.arena.bytes, all.arena.bytes);
  EXPECT_EQ(apart.in_place, 0);
  o = {};
  o.weights = false;
  const Plan every = plan_kernel_graph(g, o);
  EXPECT_TRUE(every.once.phases.empty());
  EXPECT_EQ(every.kept.bytes, 0);
}

}  // namespace
}  // namespace tessera
