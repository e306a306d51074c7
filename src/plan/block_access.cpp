#include "plan/block_access.h"

#include <algorithm>

#include "base/check.h"
#include "ir/block.h"

namespace tessera {
namespace {

// Elements of the value per step along each axis of the space, 0 where it does not change.
std::vector<int64_t> strides_in(const Block& block, const BlockStep& step, const BlockAccess& a) {
  const BlockValue& v = block.values[size_t(a.value)];
  std::vector<int64_t> strides(step.space.size(), 0);
  int64_t below = 1;
  for (size_t i = a.anyhow ? 0 : v.extents.size(); i-- > 0;) {
    if (a.axes[i] >= 0) strides[size_t(a.axes[i])] = below;
    below *= v.extents[i];
  }
  return strides;
}

// The space without some of its axes, numbered with the last axis fastest.
class Outer {
 public:
  Outer(const std::vector<int64_t>& space, const std::vector<int64_t>& strides,
        const std::vector<int>& without) {
    for (size_t i = space.size(); i-- > 0;) {
      if (std::ranges::find(without, int(i)) != without.end()) continue;
      axes_.push_back({space[i], strides[i]});
      size_ *= space[i];
    }
  }
  int64_t size() const { return size_; }
  int64_t element(int64_t number) const {
    int64_t at = 0;
    for (const auto& [extent, stride] : axes_) {
      at += number % extent * stride;
      number /= extent;
    }
    return at;
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> axes_;
  int64_t size_ = 1;
};

using Visit = std::function<void(int, const Round&)>;

class AccessRounds {
 public:
  AccessRounds(const Block& block, const BlockStep& step, const Walk& walk,
               const BlockAccess& access, bool write, const Visit& visit)
      : block_(block), step_(step), walk_(walk), write_(write), visit_(visit),
        strides_(strides_in(block, step, access)),
        bytes_(size_in_bytes(block.values[size_t(access.value)].dtype)) {}

  void run(AccessKind kind) {
    switch (walk_.kind) {
    case WalkKind::Linear: return linear();
    case WalkKind::Rows: return rows();
    case WalkKind::Fragments: return fragments(kind);
    case WalkKind::WideFragments: return fragments(AccessKind::Lanes);
    case WalkKind::Whole: return whole();
    case WalkKind::Bulk: return;
    }
    unreachable("WalkKind");
  }

 private:
  int64_t stride(int axis) const { return axis < 0 ? 0 : strides_[size_t(axis)]; }
  int64_t extent(int axis) const { return axis < 0 ? 1 : step_.space[size_t(axis)]; }
  int warps() const { return block_.threads / 32; }

  LaneRun vector(int64_t base, int64_t first) const {
    const int64_t along = stride(walk_.along);
    const int64_t left = extent(walk_.along) - first;
    if (left <= 0) return {};
    return {base + first * along, along,
            along == 0 ? 1 : int(std::min<int64_t>(walk_.width, left))};
  }

  void linear() {
    const Outer outer(step_.space, strides_, {walk_.along, walk_.k});
    const int64_t vectors = ceil_div(extent(walk_.along), walk_.width);
    const int64_t total = vectors * outer.size();
    // What does not change along k is touched once.
    const int64_t depth = stride(walk_.k) == 0 ? 1 : extent(walk_.k);
    for (int64_t i = 0; i < total; i += block_.threads) {
      for (int64_t k = 0; k < depth; ++k) {
        for (int w = 0; w < warps(); ++w) {
          Round round;
          for (int lane = 0; lane < 32; ++lane) {
            const int64_t q = i + w * 32 + lane;
            if (q < total)
              round[size_t(lane)] = vector(outer.element(q / vectors) + k * stride(walk_.k),
                                           q % vectors * walk_.width);
          }
          visit_(w, round);
        }
      }
    }
  }

  void rows() {
    const Outer outer(step_.space, strides_, {walk_.along});
    const int64_t groups = block_.threads / walk_.lanes;
    const bool along = stride(walk_.along) != 0;
    const int64_t turns =
        along ? ceil_div(ceil_div(extent(walk_.along), walk_.width), walk_.lanes) : 1;
    for (int64_t i = 0; i < outer.size(); i += groups) {
      for (int64_t j = 0; j < turns; ++j) {
        for (int w = 0; w < warps(); ++w) {
          Round round;
          for (int lane = 0; lane < 32; ++lane) {
            const int64_t t = w * 32 + lane, row = i + t / walk_.lanes, at = t % walk_.lanes;
            if (row >= outer.size() || (!along && write_ && at != 0)) continue;
            round[size_t(lane)] =
                vector(outer.element(row), along ? (j * walk_.lanes + at) * walk_.width : 0);
          }
          visit_(w, round);
        }
      }
    }
  }

  void fragments(AccessKind kind) {
    const Outer outer(step_.space, strides_, {walk_.m, walk_.n, walk_.k});
    const bool wide = walk_.kind == WalkKind::WideFragments;
    const int64_t height = wide ? 64 : 16, depth = bytes_ == 4 ? 8 : 16;
    const int64_t m = ceil_div(extent(walk_.m), height), n = ceil_div(extent(walk_.n), 8),
                  k = ceil_div(extent(walk_.k), depth);
    const int64_t part_m = ceil_div(m, walk_.warps_m), part_n = ceil_div(n, walk_.warps_n);
    for (int64_t b = 0; b < outer.size(); ++b) {
      const int64_t base = outer.element(b);
      for (int w = 0; w < walk_.warps_m * walk_.warps_n * (wide ? 4 : 1); ++w) {
        const int part = wide ? w / 4 : w;
        const int64_t m0 = part / walk_.warps_n * part_m, n0 = part % walk_.warps_n * part_n;
        const int64_t m1 = std::min(m, m0 + part_m), n1 = std::min(n, n0 + part_n);
        if (kind == AccessKind::Left) {
          for (int64_t i = n0 < n1 ? m0 : m1; i < m1; ++i)
            for (int64_t j = 0; j < k; ++j)
              operand(w, base, walk_.m, i * 16, 16, walk_.k, j * depth, depth);
        } else if (kind == AccessKind::Right) {
          for (int64_t i = m0 < m1 ? n0 : n1; i < n1; ++i)
            for (int64_t j = 0; j < k; ++j)
              operand(w, base, walk_.n, i * 8, 8, walk_.k, j * depth, depth);
        } else {
          for (int64_t i = m0; i < m1; ++i)
            for (int64_t j = n0; j < n1; ++j)
              accumulators(w, base, i * height + (wide ? w % 4 * 16 : 0), j * 8);
        }
      }
    }
  }
  // Lane 4g + t has rows g and g + 8, columns 2t and 2t + 1 of each 16 × 8.
  void accumulators(int warp, int64_t base, int64_t row, int64_t column) {
    const int64_t along = stride(walk_.n), width = along == 0 || walk_.width > 1 ? 2 : 1;
    for (int64_t half = 0; half < 16; half += 8) {
      for (int64_t first = 0; first < 2; first += width) {
        Round round;
        for (int lane = 0; lane < 32; ++lane) {
          const int64_t i = row + half + lane / 4, j = column + lane % 4 * 2 + first;
          if (i >= extent(walk_.m) || j >= extent(walk_.n)) continue;
          round[size_t(lane)] = {base + i * stride(walk_.m) + j * along, along,
                                 along == 0 ? 1 : int(std::min(width, extent(walk_.n) - j))};
        }
        visit_(warp, round);
      }
    }
  }
  // Lane 4g + t has rows g (and g + 8), along k two 16-bit elements from 2t on (and from 2t + 8
  // on), or one of 32 bits at t (and at t + 4; in pairs at 2t and 2t + 1).
  void operand(int warp, int64_t base, int row_axis, int64_t row, int64_t rows, int k_axis,
               int64_t k0, int64_t depth) {
    const int64_t pair = depth / 8;
    const bool pairs = pair == 1 && walk_.in_pairs;
    for (int64_t k = 0; k < depth; k += depth / 2) {
      for (int64_t half = 0; half < rows; half += 8) {
        Round round;
        for (int lane = 0; lane < 32; ++lane) {
          const int64_t i = row + half + lane / 4,
                        j = k0 + (pairs ? k / 4 + lane % 4 * 2 : k + lane % 4 * pair);
          if (i >= extent(row_axis) || j >= extent(k_axis)) continue;
          round[size_t(lane)] = {base + i * stride(row_axis) + j * stride(k_axis), stride(k_axis),
                                 int(std::min(pair, extent(k_axis) - j))};
        }
        visit_(warp, round);
      }
    }
  }

  void whole() {
    const Outer outer(step_.space, strides_, {});
    for (int64_t i = 0; i < outer.size(); ++i) {
      for (int w = 0; w < (write_ ? 1 : warps()); ++w) {
        Round round;
        for (int lane = 0; lane < (write_ ? 1 : 32); ++lane)
          round[size_t(lane)] = {outer.element(i), 0, 1};
        visit_(w, round);
      }
    }
  }

  const Block& block_;
  const BlockStep& step_;
  const Walk& walk_;
  bool write_;
  const Visit& visit_;
  std::vector<int64_t> strides_;
  int bytes_;
};

bool maps(const BlockAccess& a, int axis) {
  return axis >= 0 && std::ranges::find(a.axes, axis) != a.axes.end();
}

// Pieces of `bytes` lie together and in line wherever a lane has neighbours.
bool in_pieces(const std::vector<Round>& rounds, const std::vector<int64_t>& offsets,
               int element_bytes, int bytes) {
  const int n = bytes / element_bytes;
  for (const Round& round : rounds) {
    for (const LaneRun& run : round) {
      if (run.count % n != 0) return false;
      for (int i = 0; i < run.count; ++i) {
        const int64_t at = offsets[size_t(run.first + i * run.stride)];
        if (i % n == 0 ? at % bytes != 0
                       : at != offsets[size_t(run.first + (i - 1) * run.stride)] + element_bytes)
          return false;
      }
    }
  }
  return true;
}

}  // namespace

AccessKind access_kind(const BlockStep& step, const Walk& walk, const BlockAccess& access) {
  (void)step;
  if (access.anyhow) return AccessKind::Anyhow;
  if (walk.kind == WalkKind::Bulk) return AccessKind::Bulk;
  const bool fragments = walk.kind == WalkKind::Fragments || walk.kind == WalkKind::WideFragments;
  if (!fragments || !maps(access, walk.k)) return AccessKind::Lanes;
  if (walk.kind == WalkKind::WideFragments) return AccessKind::Operand;
  return maps(access, walk.n) ? AccessKind::Right : AccessKind::Left;
}

void for_each_round(const Block& block, const BlockStep& step, const Walk& walk,
                    const BlockAccess& access, bool write, const Visit& visit) {
  const AccessKind kind = access_kind(step, walk, access);
  if (kind == AccessKind::Operand || kind == AccessKind::Bulk || kind == AccessKind::Anyhow) return;
  // Who updates an element reads it.
  const bool updates = std::ranges::any_of(step.writes, [&](const BlockAccess& w) {
    return w.value == access.value && w.axes == access.axes;
  });
  AccessRounds(block, step, walk, access, write || updates, visit).run(kind);
}

void for_each_matrix(const Block& block, const BlockStep& step, const Walk& walk,
                     const BlockAccess& access, int inner,
                     const std::function<void(int, const std::array<int64_t, 8>&)>& visit) {
  const bool left = access_kind(step, walk, access) == AccessKind::Left;
  const std::vector<int64_t> strides = strides_in(block, step, access);
  const int across = left ? walk.m : walk.n;
  const Outer outer(step.space, strides, {walk.m, walk.n, walk.k});
  const auto extent = [&](int a) { return a < 0 ? 1 : step.space[size_t(a)]; };
  const auto stride = [&](int a) { return a < 0 ? 0 : strides[size_t(a)]; };
  const int64_t height = left ? 16 : 8;
  const int64_t m = ceil_div(extent(walk.m), 16), n = ceil_div(extent(walk.n), 8);
  const int64_t part_m = ceil_div(m, walk.warps_m), part_n = ceil_div(n, walk.warps_n);
  const bool along_k = access.axes[size_t(inner)] == walk.k;
  const int run = along_k ? walk.k : across, other = along_k ? across : walk.k;
  for (int64_t b = 0; b < outer.size(); ++b) {
    for (int w = 0; w < walk.warps_m * walk.warps_n; ++w) {
      const int64_t m0 = w / walk.warps_n * part_m, n0 = w % walk.warps_n * part_n;
      const int64_t m1 = std::min(m, m0 + part_m), n1 = std::min(n, n0 + part_n);
      if (m0 >= m1 || n0 >= n1) continue;
      for (int64_t i = left ? m0 : n0; i < (left ? m1 : n1); ++i) {
        for (int64_t k = 0; k < extent(walk.k); k += 8) {
          for (int64_t half = 0; half < height; half += 8) {
            const int64_t at_across = i * height + half;
            const int64_t at_run = along_k ? k : at_across, at_other = along_k ? at_across : k;
            std::array<int64_t, 8> rows{};
            for (int64_t r = 0; r < 8; ++r)
              rows[size_t(r)] =
                  at_run >= extent(run) || at_other + r >= extent(other)
                      ? -1
                      : outer.element(b) + at_run * stride(run) + (at_other + r) * stride(other);
            visit(w, rows);
          }
        }
      }
    }
  }
}

Wavefronts wavefronts(const std::vector<int64_t>& lanes, int bytes, const BlockLimits& limits) {
  // Lanes that are served together move at most as much as all banks hold side by side.
  const size_t group = size_t(std::min<int64_t>(
      int64_t(lanes.size()), std::max(1, limits.banks * limits.bank_bytes / std::max(bytes, 4))));
  Wavefronts total;
  std::vector<int64_t> words;
  std::vector<int64_t> on_bank(size_t(limits.banks));
  for (size_t begin = 0; begin < lanes.size(); begin += group) {
    words.clear();
    for (size_t l = begin; l < std::min(lanes.size(), begin + group); ++l)
      if (lanes[l] >= 0)
        for (int64_t w = lanes[l] / limits.bank_bytes;
             w <= (lanes[l] + bytes - 1) / limits.bank_bytes; ++w)
          words.push_back(w);
    if (words.empty()) continue;
    std::ranges::sort(words);
    words.erase(std::unique(words.begin(), words.end()), words.end());
    std::ranges::fill(on_bank, 0);
    for (int64_t w : words) ++on_bank[size_t(w % limits.banks)];
    total.taken += *std::ranges::max_element(on_bank);
    total.least += ceil_div(int64_t(words.size()), limits.banks);
  }
  return total;
}

// As a left operand: its matrices are those of the rows and columns of accumulators.
Walk stored_as_matrices(Walk walk) {
  walk.k = walk.n;
  walk.n = -1;
  return walk;
}

namespace {

std::optional<AccessPlan> price_matrices(const Block& block, const BlockLimits& limits,
                                         const BlockStep& step, const Walk& walk,
                                         const BlockAccess& a, const BlockValue& v,
                                         const SharedLayout& l,
                                         const std::vector<int64_t>& offsets) {
  const size_t rank = v.extents.size();
  if (size_in_bytes(v.dtype) != 2 || rank < 2) return std::nullopt;
  const int inner = l.innermost(rank);
  const int by = a.axes[size_t(inner)];
  const bool left = access_kind(step, walk, a) == AccessKind::Left;
  if ((by != walk.k && by != (left ? walk.m : walk.n)) ||
      ceil_div(step.space[size_t(by)], 8) * 8 > v.extents[size_t(inner)])
    return std::nullopt;
  // All rows of a matrix are addressed, those that fill it up as well.
  const std::vector<int64_t> strides = shared_strides(l, v.extents, 2);
  for (size_t axis = 0; axis < rank; ++axis)
    if (int(axis) != inner && strides[axis] % 16 != 0) return std::nullopt;
  AccessPlan plan;
  plan.instruction = by == walk.k ? Instruction::MatrixRows : Instruction::MatrixRowsTransposed;
  plan.bytes = 16;
  bool good = true;
  int64_t matrices = 0;
  std::vector<int64_t> lanes(8);
  int64_t below = 1;  // elements from neighbour to neighbour along `inner`
  for (size_t i = size_t(inner) + 1; i < rank; ++i) below *= v.extents[i];
  for_each_matrix(block, step, walk, a, inner, [&](int, const std::array<int64_t, 8>& rows) {
    ++matrices;
    for (size_t r = 0; r < 8; ++r) {
      lanes[r] = rows[r] < 0 ? -1 : offsets[size_t(rows[r])];
      if (rows[r] < 0) continue;
      good = good && lanes[r] % 16 == 0 && offsets[size_t(rows[r] + 7 * below)] == lanes[r] + 14;
    }
    const Wavefronts w = wavefronts(lanes, 16, limits);
    plan.wavefronts += w.taken;
    plan.least += w.least;
  });
  if (!good) return std::nullopt;
  plan.instructions = ceil_div(matrices, 4);
  return plan;
}

}  // namespace

std::optional<AccessPlan> price_access(const Block& block, const BlockLimits& limits,
                                       const BlockStep& step, const Walk& walk,
                                       const BlockAccess& a, bool write, const SharedLayout& layout,
                                       const std::vector<int64_t>& offsets) {
  const BlockValue& v = block.values[size_t(a.value)];
  const AccessKind kind = access_kind(step, walk, a);
  if (kind == AccessKind::Bulk || kind == AccessKind::Operand || kind == AccessKind::Anyhow) {
    // Nothing is known but how much it is. (Boxes lie as the hardware has them.)
    const int64_t passes =
        ceil_div(v.elements() * size_in_bytes(v.dtype), int64_t{limits.banks} * limits.bank_bytes);
    return AccessPlan{Instruction::Vector, size_in_bytes(v.dtype), ceil_div(v.elements(), 32),
                      passes, passes};
  }
  if (kind != AccessKind::Lanes && !write) {
    auto plan = price_matrices(block, limits, step, walk, a, v, layout, offsets);
    if (plan || walk.whole) return plan;
  }
  std::vector<Round> rounds;
  for_each_round(block, step, walk, a, write, [&](int, const Round& r) { rounds.push_back(r); });
  // A copy from or to global memory moves pieces that lie together there too.
  const int element = size_in_bytes(v.dtype);
  int most = 16;
  if (step.kind != StepKind::Compute)
    most = walk.along >= 0 && walk.along == step.global_along ? step.global_bytes : element;
  std::optional<AccessPlan> stored;
  if (write && limits.matrix_stores && walk.kind == WalkKind::Fragments && walk.k < 0 &&
      maps(a, walk.m) && maps(a, walk.n))
    stored = price_matrices(block, limits, step, stored_as_matrices(walk), a, v, layout, offsets);
  if (stored) stored->instruction = Instruction::MatrixStore;
  AccessPlan plan;
  plan.bytes = element;
  for (int b = std::max(most, element); b > element; b /= 2) {
    if (!in_pieces(rounds, offsets, element, b)) continue;
    plan.bytes = b;
    break;
  }
  if (walk.whole && kind == AccessKind::Lanes && walk.kind != WalkKind::Fragments &&
      plan.bytes < std::min(16, walk.width * element))
    return std::nullopt;
  plan.instruction =
      step.kind == StepKind::Load && plan.bytes >= 4 ? Instruction::AsyncCopy : Instruction::Vector;
  const int per = plan.bytes / element;
  std::vector<int64_t> lanes(32);
  for (const Round& round : rounds) {
    int most_pieces = most_of(0, round, [&](const LaneRun& run) { return run.count / per; });
    for (int piece = 0; piece < most_pieces; ++piece) {
      for (size_t l = 0; l < 32; ++l) {
        const LaneRun& run = round[l];
        lanes[l] =
            run.count > piece * per ? offsets[size_t(run.first + piece * per * run.stride)] : -1;
      }
      const Wavefronts w = wavefronts(lanes, plan.bytes, limits);
      ++plan.instructions;
      plan.wavefronts += w.taken;
      plan.least += w.least;
    }
  }
  const auto cycles = [](const AccessPlan& p) { return p.wavefronts + p.instructions; };
  return stored && cycles(*stored) < cycles(plan) ? *stored : plan;
}

}  // namespace tessera
