// The device functions (device.cuh) as PTX.
#pragma once

#define TS_DEVICE __device__ __forceinline__

namespace ts {

// --- where
TS_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
TS_DEVICE int threads() { return static_cast<int>(blockDim.x); }
TS_DEVICE int lane() { return static_cast<int>(threadIdx.x & 31u); }
TS_DEVICE int warp() { return static_cast<int>(threadIdx.x >> 5); }
TS_DEVICE int block(int axis) {
  return static_cast<int>(axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z);
}
TS_DEVICE int grid(int axis) {
  return static_cast<int>(axis == 0 ? gridDim.x : axis == 1 ? gridDim.y : gridDim.z);
}
TS_DEVICE char* shared() {
  extern __shared__ __align__(1024) char ts_shared[];
  return ts_shared;
}
TS_DEVICE unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// --- numbers
TS_DEVICE unsigned as_bits(float x) { return __float_as_uint(x); }
TS_DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
TS_DEVICE float to_float(float x) { return x; }
TS_DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
TS_DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
template <class T> TS_DEVICE T from_float(float x);
template <> TS_DEVICE float from_float<float>(float x) { return x; }
template <> TS_DEVICE f16 from_float<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <> TS_DEVICE bf16 from_float<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
TS_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TS_DEVICE float rsqrt_fast(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- memory
template <class T> TS_DEVICE T load_global(const T* p) { return *p; }
template <class T> TS_DEVICE void store_global(T* p, T x) { *p = x; }
template <class T> TS_DEVICE T load_shared(const T* p) { return *p; }
template <class T> TS_DEVICE void store_shared(T* p, T x) { *p = x; }
TS_DEVICE void atomic_add(float* p, float x) { atomicAdd(p, x); }

// --- barriers
TS_DEVICE void sync() { __syncthreads(); }
TS_DEVICE void sync_warp(unsigned mask = kAllLanes) { __syncwarp(mask); }
TS_DEVICE void sync_some(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
TS_DEVICE void arrive(int id, int count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// --- asynchronous copies
template <int bytes> TS_DEVICE void copy_async(void* to, const void* from, int read = bytes) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(read)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(read), "n"(bytes)
                 : "memory");
}
TS_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> TS_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// --- between lanes
template <class T> TS_DEVICE T shuffle_xor(T x, int lanes) {
  return __shfl_xor_sync(kAllLanes, x, lanes);
}
template <class T> TS_DEVICE T shuffle(T x, int from) { return __shfl_sync(kAllLanes, x, from); }

// --- matrices of a warp
TS_DEVICE void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
TS_DEVICE void load_matrices(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
TS_DEVICE void load_matrices(unsigned (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
}
TS_DEVICE void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
TS_DEVICE void load_matrices_transposed(unsigned (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
TS_DEVICE void load_matrices_transposed(unsigned (&r)[1], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(shared_address(row))
               : "memory");
}
#if __CUDA_ARCH__ >= 900
TS_DEVICE void store_matrices(void* row, const unsigned (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
#endif

TS_DEVICE void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TS_DEVICE void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TS_DEVICE void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], tf32) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace ts
