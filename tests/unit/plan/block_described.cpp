// A block's plan from its description alone: layouts and walks by one 0/1 program
// (block_choice.h), then order, stages, barriers and offsets. The generator chooses layouts before
// its steps are written (backend/cuda/describe.cpp); here both halves meet, and are tested
// together.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "plan/block_actions.h"
#include "plan/block_check.h"
#include "plan/block_choice.h"

namespace tessera {
namespace {

[[noreturn]] void bad(const std::string& what) {
  throw Error(ErrorKind::BadInput, "block: " + what);
}

bool power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

void check_walk(const Block& block, const BlockStep& s, const Walk& w) {
  const int rank = int(s.space.size());
  const auto axis = [&](int a, int least) { return a >= least && a < rank; };
  bool good = true;
  switch (w.kind) {
  case WalkKind::Linear:
    good = (rank == 0 || axis(w.along, 0)) && power_of_two(w.width) && w.width <= 16 &&
           axis(w.k, -1) && (w.k < 0 || w.k != w.along);
    break;
  case WalkKind::Rows:
    good = axis(w.along, 0) && power_of_two(w.width) && w.width <= 16 && power_of_two(w.lanes) &&
           w.lanes <= block.threads && block.threads % w.lanes == 0;
    break;
  case WalkKind::Fragments:
  case WalkKind::WideFragments: {
    const int warps = block.threads / 32;
    good = axis(w.m, 0) && axis(w.n, 0) && axis(w.k, -1) && w.m != w.n && w.m != w.k &&
           w.n != w.k && w.warps_m >= 1 && w.warps_n >= 1 &&
           w.warps_m * w.warps_n * (w.kind == WalkKind::Fragments ? 1 : 4) <= warps;
    break;
  }
  case WalkKind::Bulk: good = s.kind != StepKind::Compute; break;
  case WalkKind::Whole: break;
  }
  if (!good) bad("step " + s.name + " cannot be walked " + text(w));
}

// The steps of a loop, inner loops included, are neighbours in the list.
void check_bodies(const Block& block) {
  for (int l = 0; l < int(block.loops.size()); ++l) {
    bool begun = false, ended = false;
    for (const BlockStep& s : block.steps) {
      const bool in = inside(block, s.loop, l);
      if (in && ended) bad("step " + s.name + " stands apart from the others of its loop");
      begun = begun || in;
      ended = begun && !in;
    }
    if (!begun) bad("loop " + std::to_string(l) + " has no step");
  }
}

bool is_read(const Block& block, int value) {
  for (const BlockStep& s : block.steps)
    for (const BlockAccess& a : s.reads)
      if (a.value == value) return true;
  return false;
}

void check_access(const Block& block, const BlockStep& s, const BlockAccess& a, bool write) {
  if (a.value < 0 || a.value >= int(block.values.size())) bad("step " + s.name + " names no value");
  const BlockValue& v = block.values[size_t(a.value)];
  if (a.anyhow) return;
  if (a.axes.size() != v.extents.size()) bad("step " + s.name + " has not every axis of " + v.name);
  for (size_t i = 0; i < a.axes.size(); ++i) {
    const int to = a.axes[i];
    if (to < -1 || to >= int(s.space.size()))
      bad("step " + s.name + " indexes " + v.name + " by an axis that it lacks");
    if (to >= 0 && s.space[size_t(to)] > v.extents[i]) bad("step " + s.name + " leaves " + v.name);
    if (to >= 0 && std::count(a.axes.begin(), a.axes.end(), to) > 1)
      bad("step " + s.name + " walks a diagonal of " + v.name);
  }
  // What several threads would write at once is written by nobody in particular.
  for (const Walk& w : s.walks) {
    for (int axis = 0; write && axis < int(s.space.size()); ++axis) {
      const bool given =
          std::count(a.axes.begin(), a.axes.end(), axis) > 0 || s.space[size_t(axis)] == 1;
      const bool folded =
          (w.kind == WalkKind::Rows && axis == w.along) || axis == w.k || w.kind == WalkKind::Whole;
      if (!given && !folded)
        bad("step " + s.name + " writes " + v.name + " many times along axis " +
            std::to_string(axis));
    }
  }
}

// A step that reads and writes the same tile must do so thread by thread.
void refuse_races(const Block& block, const SettledBlock& settled, int s) {
  const BlockStep& step = block.steps[size_t(s)];
  for (const BlockAccess& a : step.writes) {
    const std::vector<PlacedAccess>& all = settled.accesses[size_t(a.value)];
    for (const PlacedAccess& x : all)
      for (const PlacedAccess& y : all)
        if (x.step == s && y.step == s && x.write && !y.write &&
            sharing(x.who, y.who) != Sharing::Thread)
          throw Error(ErrorKind::Unsupported,
                      "step " + step.name + " overwrites elements of " +
                          block.values[size_t(a.value)].name +
                          " that other threads read in the same step; write another tile");
  }
}

void settle_step(const Block& block, const BlockLimits& limits, const BlockChoice& choice, size_t s,
                 SettledBlock& out) {
  const BlockStep& step = block.steps[s];
  StepPlan& p = out.plan.steps[s];
  p.walk = choice.walk[s];
  const Walk& w = step.walks[size_t(p.walk)];
  for (const bool write : {false, true}) {
    for (const BlockAccess& a : write ? step.writes : step.reads) {
      const ValuePlan& value = out.plan.values[size_t(a.value)];
      AccessPlan priced;
      if (value.place == BlockPlace::Shared) {
        const BlockValue& v = block.values[size_t(a.value)];
        priced = *price_access(block, limits, step, w, a, write, value.layout,
                               shared_offsets(value.layout, v.extents, size_in_bytes(v.dtype)));
      }
      (write ? p.writes : p.reads).push_back(priced);
      out.accesses[size_t(a.value)].push_back(
          {int(s), write, owners(block, step, w, a, write), priced.instruction});
    }
  }
  refuse_races(block, out, int(s));
}

// What follows from layouts and walks.
SettledBlock settle(const Block& block, const BlockLimits& limits, const BlockPrices& prices,
                    const BlockChoice& choice) {
  SettledBlock out;
  out.plan.values.resize(block.values.size());
  out.plan.steps.resize(block.steps.size());
  out.plan.layouts_optimal = choice.optimal;
  for (size_t v = 0; v < block.values.size(); ++v) {
    ValuePlan& p = out.plan.values[v];
    if (choice.option[v] < 0) {
      p.place = BlockPlace::Registers;
      continue;
    }
    p.layout = prices.options[v][size_t(choice.option[v])].layout;
    p.bytes = prices.options[v][size_t(choice.option[v])].bytes;
  }
  out.accesses.resize(block.values.size());
  for (size_t s = 0; s < block.steps.size(); ++s) settle_step(block, limits, choice, s, out);
  for (size_t v = 0; v < block.values.size(); ++v) {
    bool hardware = false;
    for (const PlacedAccess& a : out.accesses[v])
      hardware =
          hardware || a.instruction == Instruction::Bulk || a.instruction == Instruction::Operand;
    out.alignment.push_back(shared_alignment(out.plan.values[v].layout, hardware));
  }
  return out;
}

}  // namespace

void check_block(const Block& block) {
  if (block.threads < 32 || block.threads % 32 != 0 || block.threads > 1024)
    bad(std::to_string(block.threads) + " threads; a multiple of 32 up to 1024 is needed");
  for (const BlockValue& v : block.values)
    for (int64_t e : v.extents)
      if (e < 1) bad("value " + v.name + " is empty");
  for (size_t l = 0; l < block.loops.size(); ++l)
    if (block.loops[l].extent < 1 || block.loops[l].around >= int(l))
      bad("loop " + std::to_string(l) + " is empty or listed before what is around it");
  check_bodies(block);
  for (const BlockStep& s : block.steps) {
    if (s.loop < -1 || s.loop >= int(block.loops.size())) bad("step " + s.name + " is in no loop");
    if (s.walks.empty()) bad("step " + s.name + " has no walk");
    for (int64_t e : s.space)
      if (e < 1) bad("step " + s.name + " has nothing to do");
    for (const Walk& w : s.walks) check_walk(block, s, w);
    for (const BlockAccess& a : s.reads) check_access(block, s, a, false);
    for (const BlockAccess& a : s.writes) check_access(block, s, a, true);
    const bool load = s.kind == StepKind::Load, store = s.kind == StepKind::Store;
    if ((load && (!s.reads.empty() || s.writes.size() != 1)) || (store && !s.writes.empty()))
      bad("step " + s.name + ": a load writes one tile and reads none, a store writes none");
    if (load && !is_read(block, s.writes[0].value))
      bad("step " + s.name + " loads what no step reads");
    if (!power_of_two(s.global_bytes) || s.global_bytes > 16 || s.barriers < 0 ||
        s.scratch_bytes < 0)
      bad("step " + s.name + " has impossible numbers");
  }
}

BlockPlan plan_block(const Block& block, const BlockLimits& limits,
                     const BlockPlanOptions& options) {
  check_block(block);
  BlockPrices prices = price_block(block, limits, options);
  const auto attempt = [&] {
    return plan_settled(block, settle(block, limits, prices, choose_block(block, prices)), limits,
                        options);
  };
  try {
    return attempt();
  } catch (const Error&) {  // where nothing fits, layouts are chosen again for the fewest bytes
    prices.per_byte = 1e3;
    return attempt();
  }
}

}  // namespace tessera
