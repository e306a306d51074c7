// A block's plan as text.
#include "base/check.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

const char* name(Instruction i) {
  switch (i) {
  case Instruction::None: return "none";
  case Instruction::Vector: return "vector";
  case Instruction::AsyncCopy: return "async copy";
  case Instruction::MatrixRows: return "ldmatrix";
  case Instruction::MatrixRowsTransposed: return "ldmatrix transposed";
  case Instruction::MatrixStore: return "stmatrix";
  case Instruction::Bulk: return "bulk";
  case Instruction::Operand: return "wgmma";
  }
  unreachable("Instruction");
}

std::string access(const AccessPlan& a) {
  if (a.instruction == Instruction::None) return "";
  std::string out = std::string(" ") + name(a.instruction);
  if (a.instruction == Instruction::Vector || a.instruction == Instruction::AsyncCopy)
    out += " of " + std::to_string(a.bytes);
  out += ", " + std::to_string(a.wavefronts) + " wavefronts";
  if (a.conflicts() > 0) out += " (" + std::to_string(a.conflicts()) + " by conflicts)";
  return out;
}

std::string action(const Block& block, const Action& a) {
  switch (a.kind) {
  case ActionKind::Step: {
    std::string out = block.steps[size_t(a.step)].name;
    return a.ahead > 0 ? out + " ahead " + std::to_string(a.ahead) : out;
  }
  case ActionKind::Commit: return "commit";
  case ActionKind::Wait: return "wait " + std::to_string(a.pending);
  case ActionKind::WaitBulk: return "wait for boxes";
  case ActionKind::Fence: return "fence";
  case ActionKind::WarpBarrier: return "warp barrier";
  case ActionKind::Barrier: return "barrier";
  case ActionKind::LoopBegin: return "loop " + std::to_string(block.loops[size_t(a.loop)].extent);
  case ActionKind::LoopEnd: return "end";
  }
  unreachable("ActionKind");
}

}  // namespace

std::string text(const BlockPlan& plan, const Block& block) {
  std::string out;
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const ValuePlan& p = plan.values[v];
    out += "value " + block.values[v].name;
    switch (p.place) {
    case BlockPlace::Registers: out += " in registers\n"; continue;
    case BlockPlace::Global: out += " read through\n"; continue;
    case BlockPlace::Shared: break;
    }
    out += " at " + std::to_string(p.offset) + " " + p.layout.str() + ", " +
           std::to_string(p.bytes) + " bytes";
    if (p.copies > 1)
      out += " in " + std::to_string(p.copies) + " copies every " + std::to_string(p.pitch);
    out += "\n";
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const BlockStep& step = block.steps[s];
    out += "step " + step.name + " " + step.walks[size_t(plan.steps[s].walk)].str() + "\n";
    for (const bool write : {false, true}) {
      const auto& priced = write ? plan.steps[s].writes : plan.steps[s].reads;
      const auto& named = write ? step.writes : step.reads;
      for (size_t i = 0; i < priced.size(); ++i)
        if (const std::string a = access(priced[i]); !a.empty())
          out += std::string(write ? "  writes " : "  reads ") +
                 block.values[size_t(named[i].value)].name + a + "\n";
    }
  }
  std::string indent;
  for (const Action& a : plan.actions) {
    if (a.kind == ActionKind::LoopEnd) indent.resize(indent.size() - 2);
    out += indent + action(block, a) + "\n";
    if (a.kind == ActionKind::LoopBegin) indent += "  ";
  }
  return out + std::to_string(plan.shared_bytes) + " bytes" +
         (plan.memory_optimal ? "" : " (not proved least)") + ", " + std::to_string(plan.barriers) +
         " barriers, " + std::to_string(plan.wavefronts) + " wavefronts, " +
         std::to_string(plan.conflicts) + " by conflicts" +
         (plan.layouts_optimal ? "" : " (layouts not proved best)") + "\n";
}

}  // namespace tessera
