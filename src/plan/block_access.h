// Which elements of a tile each thread touches when, and what that costs in a layout: the addresses
// of the 32 lanes of every instruction are computed, nothing is guessed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/block_plan.h"

namespace tessera {

// Elements first, first + stride, … of a lane, as numbers in the row-major order of the value's
// axes as they come.
struct LaneRun {
  int64_t first = 0, stride = 0;
  int count = 0;  // 0: the lane is idle
};
using Round = std::array<LaneRun, 32>;

// How the value is touched, apart from the layout.
enum class AccessKind {
  Lanes,  // each lane for itself, round by round
  Left,   // fragments of the operands of mma.sync; rounds are those of loads lane by lane
  Right,
  Operand,  // by wgmma
  Bulk,     // by the asynchronous proxy
  Anyhow,   // by whatever thread
};
AccessKind access_kind(const BlockStep& step, const Walk& walk, const BlockAccess& access);

// Calls `visit` for every round of every warp, in order. Nothing for Operand and Bulk.
void for_each_round(const Block& block, const BlockStep& step, const Walk& walk,
                    const BlockAccess& access, bool write,
                    const std::function<void(int warp, const Round&)>& visit);

// Rows of eight 16-bit elements for ldmatrix, by matrix: the first element of each row, -1 beyond
// the tile. `inner`: the value's axis along which rows lie. Left and Right only.
void for_each_matrix(const Block& block, const BlockStep& step, const Walk& walk,
                     const BlockAccess& access, int inner,
                     const std::function<void(int warp, const std::array<int64_t, 8>&)>& visit);

// The passes over all banks that one instruction takes, and those it would take without conflicts.
// `lanes`: byte addresses, -1 for idle ones; `bytes` of each.
struct Wavefronts {
  int64_t taken = 0, least = 0;
};
Wavefronts wavefronts(const std::vector<int64_t>& lanes, int bytes, const BlockLimits& limits);

// Fragments of two axes that are written, as an access whose matrices for_each_matrix() lists.
Walk stored_as_matrices(Walk walk);

// One execution of the access by the whole block; nullopt where the layout does not allow it.
// `offsets`: shared_offsets() of the layout.
std::optional<AccessPlan> price_access(const Block& block, const BlockLimits& limits,
                                       const BlockStep& step, const Walk& walk,
                                       const BlockAccess& access, bool write,
                                       const SharedLayout& layout,
                                       const std::vector<int64_t>& offsets);

}  // namespace tessera
