// A block's plan from its description alone: layouts (block_choice.h), then order, stages, barriers
// and offsets. The generator chooses layouts before its steps are written
// (backend/cuda/describe.cpp); here both halves meet, and are tested together.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "plan/block_access.h"
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
  const Walk& w = s.walk;
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

// Who touches each element: one thread, the lanes of one warp, or more.
struct Owners {
  static constexpr int kNobody = -1, kMany = -2;
  std::vector<int> thread, warp;  // by element
  bool proxy = false;             // the asynchronous proxy does it
};
Owners owners(const Block& block, const BlockStep& step, const Walk& walk,
              const BlockAccess& access, bool write);

// What must stand between two accesses to the same value: nothing, as each thread meets its own
// elements, a barrier of each warp, or one of the block.
enum class Sharing { Thread, Warp, Block };
Sharing sharing(const Owners& a, const Owners& b);

Owners owners(const Block& block, const BlockStep& step, const Walk& walk, const BlockAccess& a,
              bool write) {
  const BlockValue& v = block.values[size_t(a.value)];
  const size_t n = size_t(v.elements());
  const AccessKind kind = access_kind(step, walk, a);
  Owners o;
  if (kind == AccessKind::Operand || kind == AccessKind::Bulk || kind == AccessKind::Anyhow) {
    o.thread.assign(n, Owners::kMany);
    o.warp.assign(n, Owners::kMany);
    o.proxy = kind != AccessKind::Anyhow;
    return o;
  }
  o.thread.assign(n, Owners::kNobody);
  o.warp.assign(n, Owners::kNobody);
  const auto touch = [](int& owner, int by) {
    owner = owner == Owners::kNobody || owner == by ? by : Owners::kMany;
  };
  // ldmatrix hands a lane what others have read.
  const bool collective = kind != AccessKind::Lanes;
  for_each_round(block, step, walk, a, write, [&](int warp, const Round& round) {
    for (size_t l = 0; l < 32; ++l) {
      for (int i = 0; i < round[l].count; ++i) {
        const size_t e = size_t(round[l].first + i * round[l].stride);
        touch(o.thread[e], collective ? Owners::kMany : warp * 32 + int(l));
        touch(o.warp[e], warp);
      }
    }
  });
  return o;
}

Sharing sharing(const Owners& a, const Owners& b) {
  if (a.proxy || b.proxy) return Sharing::Block;
  Sharing s = Sharing::Thread;
  for (size_t e = 0; e < a.thread.size(); ++e) {
    if (a.warp[e] == Owners::kNobody || b.warp[e] == Owners::kNobody) continue;
    if (a.thread[e] == b.thread[e] && a.thread[e] >= 0) continue;
    if (a.warp[e] != b.warp[e] || a.warp[e] < 0) return Sharing::Block;
    s = Sharing::Warp;
  }
  return s;
}

// A block whose layouts are settled, in the words of plan_flow(), and what is known besides.
struct Settled {
  std::vector<FlowTile> tiles;
  std::vector<FlowAccess> accesses;
  std::vector<std::vector<Owners>> who;                // by value, of its accesses
  std::vector<std::vector<int>> mapping;               // likewise
  std::vector<std::vector<AccessPlan>> reads, writes;  // by step
};

// Accesses whose threads all meet their own elements have one mapping.
int mapping_of(Settled& out, size_t v, Owners who) {
  const auto own = [&](const Owners& other) { return sharing(who, other) == Sharing::Thread; };
  int mapping = -1;
  if (own(who)) {
    for (mapping = 0;; ++mapping) {
      bool all = true;
      for (size_t i = 0; i < out.who[v].size(); ++i)
        all = all && (out.mapping[v][i] != mapping || own(out.who[v][i]));
      if (all) break;
    }
  }
  out.mapping[v].push_back(mapping);
  out.who[v].push_back(std::move(who));
  return mapping;
}

void settle_step(const Block& block, const BlockLimits& limits,
                 const std::vector<std::optional<TileLayout>>& layouts, size_t s, Settled& out) {
  const BlockStep& step = block.steps[s];
  for (const bool write : {false, true}) {
    for (const BlockAccess& a : write ? step.writes : step.reads) {
      const size_t v = size_t(a.value);
      AccessPlan priced;
      if (layouts[v]) {
        const SharedLayout& layout = layouts[v]->layout;
        priced = *price_access(
            block, limits, step, step.walk, a, write, layout,
            shared_offsets(layout, block.values[v].extents, size_in_bytes(block.values[v].dtype)));
      }
      const AccessKind kind = access_kind(step, step.walk, a);
      if (layouts[v] && kind == AccessKind::Bulk) priced.instruction = Instruction::Bulk;
      if (layouts[v] && kind == AccessKind::Operand) priced.instruction = Instruction::Operand;
      (write ? out.writes : out.reads)[s].push_back(priced);
      Owners who = owners(block, step, step.walk, a, write);
      // A step that reads and writes the same tile must do so thread by thread.
      for (size_t i = 0, at = 0; write && i < out.accesses.size(); ++i) {
        const FlowAccess& other = out.accesses[i];
        if (size_t(other.tile) != v) continue;
        const bool met = sharing(who, out.who[v][at++]) == Sharing::Thread;
        if (other.step == int(s) && !other.write && !met)
          throw Error(ErrorKind::Unsupported,
                      "step " + step.name + " overwrites elements of " + block.values[v].name +
                          " that other threads read in the same step; write another tile");
      }
      const bool proxy = who.proxy;
      out.accesses.push_back(
          {int(s), a.value, write, mapping_of(out, v, std::move(who)), proxy, priced.instruction});
    }
  }
}

// What follows from layouts.
Settled settle(const Block& block, const BlockLimits& limits,
               const std::vector<std::optional<TileLayout>>& layouts) {
  Settled out;
  out.who.resize(block.values.size());
  out.mapping.resize(block.values.size());
  out.reads.resize(block.steps.size());
  out.writes.resize(block.steps.size());
  for (size_t s = 0; s < block.steps.size(); ++s) settle_step(block, limits, layouts, s, out);
  for (size_t v = 0; v < block.values.size(); ++v) {
    bool hardware = false;
    for (const FlowAccess& a : out.accesses)
      hardware = hardware || (size_t(a.tile) == v && (a.instruction == Instruction::Bulk ||
                                                      a.instruction == Instruction::Operand));
    out.tiles.emplace_back();
    if (layouts[v])
      out.tiles[v] = {layouts[v]->bytes, hardware ? 128 : shared_alignment(layouts[v]->layout)};
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
    for (int64_t e : s.space)
      if (e < 1) bad("step " + s.name + " has nothing to do");
    check_walk(block, s, s.walk);
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

BlockPlan plan_block(const Block& block, const BlockLimits& limits) {
  check_block(block);
  const auto attempt = [&](double per_byte) {
    const auto layouts = tile_layouts(block, limits, per_byte);
    Settled settled = settle(block, limits, layouts);
    BlockPlan plan = plan_flow(block, settled.tiles, settled.accesses, limits);
    for (size_t v = 0; v < layouts.size(); ++v)
      if (layouts[v]) plan.values[v].layout = layouts[v]->layout;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      plan.steps[s].reads = std::move(settled.reads[s]);
      plan.steps[s].writes = std::move(settled.writes[s]);
      for (const auto* list : {&plan.steps[s].reads, &plan.steps[s].writes})
        for (const AccessPlan& a : *list) {
          plan.wavefronts += executions(block, block.steps[s]) * a.wavefronts;
          plan.conflicts += executions(block, block.steps[s]) * a.conflicts();
        }
    }
    return plan;
  };
  try {
    return attempt(kCyclesPerByte);
  } catch (const Error&) {  // where nothing fits, layouts are chosen again for the fewest bytes
    return attempt(1e3);
  }
}

}  // namespace tessera
