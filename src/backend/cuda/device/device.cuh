// The device functions that generated CUDA kernels are made of: thread numbers, memory, barriers,
// asynchronous copies, shuffles and matrix instructions. Each has two bodies: ptx.cuh for the GPU
// (NVRTC and nvcc, sm_80 and later, no other header needed), host.cuh for the emulator.
//
// Both define the same functions in namespace ts:
//   thread() threads() lane() warp() block(axis) grid(axis) shared()
//   load_global(p) store_global(p, x) load_shared(p) store_shared(p, x): T of 1 to 16 bytes
//   fence_device() take_ticket(counter, count): an order between blocks. The counter as it was,
//     which goes up by one and from count - 1 back to 0; fences stand before and after it
//   sync() sync_warp(mask) sync_some(id, threads) arrive(id, threads)
//   copy_async<bytes>(shared, global, read) commit_copies() wait_copies<pending>()
//   shuffle_xor(x, lanes) shuffle(x, lane)
//   load_matrices(r, row) load_matrices_transposed(r, row): 8×8 matrices of 16-bit elements,
//     4, 2 or 1 by the size of r (PTX: ldmatrix); on sm_90 and later store_matrices(row, r) and
//     store_matrices_transposed(row, r) of 4 or 2 (PTX: stmatrix)
//   multiply_add(d, a, b, T{}): d += a·b of a warp (PTX: mma.m16n8k16 of f16 and bf16, m16n8k8 of
//     tf32), fragments as PTX lays them out
// and from sm_90 on:
//   sync_cluster<x, y, z>(): all threads of a cluster of so many blocks meet, and see what all of
//     them wrote to global memory; the kernel says __cluster_dims__(x, y, z)
//   init_barrier(b, count) publish_barriers() arrive(b) expect_bytes(b, bytes) wait(b, parity):
//     barriers in shared memory (PTX: mbarrier)
//   copy_tile(shared, map, x, y, b) store_tile(map, x, y, shared) commit_stores() wait_stores<n>():
//     boxes of a two-dimensional array (PTX: cp.async.bulk.tensor)
//   fence_async(): before the asynchronous proxy reads what this thread wrote to shared memory
//   operand(shared, leading, stride, row_bytes) begin_products(d) multiply_add_wide<ta, tb>(d, a, b,
//     T{}, add) commit_products() wait_products<n>(d): products of four warps (PTX: wgmma.m64nNk16,
//     sm_90a; N 8 to 64 in eights, to 256 in sixteens)
//   multiply_add_wide<tb>(d, a, b, T{}, add): the same with a's rows in four registers, as mma has
//     them, which keep(a) after the wait says are needed until then
// numbers:
//   to_float(x) from_float<T>(x) as_bits(x) as_float(bits) exp2_fast(x)
//   product(x, y): rounded before anything is added to it
//   to_tf32(x): rounded to 10 bits of fraction, as an operand of multiply_add
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

// A barrier in shared memory.
using Barrier = unsigned long long;

// A two-dimensional array in global memory and the boxes in which it is copied; passed to kernels
// by value as `const __grid_constant__ TensorMap`. Made by the driver (backend/cuda), or for the
// emulator by host::tensor_map.
struct alignas(128) TensorMap {
  unsigned long long words[16];
};

inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace ts

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "ptx.cuh"
#define TS_WHERE
#define TS_HERE
#define TS_UNROLL _Pragma("unroll")
#else
#include "host.cuh"
// The line of the kernel's source that a function was called from, handed on.
#define TS_WHERE , int line = __builtin_LINE()
#define TS_HERE , line
#define TS_UNROLL
#endif
#include "tiles.cuh"
