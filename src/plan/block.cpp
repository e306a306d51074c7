#include "plan/block.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

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
  if (!good) bad("step " + s.name + " cannot be walked " + w.str());
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

}  // namespace

bool inside(const Block& block, int loop, int outer) {
  while (loop >= 0 && loop != outer) loop = block.loops[size_t(loop)].around;
  return loop == outer;
}

int64_t BlockValue::elements() const {
  int64_t n = 1;
  for (int64_t e : extents) n *= e;
  return n;
}

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

std::string Walk::str() const {
  std::string out = name(kind);
  switch (kind) {
  case WalkKind::Rows: out += " of " + std::to_string(lanes) + " lanes"; [[fallthrough]];
  case WalkKind::Linear:
    out += " along " + std::to_string(along) + " by " + std::to_string(width);
    break;
  case WalkKind::Fragments:
  case WalkKind::WideFragments:
    out += " " + std::to_string(warps_m) + "x" + std::to_string(warps_n);
    break;
  case WalkKind::Bulk:
  case WalkKind::Whole: break;
  }
  return out;
}

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

}  // namespace tessera
