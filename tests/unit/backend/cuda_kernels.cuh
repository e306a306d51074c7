// Kernels written by hand with the device functions, with faults to be put in: the emulator's tests
// run them, NVRTC compiles them.
#pragma once
#include "device.cuh"

enum class Fault {
  None,
  NoTail,            // threads beyond the end read and write too
  NoSync,            // between writing and reading shared memory
  NoSecondSync,      // before shared memory is written again
  SyncInBranch,      // that not all threads take
  NoWait,            // for an asynchronous copy
  WaitTooFew,        // for one group less than needed
  NoCommit,          // of a group
  WrongStage,        // the stage that is being filled is read
  WrongSwizzle,      // read with another swizzle than written
  NoInitialization,  // of an accumulator
  UnevenRow,         // 16 bytes at an address that is no multiple of 16
  BeyondShared,      // an index past the end of shared memory
  SameElement,       // two blocks write the same element
  ReadsOutput,       // before anything is there
  WritesInput,       // a buffer that is read only
  ShuffleInBranch,   // half of a warp
  WrongTranspose,    // matrices loaded as they are instead of transposed
  WrongRow,          // of a fragment
  NoArrival,         // at a named barrier
  MeetingOfTooMany,  // a named barrier for fewer threads here than there
  NoWarpSync,        // between lanes that hand over shared memory
  NoFullWait,        // for the barrier of a stage that is copied
  NoEmptyWait,       // before a stage is copied over
  WrongParity,       // of a phase
  TooFewBytes,       // announced to a barrier
  TooManyBytes,      // so that its phase never ends
  NoFence,           // before the asynchronous proxy reads
  NoProductWait,     // for products of four warps
  NoStoreWait,       // for stores by the asynchronous proxy
  NotAdded,          // to the accumulator
  WrongStride,       // of an operand
  NoBarrier,         // was made of the memory
};

// y = 2·x, 4 elements a thread.
extern "C" __global__ void scale(float* y, const float* x, int n, Fault fault) {
  const int i = (ts::block(0) * ts::threads() + ts::thread()) * 4;
  if (i < n || fault == Fault::NoTail) {
    ts::Vec16 v = ts::load_global(
        reinterpret_cast<const ts::Vec16*>(x + i + (fault == Fault::UnevenRow ? 1 : 0)));
    for (unsigned* u : {&v.x, &v.y, &v.z, &v.w}) *u = ts::as_bits(2 * ts::as_float(*u));
    const int to = fault == Fault::SameElement ? ts::thread() * 4 : i;
    if (fault == Fault::ReadsOutput) ts::load_global(y + to);
    ts::store_global(reinterpret_cast<ts::Vec16*>(y + to), v);
    if (fault == Fault::WritesInput) ts::store_global(const_cast<float*>(x) + i, 0.0f);
  }
}

// Sums of rows: lanes by shuffles, warps through shared memory, twice.
extern "C" __global__ void row_sums(float* y, const float* x, int n, Fault fault) {
  float* part = reinterpret_cast<float*>(ts::shared());
  for (int round = 0; round < 2; ++round) {
    const int row = 2 * ts::block(0) + round;
    float sum = 0;
    for (int i = ts::thread(); i < n; i += ts::threads()) sum += ts::load_global(x + row * n + i);
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      if (fault == Fault::ShuffleInBranch && lanes == 4 && ts::lane() >= 16) continue;
      sum += ts::shuffle_xor(sum, lanes);
    }
    const int at = ts::warp() + (fault == Fault::BeyondShared ? 1 : 0);
    if (ts::lane() == 0) ts::store_shared(part + at, sum);
    if (fault == Fault::SyncInBranch) {
      if (ts::warp() > 0) ts::sync();
    } else if (fault != Fault::NoSync) {
      ts::sync();
    }
    if (ts::thread() == 0) {
      float total = 0;
      for (int w = 0; w < ts::threads() / 32; ++w) total += ts::load_shared(part + w);
      ts::store_global(y + row, total);
    }
    if (fault != Fault::NoSecondSync) ts::sync();
  }
}

// C = A·B in 64×64 tiles by four warps, depth 32 a step, two stages in flight, rows of 64 (A) and
// 128 bytes (B) whose 16-byte pieces are swizzled.
constexpr int kTile = 64, kDepth = 32;
constexpr int kStageBytes = (kTile * kDepth + kDepth * kTile) * 2;

TS_DEVICE int place_a(int row, int piece) {
  return row * kDepth * 2 + ((piece ^ (row / 2 & 3)) * 16);
}
TS_DEVICE int place_b(int row, int piece) { return row * kTile * 2 + ((piece ^ (row & 7)) * 16); }

extern "C" __global__ void matmul(float* c, const ts::f16* a, const ts::f16* b, int m, int n, int k,
                                  Fault fault) {
  const auto stage = [](int step) { return ts::shared() + step % 2 * kStageBytes; };
  const int row0 = ts::block(1) * kTile, column0 = ts::block(0) * kTile;
  auto load = [&](int step) {
    char* to = stage(step);
    for (int i = ts::thread(); i < kTile * 4; i += ts::threads())
      ts::copy_async<16>(to + place_a(i / 4, i % 4),
                         a + (row0 + i / 4) * k + step * kDepth + i % 4 * 8,
                         row0 + i / 4 < m ? 16 : 0);
    for (int i = ts::thread(); i < kDepth * 8; i += ts::threads())
      ts::copy_async<16>(to + kTile * kDepth * 2 + place_b(i / 8, i % 8),
                         b + (step * kDepth + i / 8) * n + column0 + i % 8 * 8);
    if (fault != Fault::NoCommit) ts::commit_copies();
  };
  float sum[8][4];
  for (auto& tile : sum)
    for (float& x : tile)
      if (fault != Fault::NoInitialization)
        x = 0;
      else
        x = ts::as_float(0x7fffffffu);
  const int steps = k / kDepth;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      load(step + 1);
      if (fault == Fault::WaitTooFew)
        ts::wait_copies<2>();
      else if (fault != Fault::NoWait)
        ts::wait_copies<1>();
    } else {
      ts::wait_copies<0>();
    }
    if (fault != Fault::NoSync) ts::sync();
    const char* at = stage(step + (fault == Fault::WrongStage ? 1 : 0));
    for (int kk = 0; kk < 2; ++kk) {
      unsigned x[4];
      int row = ts::warp() * 16 + ts::lane() % 16;
      if (fault == Fault::WrongRow) row ^= 1;
      const int piece = kk * 2 + ts::lane() / 16;
      ts::load_matrices(x, at + (fault == Fault::WrongSwizzle ? row * kDepth * 2 + piece * 16
                                                              : place_a(row, piece)));
      for (int j = 0; j < 8; ++j) {
        unsigned y[2];
        const char* from = at + kTile * kDepth * 2 + place_b(kk * 16 + ts::lane() % 16, j);
        if (fault == Fault::WrongTranspose)
          ts::load_matrices(y, from);
        else
          ts::load_matrices_transposed(y, from);
        ts::multiply_add(sum[j], x, y, ts::f16{});
      }
    }
    if (fault != Fault::NoSecondSync) ts::sync();
  }
  for (int j = 0; j < 8; ++j)
    for (int i = 0; i < 4; ++i) {
      const int row = row0 + ts::warp() * 16 + ts::lane() / 4 + 8 * (i / 2);
      const int column = column0 + j * 8 + ts::lane() % 4 * 2 + i % 2;
      if (row < m || fault == Fault::NoTail) ts::store_global(c + row * n + column, sum[j][i]);
    }
}

// One warp fills a row of shared memory, another one adds it up; lanes hand over pairs.
extern "C" __global__ void hand_over(float* y, const float* x, Fault fault) {
  float* row = reinterpret_cast<float*>(ts::shared());
  for (int round = 0; round < 3; ++round) {
    if (ts::warp() == 0) {
      if (round > 0) ts::sync_some(2, 64);
      ts::store_shared(row + ts::lane(), ts::load_global(x + 32 * round + ts::lane()));
      if (fault != Fault::NoArrival || round < 1)
        ts::arrive(1, fault == Fault::MeetingOfTooMany ? 32 : 64);
    } else {
      ts::sync_some(1, 64);
      const float mine = ts::load_shared(row + ts::lane());
      float* pair = row + 32;
      ts::store_shared(pair + ts::lane(), mine);
      if (fault != Fault::NoWarpSync) ts::sync_warp();
      const float sum = mine + ts::load_shared(pair + (ts::lane() ^ 1));
      ts::store_global(y + 32 * round + ts::lane(), sum);
      ts::sync_warp();
      if (round < 2) ts::arrive(2, 64);
    }
  }
}

// C = A·B for sm_90: boxes of 64×64 come by the asynchronous proxy, four warps multiply them.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kBoxBytes = 64 * 64 * 2;
constexpr int kWideBytes = 4 * kBoxBytes + 64 * 64 * 4 + 64;

extern "C" __global__ void matmul_wide(const __grid_constant__ ts::TensorMap c,
                                       const __grid_constant__ ts::TensorMap a,
                                       const __grid_constant__ ts::TensorMap b, int k,
                                       Fault fault) {
  const auto stage = [](int step) { return ts::shared() + step % 2 * 2 * kBoxBytes; };
  char* result = ts::shared() + 4 * kBoxBytes;
  ts::Barrier* full = reinterpret_cast<ts::Barrier*>(result + 64 * 64 * 4);
  ts::Barrier* empty = full + 2;
  if (ts::thread() == 0) {
    for (int s = 0; s < 2; ++s) {
      ts::init_barrier(full + s, 1);
      if (fault != Fault::NoBarrier) ts::init_barrier(empty + s, ts::threads());
    }
    ts::publish_barriers();
  }
  ts::sync();
  const int row = ts::block(1) * 64, column = ts::block(0) * 64, steps = k / 64;
  const auto load = [&](int step) {
    if (ts::thread() != 0) return;
    ts::Barrier* b_full = full + step % 2;
    if (step >= 2 && fault != Fault::NoEmptyWait) ts::wait(empty + step % 2, (step / 2 - 1) & 1);
    ts::expect_bytes(b_full, fault == Fault::TooFewBytes    ? kBoxBytes
                             : fault == Fault::TooManyBytes ? 3 * kBoxBytes
                                                            : 2 * kBoxBytes);
    ts::copy_tile(stage(step), a, step * 64, row, b_full);
    ts::copy_tile(stage(step) + kBoxBytes, b, column, step * 64, b_full);
  };
  float sum[32];
  for (float& x : sum) x = 0;
  load(0);
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) load(step + 1);
    if (fault != Fault::NoFullWait)
      ts::wait(full + step % 2, (step / 2 + (fault == Fault::WrongParity ? 1 : 0)) & 1);
    ts::begin_products(sum);
    for (int kk = 0; kk < 4; ++kk) {
      const auto x = ts::operand(stage(step) + kk * 32, 0, fault == Fault::WrongStride ? 512 : 1024);
      const auto y = ts::operand(stage(step) + kBoxBytes + kk * 2048, 0, 1024);
      ts::multiply_add_wide<0, 1>(sum, x, y, ts::f16{}, fault != Fault::NotAdded);
    }
    ts::commit_products();
    if (fault != Fault::NoProductWait || step + 1 == steps) ts::wait_products<0>(sum);
    ts::arrive(empty + step % 2);
  }
  const auto place = [&](int i) {
    const int at = (ts::warp() * 16 + ts::lane() / 4 + 8 * (i % 4 / 2)) * 64 + i / 4 * 8 +
                   ts::lane() % 4 * 2 + i % 2;
    return reinterpret_cast<float*>(result) + at;
  };
  for (int i = 0; i < 32; ++i) ts::store_shared(place(i), sum[i]);
  if (fault != Fault::NoFence) ts::fence_async();
  ts::sync();
  if (ts::thread() == 0) {
    ts::store_tile(c, column, row, result);
    ts::commit_stores();
    if (fault != Fault::NoStoreWait) ts::wait_stores<0>();
  }
}
#endif
