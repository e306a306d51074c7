// Plans of blocks are broken on purpose; the replay must notice each.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "block_check.h"
#include "block_random.h"

namespace tessera {
namespace {

struct FaultCase {
  std::string name;
  Block block;
  BlockLimits limits;
  BlockPlan plan;
};

std::vector<FaultCase> fault_cases() {
  BlockLimits hopper;
  hopper.shared_bytes = 227 * 1024;
  std::vector<FaultCase> out;
  const auto add = [&](const char* name, const Block& b) {
    out.push_back({name, b, hopper, plan_block(b, hopper)});
  };
  add("product", product_block());
  add("attention", attention_block());
  add("norm", norm_block());
  add("wide product", wide_product_block());
  Block scratch = attention_block();
  scratch.steps[10].scratch_bytes = 512;
  scratch.steps[10].barriers = 1;
  add("with scratch", scratch);
  return out;
}

// Each kind yields all the ways in which it breaks one plan; `names` counts those that were found.
using Breaks = std::vector<BlockPlan>;
using Kind = std::pair<const char*, std::function<Breaks(const FaultCase&)>>;

Breaks without(const FaultCase& c, ActionKind kind) {
  Breaks out;
  for (size_t i = 0; i < c.plan.actions.size(); ++i) {
    if (c.plan.actions[i].kind != kind) continue;
    out.push_back(c.plan);
    out.back().actions.erase(out.back().actions.begin() + long(i));
  }
  return out;
}

Breaks values(const FaultCase& c, const std::function<bool(BlockPlan&, size_t)>& spoil) {
  Breaks out;
  for (size_t v = 0; v < c.plan.values.size(); ++v) {
    BlockPlan p = c.plan;
    if (p.values[v].place == BlockPlace::Shared && spoil(p, v)) out.push_back(p);
  }
  return out;
}

Breaks actions(const FaultCase& c, const std::function<bool(BlockPlan&, size_t)>& spoil) {
  Breaks out;
  for (size_t i = 0; i < c.plan.actions.size(); ++i) {
    BlockPlan p = c.plan;
    if (spoil(p, i)) out.push_back(p);
  }
  return out;
}

Breaks accesses(const FaultCase& c,
                const std::function<bool(AccessPlan&, const BlockStep&)>& spoil) {
  Breaks out;
  for (size_t s = 0; s < c.plan.steps.size(); ++s) {
    for (const bool write : {false, true}) {
      const auto& list = write ? c.plan.steps[s].writes : c.plan.steps[s].reads;
      for (size_t i = 0; i < list.size(); ++i) {
        BlockPlan p = c.plan;
        AccessPlan& a = write ? p.steps[s].writes[i] : p.steps[s].reads[i];
        if (a.instruction != Instruction::None && spoil(a, c.block.steps[s])) out.push_back(p);
      }
    }
  }
  return out;
}

bool is_load(const FaultCase& c, const Action& a) {
  return a.kind == ActionKind::Step && c.block.steps[size_t(a.step)].kind == StepKind::Load;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"missing barrier", [](const FaultCase& c) { return without(c, ActionKind::Barrier); }},
      {"missing wait", [](const FaultCase& c) { return without(c, ActionKind::Wait); }},
      {"missing wait for boxes",
       [](const FaultCase& c) { return without(c, ActionKind::WaitBulk); }},
      {"missing fence", [](const FaultCase& c) { return without(c, ActionKind::Fence); }},
      {"missing commit in a loop",
       [](const FaultCase& c) {
         return actions(c, [&](BlockPlan& p, size_t i) {
           if (i == 0 || p.actions[i].kind != ActionKind::Commit || !is_load(c, p.actions[i - 1]) ||
               c.block.steps[size_t(p.actions[i - 1].step)].loop < 0)
             return false;
           p.actions.erase(p.actions.begin() + long(i));
           return true;
         });
       }},
      {"missing step", [](const FaultCase& c) { return without(c, ActionKind::Step); }},
      {"missing end of loop", [](const FaultCase& c) { return without(c, ActionKind::LoopEnd); }},
      {"wait for too few",
       [](const FaultCase& c) {
         return actions(c, [](BlockPlan& p, size_t i) {
           return p.actions[i].kind == ActionKind::Wait && ++p.actions[i].pending > 0;
         });
       }},
      {"step twice",
       [](const FaultCase& c) {
         return actions(c, [](BlockPlan& p, size_t i) {
           if (p.actions[i].kind != ActionKind::Step) return false;
           const Action a = p.actions[i];
           p.actions.insert(p.actions.begin() + long(i), a);
           return true;
         });
       }},
      {"wrong stage",
       [](const FaultCase& c) {
         return actions(c, [&](BlockPlan& p, size_t i) {
           if (!is_load(c, p.actions[i]) || p.steps[size_t(p.actions[i].step)].ahead == 0)
             return false;
           ++p.actions[i].ahead;
           return true;
         });
       }},
      {"step before what it needs",
       [](const FaultCase& c) {
         return actions(c, [&](BlockPlan& p, size_t i) {
           // The step moves before the barrier in front of it; some have barriers inside.
           if (c.name == "with scratch" || i == 0 || p.actions[i].kind != ActionKind::Step ||
               is_load(c, p.actions[i]) || c.block.steps[size_t(p.actions[i].step)].reads.empty() ||
               p.actions[i - 1].kind != ActionKind::Barrier)
             return false;
           std::swap(p.actions[i - 1], p.actions[i]);
           return true;
         });
       }},
      {"step out of its loop",
       [](const FaultCase& c) {
         return actions(c, [&](BlockPlan& p, size_t i) {
           if (i == 0 || p.actions[i].kind != ActionKind::LoopEnd ||
               p.actions[i - 1].kind != ActionKind::Step)
             return false;
           std::swap(p.actions[i - 1], p.actions[i]);
           return true;
         });
       }},
      {"too few copies",
       [](const FaultCase& c) {
         return values(c, [](BlockPlan& p, size_t v) { return p.values[v].copies-- > 1; });
       }},
      {"copies too close",
       [](const FaultCase& c) {
         return values(c, [](BlockPlan& p, size_t v) {
           p.values[v].pitch /= 2;
           return p.values[v].copies > 1;
         });
       }},
      {"overlapping tiles",
       [](const FaultCase& c) {
         return values(c, [&](BlockPlan& p, size_t v) {
           // Both are needed by one step.
           for (size_t s = 0; s < c.block.steps.size(); ++s)
             for (const BlockAccess& a : c.block.steps[s].reads)
               for (const BlockAccess& b : c.block.steps[s].reads)
                 if (a.value == int(v) && b.value != a.value &&
                     p.values[size_t(b.value)].place == BlockPlace::Shared) {
                   p.values[v].offset = p.values[size_t(b.value)].offset;
                   return true;
                 }
           return false;
         });
       }},
      {"out of memory",
       [](const FaultCase& c) {
         return values(c, [](BlockPlan& p, size_t v) {
           p.values[v].offset = p.shared_bytes - p.values[v].bytes + 128;
           return true;
         });
       }},
      {"less memory than tiles",
       [](const FaultCase& c) {
         Breaks out;
         int64_t end = 0;
         for (const ValuePlan& v : c.plan.values)
           if (v.place == BlockPlace::Shared) end = std::max(end, v.offset + v.bytes);
         if (end > 0) out.push_back(c.plan), out[0].shared_bytes = end - 1;
         return out;
       }},
      {"tile out of line",
       [](const FaultCase& c) {
         return values(c, [&](BlockPlan& p, size_t v) {
           int wide = 0;
           for (size_t s = 0; s < p.steps.size(); ++s) {
             for (size_t i = 0; i < p.steps[s].reads.size(); ++i)
               if (c.block.steps[s].reads[i].value == int(v))
                 wide = std::max(wide, p.steps[s].reads[i].bytes);
             for (size_t i = 0; i < p.steps[s].writes.size(); ++i)
               if (c.block.steps[s].writes[i].value == int(v))
                 wide = std::max(wide, p.steps[s].writes[i].bytes);
           }
           p.values[v].offset += size_in_bytes(c.block.values[v].dtype);
           return wide > size_in_bytes(c.block.values[v].dtype);
         });
       }},
      {"layout of another order",
       [](const FaultCase& c) {
         return values(c, [&](BlockPlan& p, size_t v) {
           if (c.block.values[v].extents.size() != 2) return false;
           const int inner = p.values[v].layout.innermost(2);
           bool wide = false;
           for (size_t s = 0; s < p.steps.size(); ++s)
             for (size_t i = 0; i < p.steps[s].reads.size(); ++i)
               wide = wide ||
                      (c.block.steps[s].reads[i].value == int(v) && p.steps[s].reads[i].bytes > 4);
           p.values[v].layout.order = {inner, 1 - inner};
           return wide;
         });
       }},
      {"pieces too wide",
       [](const FaultCase& c) {
         return accesses(c, [](AccessPlan& a, const BlockStep&) {
           a.bytes *= 2;
           return a.instruction == Instruction::Vector || a.instruction == Instruction::AsyncCopy;
         });
       }},
      {"matrices of the other axis",
       [](const FaultCase& c) {
         return accesses(c, [](AccessPlan& a, const BlockStep&) {
           if (a.instruction == Instruction::MatrixRows)
             a.instruction = Instruction::MatrixRowsTransposed;
           else if (a.instruction == Instruction::MatrixRowsTransposed)
             a.instruction = Instruction::MatrixRows;
           else
             return false;
           return true;
         });
       }},
      {"no instruction",
       [](const FaultCase& c) {
         return accesses(c, [](AccessPlan& a, const BlockStep&) {
           a.instruction = Instruction::None;
           return true;
         });
       }},
      {"threads instead of the asynchronous proxy",
       [](const FaultCase& c) {
         return accesses(c, [](AccessPlan& a, const BlockStep&) {
           const bool proxy =
               a.instruction == Instruction::Bulk || a.instruction == Instruction::Operand;
           a.instruction = Instruction::Vector;
           return proxy;
         });
       }},
      {"registers of other threads",
       [](const FaultCase& c) {
         return values(c, [&](BlockPlan& p, size_t v) {
           p.values[v].place = BlockPlace::Registers;
           return c.name != "norm" || v == 2;
         });
       }},
      {"barriers for boxes in a tile's place",
       [](const FaultCase& c) {
         Breaks out;
         for (size_t l = 0; l < c.plan.loops.size(); ++l) {
           if (c.plan.loops[l].bulk_offset < 0) continue;
           for (const int64_t at : {int64_t{-1}, c.plan.values[0].offset, c.plan.shared_bytes}) {
             out.push_back(c.plan);
             out.back().loops[l].bulk_offset = at;
           }
         }
         return out;
       }},
      {"scratch in a tile's place",
       [](const FaultCase& c) {
         Breaks out;
         for (size_t s = 0; s < c.block.steps.size(); ++s) {
           if (c.plan.scratch_offsets[s] < 0) continue;
           for (const BlockAccess& a : c.block.steps[s].writes) {
             out.push_back(c.plan);
             out.back().scratch_offsets[s] = c.plan.values[size_t(a.value)].offset;
           }
           out.push_back(c.plan);
           out.back().scratch_offsets[s] = -1;
         }
         return out;
       }},
  };
  return all;
}

TEST(BlockFaults, EveryInjectedFaultIsFound) {
  const std::vector<FaultCase> all = fault_cases();
  for (const FaultCase& c : all) ASSERT_EQ(block_fault(c.block, c.limits, c.plan), "") << c.name;
  int injected = 0;
  for (const Kind& kind : kinds()) {
    int tried = 0;
    for (const FaultCase& c : all) {
      for (const BlockPlan& broken : kind.second(c)) {
        ++tried;
        EXPECT_NE(block_fault(c.block, c.limits, broken), "")
            << kind.first << " in " << c.name << "\n"
            << text(broken, c.block);
      }
    }
    EXPECT_GT(tried, 0) << kind.first;
    injected += tried;
  }
  EXPECT_GE(kinds().size(), 15u);
  EXPECT_GT(injected, 200);
}

}  // namespace
}  // namespace tessera
