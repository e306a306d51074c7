#include "plan/block_choice.h"

#include <limits>
#include <set>

#include "base/error.h"

namespace tessera {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// In cycles, too.
constexpr double kIssue = 1;      // an instruction of a warp
constexpr double kSwizzle = 0.5;  // exchanging the bits of its addresses
constexpr double kSector = 0.5;   // 32 bytes from the second-level cache

// Calls f(step, access, write) for every access to the value.
template <class F> void each_access(const Block& block, int value, F f) {
  for (const BlockStep& s : block.steps)
    for (const bool write : {false, true})
      for (const BlockAccess& a : write ? s.writes : s.reads)
        if (a.value == value) f(s, a, write);
}

// Axes that may be innermost: all along which some step has neighbours, and the last.
std::set<int> inner_axes(const Block& block, int value) {
  const BlockValue& v = block.values[size_t(value)];
  if (v.innermost >= 0) return {v.innermost};
  std::set<int> axes = {int(v.extents.size()) - 1};
  each_access(block, value, [&](const BlockStep& s, const BlockAccess& a, bool) {
    for (int to : {s.global_along, s.walk.along, s.walk.m, s.walk.n, s.walk.k})
      for (size_t i = 0; !a.anyhow && i < a.axes.size(); ++i)
        if (to >= 0 && a.axes[i] == to) axes.insert(int(i));
  });
  return axes;
}

// Of one access; infinite where the layout does not allow it. `offsets`: those of the layout.
double access_cycles(const Block& block, const BlockLimits& limits, const BlockStep& s,
                     const BlockAccess& a, bool write, const SharedLayout& layout,
                     const std::vector<int64_t>& offsets) {
  const auto plan = price_access(block, limits, s, s.walk, a, write, layout, offsets);
  if (!plan) return kNever;
  double c = double(plan->wavefronts);
  double issued = double(plan->instructions);
  if (s.kind == StepKind::Load && plan->instruction == Instruction::Vector) issued *= 2;
  c += issued * kIssue;
  if (layout.swizzle_bits > 0) c += issued * kSwizzle;
  if (s.kind == StepKind::Load) {
    const BlockValue& v = block.values[size_t(a.value)];
    c += double(v.elements()) * size_in_bytes(v.dtype) / 32 * kSector;
  }
  return double(executions(block, s)) * c;
}

}  // namespace

int64_t executions(const Block& block, const BlockStep& step) {
  int64_t n = 1;
  for (int l = step.loop; l >= 0; l = block.loops[size_t(l)].around)
    n *= block.loops[size_t(l)].extent;
  return n;
}

std::vector<TileLayout> possible_layouts(const Block& block, int value) {
  const BlockValue& v = block.values[size_t(value)];
  const int rank = int(v.extents.size()), bytes = size_in_bytes(v.dtype);
  std::vector<TileLayout> out;
  std::set<std::vector<int64_t>> known;
  const auto add = [&](const SharedLayout& l) {
    if (!known.insert(shared_offsets(l, v.extents, bytes)).second) return;
    out.push_back({l, shared_bytes(l, v.extents, bytes)});
  };
  if (v.innermost < 0 || v.innermost == rank - 1) add({});
  if (rank < 2) return out;
  for (int inner : inner_axes(block, value)) {
    SharedLayout base;
    for (int a = 0; a < rank; ++a)
      if (a != inner) base.order.push_back(a);
    base.order.push_back(inner);
    add(base);
    for (int pad : {4, 8, 16}) {
      SharedLayout l = base;
      l.pad = pad / bytes;
      if (pad % bytes == 0) add(l);
    }
    const int64_t row = v.extents[size_t(inner)] * bytes;
    if (row % 16 != 0) continue;
    for (int bits = 1; bits <= 3; ++bits) {
      for (int shift = 7; shift <= 10; ++shift) {
        SharedLayout l = base;
        l.swizzle_bits = bits;
        l.swizzle_shift = shift;
        // Rows further apart than the bits reach are all exchanged alike.
        if (shift == 7 || row >= int64_t{1} << (shift - 1)) add(l);
      }
    }
  }
  return out;
}

double layout_cycles(const Block& block, const BlockLimits& limits, int value,
                     const TileLayout& tile, double per_byte) {
  const BlockValue& v = block.values[size_t(value)];
  const std::vector<int64_t> offsets =
      shared_offsets(tile.layout, v.extents, size_in_bytes(v.dtype));
  double total = per_byte * double(tile.bytes);
  each_access(block, value, [&](const BlockStep& s, const BlockAccess& a, bool write) {
    if (total < kNever) total += access_cycles(block, limits, s, a, write, tile.layout, offsets);
  });
  return total;
}

std::vector<std::optional<TileLayout>> tile_layouts(const Block& block, const BlockLimits& limits,
                                                    double per_byte) {
  std::vector<std::optional<TileLayout>> chosen(block.values.size());
  for (size_t v = 0; v < block.values.size(); ++v) {
    if (block.values[v].registers) continue;
    double least = kNever;
    for (TileLayout& tile : possible_layouts(block, int(v))) {
      const double cycles = layout_cycles(block, limits, int(v), tile, per_byte);
      if (cycles < least) least = cycles, chosen[v] = std::move(tile);
    }
    if (chosen[v]) continue;
    throw Error(ErrorKind::Unsupported, "no layout of " + block.values[v].name +
                                            " allows all that the block's steps do to it; give one "
                                            "another walk or a copy");
  }
  return chosen;
}

}  // namespace tessera
