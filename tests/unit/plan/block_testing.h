// Blocks that the tests of the block plan share.
#pragma once

#include "plan/block_plan.h"

namespace tessera {

inline Walk linear_walk(int along, int width) {
  Walk w;
  w.along = along;
  w.width = width;
  return w;
}
inline Walk row_walk(int along, int lanes, int width = 1) {
  Walk w;
  w.kind = WalkKind::Rows;
  w.along = along;
  w.lanes = lanes;
  w.width = width;
  return w;
}
inline Walk fragment_walk(int m, int n, int k, int warps_m, int warps_n) {
  Walk w;
  w.kind = WalkKind::Fragments;
  w.m = m;
  w.n = n;
  w.k = k;
  w.warps_m = warps_m;
  w.warps_n = warps_n;
  w.width = 2;
  return w;
}

// O[16,64] = X[16,k] · W[k,64] in a loop over k: loads, products, and a store of what the
// accumulators hold.
inline Block product_block(int64_t k = 64, int64_t iterations = 8, int threads = 128) {
  Block b;
  b.threads = threads;
  b.values = {{"X", DType::F16, {16, k}, false},
              {"W", DType::F16, {k, 64}, false},
              {"acc", DType::F32, {16, 64}, true},
              {"O", DType::F16, {16, 64}, false}};
  b.loops = {{iterations, -1}};
  BlockStep x{"load X", StepKind::Load, 0, {16, k}, {linear_walk(1, 8)}, {}, {{0, {0, 1}}}, 1};
  BlockStep w{"load W", StepKind::Load, 0, {k, 64}, {linear_walk(1, 8)}, {}, {{1, {0, 1}}}, 1};
  const Walk result = fragment_walk(0, 1, -1, 1, threads / 32);
  BlockStep zero{"zero", StepKind::Compute, -1, {16, 64}, {result}, {}, {{2, {0, 1}}}};
  BlockStep mma{"product",
                StepKind::Compute,
                0,
                {16, 64, k},
                {fragment_walk(0, 1, 2, 1, threads / 32)},
                {{0, {0, 2}}, {1, {2, 1}}, {2, {0, 1}}},
                {{2, {0, 1}}}};
  BlockStep out{"result", StepKind::Compute, -1, {16, 64}, {result}, {{2, {0, 1}}}, {{3, {0, 1}}}};
  BlockStep save{"store", StepKind::Store, -1, {16, 64}, {linear_walk(1, 8)}, {{3, {0, 1}}}, {}, 1};
  b.steps = {zero, x, w, mma, out, save};
  return b;
}

// The same by four warps at once from boxes: O[64,128] = X[64,k] · W[k,128].
inline Block wide_product_block(int64_t k = 64, int64_t iterations = 8) {
  Block b;
  b.threads = 128;
  b.values = {{"X", DType::F16, {64, k}, false},
              {"W", DType::F16, {k, 128}, false},
              {"acc", DType::F32, {64, 128}, true},
              {"O", DType::F16, {64, 128}, false}};
  b.loops = {{iterations, -1}};
  Walk bulk;
  bulk.kind = WalkKind::Bulk;
  const auto wide = [](int kk) {
    Walk w = fragment_walk(0, 1, kk, 1, 1);
    w.kind = WalkKind::WideFragments;
    return w;
  };
  b.steps = {{"zero", StepKind::Compute, -1, {64, 128}, {wide(-1)}, {}, {{2, {0, 1}}}},
             {"load X", StepKind::Load, 0, {64, k}, {bulk}, {}, {{0, {0, 1}}}, 1},
             {"load W", StepKind::Load, 0, {k, 128}, {bulk}, {}, {{1, {0, 1}}}, 1},
             {"product",
              StepKind::Compute,
              0,
              {64, 128, k},
              {wide(2)},
              {{0, {0, 2}}, {1, {2, 1}}, {2, {0, 1}}},
              {{2, {0, 1}}}},
             {"result", StepKind::Compute, -1, {64, 128}, {wide(-1)}, {{2, {0, 1}}}, {{3, {0, 1}}}},
             {"store", StepKind::Store, -1, {64, 128}, {bulk}, {{3, {0, 1}}}, {}, 1}};
  return b;
}

// Attention over keys in a loop with running maxima and sums: scores by products, exponentials in
// shared memory as the left operand of the second product.
inline Block attention_block(int64_t keys = 64, int64_t iterations = 6, int threads = 128) {
  Block b;
  b.threads = threads;
  const int warps = threads / 32;
  b.values = {{"Q", DType::F16, {16, 64}, false},   {"K", DType::F16, {64, keys}, false},
              {"V", DType::F16, {keys, 64}, false}, {"S", DType::F32, {16, keys}, false},
              {"m", DType::F32, {16}, false},       {"old m", DType::F32, {16}, false},
              {"E", DType::F16, {16, keys}, false}, {"l", DType::F32, {16}, false},
              {"acc", DType::F32, {16, 64}, true},  {"O", DType::F16, {16, 64}, false}};
  b.loops = {{iterations, -1}};
  const Walk result = fragment_walk(0, 1, -1, 1, warps);
  const Walk products = fragment_walk(0, 1, 2, 1, warps);
  const Walk row = linear_walk(0, 1);
  b.steps = {
      {"load Q", StepKind::Load, -1, {16, 64}, {linear_walk(1, 8)}, {}, {{0, {0, 1}}}, 1},
      {"zero m", StepKind::Compute, -1, {16}, {row}, {}, {{4, {0}}}},
      {"zero l", StepKind::Compute, -1, {16}, {row}, {}, {{7, {0}}}},
      {"zero acc", StepKind::Compute, -1, {16, 64}, {result}, {}, {{8, {0, 1}}}},
      {"load K", StepKind::Load, 0, {64, keys}, {linear_walk(1, 8)}, {}, {{1, {0, 1}}}, 1},
      {"load V", StepKind::Load, 0, {keys, 64}, {linear_walk(1, 8)}, {}, {{2, {0, 1}}}, 1},
      {"scores",
       StepKind::Compute,
       0,
       {16, keys, 64},
       {products},
       {{0, {0, 2}}, {1, {2, 1}}},
       {{3, {0, 1}}}},
      {"keep m", StepKind::Compute, 0, {16}, {row}, {{4, {0}}}, {{5, {0}}}},
      {"maxima",
       StepKind::Compute,
       0,
       {16, keys},
       {row_walk(1, 8)},
       {{3, {0, 1}}, {5, {0}}},
       {{4, {0}}}},
      {"exponentials",
       StepKind::Compute,
       0,
       {16, keys},
       {linear_walk(1, 2)},
       {{3, {0, 1}}, {4, {0}}},
       {{6, {0, 1}}}},
      {"sums",
       StepKind::Compute,
       0,
       {16, keys},
       {row_walk(1, 8)},
       {{6, {0, 1}}, {4, {0}}, {5, {0}}, {7, {0}}},
       {{7, {0}}}},
      {"rescale",
       StepKind::Compute,
       0,
       {16, 64},
       {result},
       {{8, {0, 1}}, {4, {0}}, {5, {0}}},
       {{8, {0, 1}}}},
      {"products",
       StepKind::Compute,
       0,
       {16, 64, keys},
       {products},
       {{6, {0, 2}}, {2, {2, 1}}, {8, {0, 1}}},
       {{8, {0, 1}}}},
      {"result", StepKind::Compute, -1, {16, 64}, {result}, {{8, {0, 1}}, {7, {0}}}, {{9, {0, 1}}}},
      {"store", StepKind::Store, -1, {16, 64}, {linear_walk(1, 8)}, {{9, {0, 1}}}, {}, 1}};
  return b;
}

// Rows scaled by the root of their mean square: one pass, nothing but element by element work.
inline Block norm_block(int64_t n = 1024, int threads = 128) {
  Block b;
  b.threads = threads;
  b.values = {{"X", DType::F16, {4, n}, false},
              {"G", DType::F16, {n}, false},
              {"s", DType::F32, {4}, false},
              {"Y", DType::F16, {4, n}, false}};
  b.steps = {
      {"load X", StepKind::Load, -1, {4, n}, {row_walk(1, 32, 8)}, {}, {{0, {0, 1}}}, 1},
      {"load G", StepKind::Load, -1, {n}, {linear_walk(0, 8)}, {}, {{1, {0}}}, 0},
      {"squares", StepKind::Compute, -1, {4, n}, {row_walk(1, 32, 8)}, {{0, {0, 1}}}, {{2, {0}}}},
      {"scaled",
       StepKind::Compute,
       -1,
       {4, n},
       {row_walk(1, 32, 8)},
       {{0, {0, 1}}, {1, {1}}, {2, {0}}},
       {{3, {0, 1}}}},
      {"store", StepKind::Store, -1, {4, n}, {row_walk(1, 32, 8)}, {{3, {0, 1}}}, {}, 1}};
  return b;
}
}  // namespace tessera
