// The device functions that generated CUDA kernels are made of: thread numbers, memory, barriers,
// asynchronous copies, shuffles and matrix instructions. Each has two bodies: ptx.cuh for the GPU
// (NVRTC and nvcc, sm_80 and later, no other header needed), host.cuh for the emulator.
//
// Both define the same functions in namespace ts:
//   thread() threads() lane() warp() block(axis) grid(axis) shared()
//   load_global(p) store_global(p, x) load_shared(p) store_shared(p, x): T of 1 to 16 bytes
//   atomic_add(p, x)
//   sync() sync_warp(mask) sync_some(id, threads) arrive(id, threads)
//   copy_async<bytes>(shared, global, read) commit_copies() wait_copies<pending>()
//   shuffle_xor(x, lanes) shuffle(x, lane)
//   load_matrices(r, row) load_matrices_transposed(r, row): 8×8 matrices of 16-bit elements,
//     4, 2 or 1 by the size of r (PTX: ldmatrix); store_matrices(row, r) on sm_90 and later
//   multiply_add(d, a, b, T{}): d += a·b of a warp (PTX: mma.m16n8k16 of f16 and bf16, m16n8k8 of
//     tf32), fragments as PTX lays them out
//   to_float(x) from_float<T>(x) as_bits(x) as_float(bits) exp2_fast(x) rsqrt_fast(x)
#pragma once

namespace ts {

// Floats of 16 bits, and 32-bit floats of which matrix instructions see 19 bits.
struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};
struct tf32 {};

// 16 bytes that are moved as one.
struct alignas(16) Vec16 {
  unsigned x, y, z, w;
};
struct alignas(8) Vec8 {
  unsigned x, y;
};

inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace ts

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "ptx.cuh"
#else
#include "host.cuh"
#endif
