// Plans and code broken on purpose, behind the planner's own checker: the check of compiled code
// must notice what would reach a user.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "backend/check.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/module.h"
#include "ir/text.h"

namespace tessera {
namespace {

// Two products side by side, a weight in panels, a tile that does not divide (45 rows in 4 parts).
const char* const kFaultyProgram = R"(graph g {
  X = input : f32[45,64]
  W = input {weight=true} : f32[64,64]
  V = input {weight=true} : f32[64,64]
  A = matmul X, W : f32[45,64]
  B = matmul X, V : f32[45,64]
  C = mul A, B : f32[45,64]
  S = kernel C grid[x=4] {
    c = input : f32[45,64]
    i = iter c {imap={x:0}} : f32[12,64]
    t = transpose i {perm=[1,0]} : f32[64,12]
    e = exp t : f32[64,12]
    r = transpose e {perm=[1,0]} : f32[12,64]
    s = save r {omap={x:0}} : f32[45,64]
    return s
  } : f32[45,64]
  Y = matmul S, W : f32[45,64]
  return Y
}
)";

using PlanFault = std::function<bool(Program&)>;

bool passes(const Graph& g, const PlanFault& fault) {
  Cache cache;
  KernelPool one(1);  // a fault shows the same way every time
  ModuleOptions options;
  options.pool = &one;
  Program program = emit_program(g, options.isa);
  EXPECT_TRUE(fault(program)) << "the fault does not apply\n" << program.plan.str(g);
  const auto module = Module::load(g, std::move(program), cache, options);
  return check_compiled(g, [&](auto in, auto out) { module->run(in, out); }).has_value();
}

bool edit(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) return false;
  text.replace(at, from.size(), to);
  return true;
}

TEST(PlanFaults, NothingBrokenPasses) {
  EXPECT_TRUE(passes(parse(kFaultyProgram), [](Program&) { return true; }));
}

TEST(PlanFaults, MissingBarrier) {
  // Without a barrier a later task may run before an earlier one.
  const Graph g = parse(kFaultyProgram);
  const size_t phases = emit_program(g, best_isa()).plan.run.phases.size();
  ASSERT_GE(phases, 3u);
  for (size_t at = 0; at + 1 < phases; ++at) {
    EXPECT_FALSE(passes(g, [&](Program& p) {
      auto& list = p.plan.run.phases;
      list[at + 1].insert(list[at + 1].end(), list[at].begin(), list[at].end());
      list.erase(list.begin() + static_cast<long>(at));
      return !plan_fault(g, p.plan).empty();  // the plan's own checker sees it too
    })) << at;
  }
}

TEST(PlanFaults, OverlappingBuffers) {
  const Graph g = parse(kFaultyProgram);
  EXPECT_FALSE(passes(g, [&](Program& p) {
    std::vector<Slot*> arena;
    for (Slot& s : p.plan.slots)
      if (s.place == Place::Arena && s.alias < 0 && s.used && s.tensor.valid()) arena.push_back(&s);
    for (Slot* a : arena)
      for (Slot* b : arena) {
        if (a->offset == b->offset) continue;
        const int64_t was = b->offset;
        b->offset = a->offset;
        if (!plan_fault(g, p.plan).empty()) return true;
        b->offset = was;
      }
    return false;
  }));
}

TEST(PlanFaults, WrongLayout) {
  const Graph g = parse(kFaultyProgram);
  EXPECT_FALSE(passes(g, [](Program& p) {
    for (Step& s : p.steps) {
      if (!s.symbol.empty() || s.pack.layout.panel < 8) continue;
      s.pack.layout.panel /= 2;
      s.units = s.pack.units();
      return true;
    }
    return false;
  }));
  // The transposed order, of a square matrix.
  EXPECT_FALSE(passes(g, [](Program& p) {
    for (Step& s : p.steps) {
      if (!s.symbol.empty()) continue;
      s.pack.layout.order = s.pack.layout.order == std::vector<int>{1, 0} ? std::vector<int>{0, 1}
                                                                          : std::vector<int>{1, 0};
      return true;
    }
    return false;
  }));
}

TEST(PlanFaults, WeightsOfAnotherOperand) {
  const Graph g = parse(kFaultyProgram);
  EXPECT_FALSE(passes(g, [](Program& p) {
    Step* first = nullptr;
    for (Step& s : p.steps) {
      if (!s.symbol.empty()) continue;
      if (first != nullptr && first->arguments[0] != s.arguments[0]) {
        std::swap(first->arguments[0], s.arguments[0]);
        return true;
      }
      first = &s;
    }
    return false;
  }));
}

TEST(PlanFaults, WrongMask) {
  // The last, shorter tile one element too short.
  const Graph g = parse(kFaultyProgram);
  EXPECT_FALSE(passes(g, [](Program& p) {
    return edit(p.source, "return a < b ? a : b;", "return a < b ? a : b - 1;");
  }));
}

TEST(PlanFaults, FewerBlocks) {
  const Graph g = parse(kFaultyProgram);
  EXPECT_FALSE(passes(g, [](Program& p) {
    for (Step& s : p.steps) {
      if (s.symbol.empty() || s.units != 4) continue;
      --s.units;
      return true;
    }
    return false;
  }));
}

}  // namespace
}  // namespace tessera
