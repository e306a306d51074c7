// Blocks that the tests of the block plan share.
#pragma once

#include "plan/block_plan.h"

namespace tessera::testing {

inline Walk linear(int along, int width) {
  Walk w;
  w.along = along;
  w.width = width;
  return w;
}
inline Walk rows(int along, int lanes, int width = 1) {
  Walk w;
  w.kind = WalkKind::Rows;
  w.along = along;
  w.lanes = lanes;
  w.width = width;
  return w;
}
inline Walk fragments(int m, int n, int k, int warps_m, int warps_n) {
  Walk w;
  w.kind = WalkKind::Fragments;
  w.m = m;
  w.n = n;
  w.k = k;
  w.warps_m = warps_m;
  w.warps_n = warps_n;
  return w;
}

// O[16,64] = X[16,k] · W[k,64] in a loop over k: loads, products, and a store of what the
// accumulators hold.
inline Block product_block(int64_t k = 64, int64_t iterations = 8, int threads = 128) {
  Block b;
  b.threads = threads;
  b.values = {{"X", DType::F16, {16, k}, false, false, false},
              {"W", DType::F16, {k, 64}, false, false, false},
              {"acc", DType::F32, {16, 64}, true, false, false},
              {"O", DType::F16, {16, 64}, false, false, false}};
  b.loops = {{iterations, -1}};
  BlockStep x{"load X", StepKind::Load, 0, {16, k}, {linear(1, 8)}, {}, {{0, {0, 1}}}, 1};
  BlockStep w{"load W", StepKind::Load, 0, {k, 64}, {linear(1, 8)}, {}, {{1, {0, 1}}}, 1};
  const Walk result = fragments(0, 1, -1, 1, threads / 32);
  BlockStep zero{"zero", StepKind::Compute, -1, {16, 64}, {result}, {}, {{2, {0, 1}}}};
  BlockStep mma{"product",
                StepKind::Compute,
                0,
                {16, 64, k},
                {fragments(0, 1, 2, 1, threads / 32)},
                {{0, {0, 2}}, {1, {2, 1}}, {2, {0, 1}}},
                {{2, {0, 1}}}};
  BlockStep out{"result", StepKind::Compute, -1, {16, 64}, {result}, {{2, {0, 1}}}, {{3, {0, 1}}}};
  BlockStep save{"store", StepKind::Store, -1, {16, 64}, {linear(1, 8)}, {{3, {0, 1}}}, {}, 1};
  b.steps = {zero, x, w, mma, out, save};
  return b;
}

}  // namespace tessera::testing
