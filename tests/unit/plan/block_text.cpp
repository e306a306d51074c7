// A block's plan as text, and what it is made of.
#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "plan/block_check.h"

namespace tessera {
namespace {

const char* name(WalkKind kind) {
  switch (kind) {
  case WalkKind::Linear: return "linear";
  case WalkKind::Rows: return "rows";
  case WalkKind::Fragments: return "fragments";
  case WalkKind::WideFragments: return "wide fragments";
  case WalkKind::Bulk: return "bulk";
  case WalkKind::Whole: return "whole";
  }
  unreachable("WalkKind");
}

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
  case ActionKind::Barrier: return "barrier";
  case ActionKind::LoopBegin: return "loop " + std::to_string(block.loops[size_t(a.loop)].extent);
  case ActionKind::LoopEnd: return "end";
  }
  unreachable("ActionKind");
}

}  // namespace

std::string text(const Walk& w) {
  std::string out = name(w.kind);
  switch (w.kind) {
  case WalkKind::Rows: out += " of " + std::to_string(w.lanes) + " lanes"; [[fallthrough]];
  case WalkKind::Linear:
    out += " along " + std::to_string(w.along) + " by " + std::to_string(w.width);
    break;
  case WalkKind::Fragments:
  case WalkKind::WideFragments:
    out += " " + std::to_string(w.warps_m) + "x" + std::to_string(w.warps_n);
    break;
  case WalkKind::Bulk:
  case WalkKind::Whole: break;
  }
  return out;
}

std::string text(const SharedLayout& l) {
  std::string out;
  const auto add = [&](const std::string& what) { out += (out.empty() ? "" : " ") + what; };
  if (!std::is_sorted(l.order.begin(), l.order.end())) add("[" + joined(l.order) + "]");
  if (l.pad > 0) add("pad " + std::to_string(l.pad));
  if (l.swizzle_bits > 0)
    add("swizzled " + std::to_string(l.swizzle_bits) + " by " + std::to_string(l.swizzle_shift));
  return out.empty() ? "row-major" : out;
}

std::string text(const BlockPlan& plan, const Block& block) {
  std::string out;
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const ValuePlan& p = plan.values[v];
    out += "value " + block.values[v].name;
    switch (p.place) {
    case BlockPlace::Registers: out += " in registers\n"; continue;
    case BlockPlace::Shared: break;
    }
    out += " at " + std::to_string(p.offset) + " " + text(p.layout) + ", " +
           std::to_string(p.bytes) + " bytes";
    if (p.copies > 1)
      out += " in " + std::to_string(p.copies) + " copies every " + std::to_string(p.pitch);
    out += "\n";
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const BlockStep& step = block.steps[s];
    out += "step " + step.name + " " + text(step.walk) + "\n";
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
  return out + std::to_string(plan.shared_bytes) + " bytes, " + std::to_string(plan.barriers) +
         " barriers, " + std::to_string(plan.wavefronts) + " wavefronts, " +
         std::to_string(plan.conflicts) + " by conflicts\n";
}

}  // namespace tessera
