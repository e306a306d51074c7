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
TS_DEVICE unsigned to_tf32(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
TS_DEVICE float product(float x, float y) { return __fmul_rn(x, y); }
TS_DEVICE double product(double x, double y) { return __dmul_rn(x, y); }
TS_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- memory
template <class T> TS_DEVICE T load_global(const T* p) { return *p; }
template <class T> TS_DEVICE void store_global(T* p, T x) { *p = x; }
template <class T> TS_DEVICE T load_shared(const T* p) { return *p; }
template <class T> TS_DEVICE void store_shared(T* p, T x) { *p = x; }
TS_DEVICE void fence_device() { __threadfence(); }
TS_DEVICE unsigned take_ticket(unsigned* counter, unsigned count) {
  return atomicInc(counter, count - 1);
}

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
// `registers` and `address` are the numbers of the operands that follow them.
#define TS_LOAD(name, n, trans, registers, address, ...)                                           \
  TS_DEVICE void name(unsigned(&r)[n], const void* row) {                                          \
    asm volatile("ldmatrix.sync.aligned.m8n8.x" #n trans ".shared.b16 {" registers "}, [" address  \
                 "];"                                                                              \
                 : __VA_ARGS__                                                                     \
                 : "r"(shared_address(row))                                                        \
                 : "memory");                                                                      \
  }
#define TS_LOADS(name, trans)                                                                      \
  TS_LOAD(name, 4, trans, "%0, %1, %2, %3", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]))  \
  TS_LOAD(name, 2, trans, "%0, %1", "%2", "=r"(r[0]), "=r"(r[1]))                                  \
  TS_LOAD(name, 1, trans, "%0", "%1", "=r"(r[0]))
TS_LOADS(load_matrices, "")
TS_LOADS(load_matrices_transposed, ".trans")
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TS_STORE(name, n, trans, registers, ...)                                                   \
  TS_DEVICE void name(void* row, const unsigned(&r)[n]) {                                          \
    asm volatile("stmatrix.sync.aligned.m8n8.x" #n trans ".shared.b16 [%0], {" registers           \
                 "};" ::"r"(shared_address(row)),                                                  \
                 __VA_ARGS__                                                                       \
                 : "memory");                                                                      \
  }
#define TS_STORES(name, trans)                                                                     \
  TS_STORE(name, 4, trans, "%1, %2, %3, %4", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))           \
  TS_STORE(name, 2, trans, "%1, %2", "r"(r[0]), "r"(r[1]))
TS_STORES(store_matrices, "")
TS_STORES(store_matrices_transposed, ".trans")
#endif

#define TS_MULTIPLY_ADD(shape, T)                                                                  \
  TS_DEVICE void multiply_add(float(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2], T) {     \
    asm("mma.sync.aligned." #shape ".row.col.f32." #T "." #T ".f32 {%0, %1, %2, %3}, "             \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                       \
  }
TS_MULTIPLY_ADD(m16n8k16, f16)
TS_MULTIPLY_ADD(m16n8k16, bf16)
TS_MULTIPLY_ADD(m16n8k8, tf32)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <int x, int y, int z> TS_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// --- barriers in shared memory
TS_DEVICE void init_barrier(Barrier* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count)
               : "memory");
}
TS_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TS_DEVICE void arrive(Barrier* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
TS_DEVICE void expect_bytes(Barrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
}
TS_DEVICE void wait(Barrier* b, int parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra over;\n"
               "bra again;\n"
               "over:\n"
               "}" ::"r"(shared_address(b)),
               "r"(parity)
               : "memory");
}

// --- boxes of arrays
TS_DEVICE void copy_tile(void* to, const TensorMap& map, int x, int y, Barrier* b) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(b))
      : "memory");
}
TS_DEVICE void store_tile(const TensorMap& map, int x, int y, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(x), "r"(y), "r"(shared_address(from))
      : "memory");
}
TS_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending> TS_DEVICE void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
TS_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- products of four warps
// Of shared memory in rows of 128, 64 or 32 bytes, swizzled: `stride` bytes between groups of eight
// rows, `leading` between blocks of rows' width where the operand is transposed (PTX: matrix
// descriptor).
TS_DEVICE unsigned long long operand(const void* p, int leading, int stride, int row_bytes = 128) {
  const unsigned long long start = (shared_address(p) & 0x3ffffu) >> 4;
  return start | static_cast<unsigned long long>(leading >> 4) << 16 |
         static_cast<unsigned long long>(stride >> 4) << 32 |
         static_cast<unsigned long long>(row_bytes == 128  ? 1
                                         : row_bytes == 64 ? 2
                                                           : 3)
             << 62;
}
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The compiler is told that asynchronous products change the registers until they are waited for.
template <int n> TS_DEVICE void settle(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Registers that products read are not used for anything else until then.
template <int n> TS_DEVICE void keep(unsigned (&a)[n][4]) {
#pragma unroll
  for (int i = 0; i < 4 * n; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
template <int n> TS_DEVICE void begin_products(float (&d)[n]) {
  settle(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TS_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending, int n> TS_DEVICE void wait_products(float (&d)[n]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  settle(d);
}
// clang-format off
#define TS_REGISTERS_4 "%0,%1,%2,%3"
#define TS_REGISTERS_8 TS_REGISTERS_4 ",%4,%5,%6,%7"
#define TS_REGISTERS_12 TS_REGISTERS_8 ",%8,%9,%10,%11"
#define TS_REGISTERS_16 TS_REGISTERS_12 ",%12,%13,%14,%15"
#define TS_REGISTERS_20 TS_REGISTERS_16 ",%16,%17,%18,%19"
#define TS_REGISTERS_24 TS_REGISTERS_20 ",%20,%21,%22,%23"
#define TS_REGISTERS_28 TS_REGISTERS_24 ",%24,%25,%26,%27"
#define TS_REGISTERS_32 TS_REGISTERS_28 ",%28,%29,%30,%31"
#define TS_REGISTERS_40 TS_REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TS_REGISTERS_48 TS_REGISTERS_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TS_REGISTERS_56 TS_REGISTERS_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TS_REGISTERS_64 TS_REGISTERS_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TS_REGISTERS_72 TS_REGISTERS_64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define TS_REGISTERS_80 TS_REGISTERS_72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define TS_REGISTERS_88 TS_REGISTERS_80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TS_REGISTERS_96 TS_REGISTERS_88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define TS_REGISTERS_104 TS_REGISTERS_96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TS_REGISTERS_112 TS_REGISTERS_104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define TS_REGISTERS_120 TS_REGISTERS_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define TS_REGISTERS_128 TS_REGISTERS_120 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define TS_FLOATS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TS_FLOATS_8(i) TS_FLOATS_4(i), TS_FLOATS_4(i + 4)
#define TS_FLOATS_12(i) TS_FLOATS_8(i), TS_FLOATS_4(i + 8)
#define TS_FLOATS_16(i) TS_FLOATS_12(i), TS_FLOATS_4(i + 12)
#define TS_FLOATS_20(i) TS_FLOATS_16(i), TS_FLOATS_4(i + 16)
#define TS_FLOATS_24(i) TS_FLOATS_20(i), TS_FLOATS_4(i + 20)
#define TS_FLOATS_28(i) TS_FLOATS_24(i), TS_FLOATS_4(i + 24)
#define TS_FLOATS_32(i) TS_FLOATS_28(i), TS_FLOATS_4(i + 28)
#define TS_FLOATS_40(i) TS_FLOATS_32(i), TS_FLOATS_8(i + 32)
#define TS_FLOATS_48(i) TS_FLOATS_40(i), TS_FLOATS_8(i + 40)
#define TS_FLOATS_56(i) TS_FLOATS_48(i), TS_FLOATS_8(i + 48)
#define TS_FLOATS_64(i) TS_FLOATS_56(i), TS_FLOATS_8(i + 56)
#define TS_FLOATS_72(i) TS_FLOATS_64(i), TS_FLOATS_8(i + 64)
#define TS_FLOATS_80(i) TS_FLOATS_72(i), TS_FLOATS_8(i + 72)
#define TS_FLOATS_88(i) TS_FLOATS_80(i), TS_FLOATS_8(i + 80)
#define TS_FLOATS_96(i) TS_FLOATS_88(i), TS_FLOATS_8(i + 88)
#define TS_FLOATS_104(i) TS_FLOATS_96(i), TS_FLOATS_8(i + 96)
#define TS_FLOATS_112(i) TS_FLOATS_104(i), TS_FLOATS_8(i + 104)
#define TS_FLOATS_120(i) TS_FLOATS_112(i), TS_FLOATS_8(i + 112)
#define TS_FLOATS_128(i) TS_FLOATS_120(i), TS_FLOATS_8(i + 120)
// n columns, r = n / 2 registers, and the numbers of the operands that follow them: a, b, add and
// what is transposed; or four registers with a's rows, b, add and whether b is transposed.
#define TS_WIDE(n, r, p0, p1, p2, p3, p4, p5, p6, T)                                               \
  template <int ta, int tb>                                                                        \
  TS_DEVICE void multiply_add_wide(float (&d)[r], unsigned long long a, unsigned long long b, T,   \
                                   bool add) {                                                     \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p2 ", 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #T "." #T " {"                  \
                 TS_REGISTERS_##r "}, %" #p0 ", %" #p1 ", add, 1, 1, %" #p3 ", %" #p4 ";\n}"        \
                 : TS_FLOATS_##r(0)                                                                \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(ta), "n"(tb)                    \
                 : "memory");                                                                      \
  }                                                                                                \
  template <int tb>                                                                                \
  TS_DEVICE void multiply_add_wide(float (&d)[r], const unsigned (&a)[4], unsigned long long b, T, \
                                   bool add) {                                                     \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #p5 ", 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #T "." #T " {"                  \
                 TS_REGISTERS_##r "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4              \
                 ", add, 1, 1, %" #p6 ";\n}"                                                       \
                 : TS_FLOATS_##r(0)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), \
                   "n"(tb)                                                                         \
                 : "memory");                                                                      \
  }
#define TS_WIDES(T) \
  TS_WIDE(8, 4, 4, 5, 6, 7, 8, 9, 10, T) \
  TS_WIDE(16, 8, 8, 9, 10, 11, 12, 13, 14, T) \
  TS_WIDE(24, 12, 12, 13, 14, 15, 16, 17, 18, T) \
  TS_WIDE(32, 16, 16, 17, 18, 19, 20, 21, 22, T) \
  TS_WIDE(40, 20, 20, 21, 22, 23, 24, 25, 26, T) \
  TS_WIDE(48, 24, 24, 25, 26, 27, 28, 29, 30, T) \
  TS_WIDE(56, 28, 28, 29, 30, 31, 32, 33, 34, T) \
  TS_WIDE(64, 32, 32, 33, 34, 35, 36, 37, 38, T) \
  TS_WIDE(80, 40, 40, 41, 42, 43, 44, 45, 46, T) \
  TS_WIDE(96, 48, 48, 49, 50, 51, 52, 53, 54, T) \
  TS_WIDE(112, 56, 56, 57, 58, 59, 60, 61, 62, T) \
  TS_WIDE(128, 64, 64, 65, 66, 67, 68, 69, 70, T) \
  TS_WIDE(144, 72, 72, 73, 74, 75, 76, 77, 78, T) \
  TS_WIDE(160, 80, 80, 81, 82, 83, 84, 85, 86, T) \
  TS_WIDE(176, 88, 88, 89, 90, 91, 92, 93, 94, T) \
  TS_WIDE(192, 96, 96, 97, 98, 99, 100, 101, 102, T) \
  TS_WIDE(208, 104, 104, 105, 106, 107, 108, 109, 110, T) \
  TS_WIDE(224, 112, 112, 113, 114, 115, 116, 117, 118, T) \
  TS_WIDE(240, 120, 120, 121, 122, 123, 124, 125, 126, T) \
  TS_WIDE(256, 128, 128, 129, 130, 131, 132, 133, 134, T)
TS_WIDES(f16)
TS_WIDES(bf16)
// clang-format on
#else  // PTX of sm_90, which nvcc -arch=sm_90a adds for later GPUs: there it traps
template <int n> TS_DEVICE void keep(unsigned (&)[n][4]) {}
template <int n> TS_DEVICE void begin_products(float (&)[n]) { __trap(); }
TS_DEVICE void commit_products() {}
template <int pending, int n> TS_DEVICE void wait_products(float (&)[n]) {}
template <int ta, int tb, int n, class T>
TS_DEVICE void multiply_add_wide(float (&)[n], unsigned long long, unsigned long long, T, bool) {}
template <int tb, int n, class T>
TS_DEVICE void multiply_add_wide(float (&)[n], const unsigned (&)[4], unsigned long long, T, bool) {
}
#endif
#endif

}  // namespace ts
