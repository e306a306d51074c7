// The device functions (device.cuh) for the emulator (backend/cuda/emulator.h). `line` is that of
// the call in the kernel.
#pragma once

#include <cmath>
#include <cstring>

#include "api.h"

#define TS_DEVICE inline
#define TS_LINE int line = __builtin_LINE()
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define __grid_constant__

namespace ts {

namespace host {
// Who watches; set before a kernel runs.
inline const Api* api = nullptr;
}  // namespace host

// --- where
inline int thread() { return host::api->thread(); }
inline int threads() { return host::api->threads(); }
inline int lane() { return thread() & 31; }
inline int warp() { return thread() >> 5; }
inline int block(int axis) { return host::api->block(axis); }
inline int grid(int axis) { return host::api->grid(axis); }
inline char* shared() { return host::api->shared(); }

// --- numbers
namespace host {
template <class To, class From> To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
}  // namespace host
inline unsigned as_bits(float x) { return host::bits<unsigned>(x); }
inline float as_float(unsigned bits) { return host::bits<float>(bits); }
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return host::bits<float>(unsigned(x.bits) << 16); }
inline float to_float(f16 x) {
  const unsigned sign = unsigned(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31,
                 fraction = x.bits & 0x3ff;
  if (exponent == 31) return host::bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return host::bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = float(fraction) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}
template <class T> T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) {
  const unsigned u = host::bits<unsigned>(x);
  if (x != x) return {0x7fff};
  return {static_cast<unsigned short>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
template <> inline f16 from_float<f16>(float x) {
  const unsigned u = host::bits<unsigned>(x);
  const auto sign = static_cast<unsigned short>(u >> 16 & 0x8000);
  if (x != x) return {0x7fff};
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.0f) return {static_cast<unsigned short>(sign | 0x7c00)};
  if (magnitude < 0x1p-14f) {  // to a multiple of 2^-24; ties to even, as nearbyint rounds
    const auto n = static_cast<unsigned short>(std::nearbyint(magnitude * 0x1p24f));
    return {static_cast<unsigned short>(sign | n)};
  }
  const unsigned v = host::bits<unsigned>(magnitude);
  const unsigned rounded = v + 0xfff + (v >> 13 & 1);
  return {static_cast<unsigned short>(sign | ((rounded >> 13) - (112u << 10)))};
}
// PTX, cvt.rna: to the nearest number of 10 bits of fraction, ties away from zero.
inline unsigned to_tf32(float x) {
  if (x != x) return 0x7fffffffu;
  const unsigned u = host::bits<unsigned>(x);
  return std::isinf(x) ? u : (u + 0x1000u) & 0xffffe000u;
}
template <class T> T product(T x, T y) { return x * y; }
// Within 2 ulp on the device; exact here.
inline float exp2_fast(float x) { return std::exp2(x); }

// --- memory
template <class T> T load_global(const T* p, TS_LINE) {
  host::api->access(host::Access::ReadGlobal, p, int(sizeof(T)), line);
  return *p;
}
template <class T> void store_global(T* p, T x, TS_LINE) {
  host::api->access(host::Access::WriteGlobal, p, int(sizeof(T)), line);
  *p = x;
}
template <class T> T load_shared(const T* p, TS_LINE) {
  host::api->access(host::Access::ReadShared, p, int(sizeof(T)), line);
  return *p;
}
template <class T> void store_shared(T* p, T x, TS_LINE) {
  host::api->access(host::Access::WriteShared, p, int(sizeof(T)), line);
  *p = x;
}
inline void fence_device(TS_LINE) { host::api->fence_device(line); }
inline unsigned take_ticket(unsigned* counter, unsigned count, TS_LINE) {
  return host::api->take_ticket(counter, count, line);
}
template <int x, int y, int z> void sync_cluster(TS_LINE) {
  host::api->sync_cluster(x, y, z, line);
}

// --- barriers
inline void sync(TS_LINE) { host::api->barrier(0, threads(), true, line); }
inline void sync_warp(unsigned mask = kAllLanes, TS_LINE) {
  host::api->collective("sync_warp", mask, nullptr, nullptr, true, line);
}
inline void sync_some(int id, int count, TS_LINE) { host::api->barrier(id, count, true, line); }
inline void arrive(int id, int count, TS_LINE) { host::api->barrier(id, count, false, line); }

// --- asynchronous copies
template <int bytes> void copy_async(void* to, const void* from, int read = bytes, TS_LINE) {
  host::api->copy_async(to, from, bytes, read, line);
}
inline void commit_copies(TS_LINE) { host::api->copy_commit(line); }
template <int pending> void wait_copies(TS_LINE) { host::api->copy_wait(pending, line); }

// --- between lanes
namespace host {
template <class T> struct Shuffled {
  T x, result;
  int from;
};
template <class T> void shuffle_all(void* const* lanes, unsigned) {
  for (int l = 0; l < 32; ++l) {
    auto* s = static_cast<Shuffled<T>*>(lanes[l]);
    s->result = static_cast<Shuffled<T>*>(lanes[s->from & 31])->x;
  }
}
}  // namespace host
template <class T> T shuffle(T x, int from, TS_LINE) {
  host::Shuffled<T> s{x, x, from};
  host::api->collective("shuffle", kAllLanes, &s, &host::shuffle_all<T>, false, line);
  return s.result;
}
template <class T> T shuffle_xor(T x, int lanes, TS_LINE) {
  host::Shuffled<T> s{x, x, lane() ^ lanes};
  host::api->collective("shuffle_xor", kAllLanes, &s, &host::shuffle_all<T>, false, line);
  return s.result;
}

// --- matrices of a warp
namespace host {
// What a lane brings: the address of a row of one matrix, and room for its two elements of each.
struct MatrixRows {
  const unsigned short* row;
  unsigned* r;
  int matrices;
  bool transposed;
};
// PTX, ldmatrix: lanes 8i…8i+7 name the rows of matrix i; a lane gets row lane/4, columns
// 2(lane%4) and the next; of the transposed matrix where .trans.
inline void load_matrices_all(void* const* lanes, unsigned) {
  const auto of = [&](int l) { return static_cast<MatrixRows*>(lanes[l]); };
  for (int l = 0; l < 32; ++l)
    for (int m = 0; m < of(l)->matrices; ++m) {
      unsigned pair = 0;
      for (int e = 0; e < 2; ++e) {
        const int i = l / 4, j = l % 4 * 2 + e;
        const int row = of(l)->transposed ? j : i, column = of(l)->transposed ? i : j;
        pair |= unsigned(of(8 * m + row)->row[column]) << (16 * e);
      }
      of(l)->r[m] = pair;
    }
}
template <int n> void load_matrices(unsigned (&r)[n], const void* row, bool transposed, int line) {
  if (thread() % 32 < 8 * n) api->access(Access::ReadShared, row, 16, line);
  MatrixRows mine{static_cast<const unsigned short*>(row), r, n, transposed};
  api->collective(transposed ? "load_matrices_transposed" : "load_matrices", kAllLanes, &mine,
                  &load_matrices_all, false, line);
}
inline void store_matrices_all(void* const* lanes, unsigned) {
  const auto of = [&](int l) { return static_cast<MatrixRows*>(lanes[l]); };
  for (int l = 0; l < 32; ++l)
    for (int m = 0; m < of(l)->matrices; ++m)
      for (int e = 0; e < 2; ++e) {
        const int i = l / 4, j = l % 4 * 2 + e;
        const int row = of(l)->transposed ? j : i, column = of(l)->transposed ? i : j;
        const_cast<unsigned short*>(of(8 * m + row)->row)[column] =
            static_cast<unsigned short>(of(l)->r[m] >> (16 * e));
      }
}
template <int n>
void store_matrices(void* row, const unsigned (&r)[n], bool transposed, int line) {
  if (thread() % 32 < 8 * n) api->access(Access::WriteShared, row, 16, line);
  unsigned copy[n];
  std::memcpy(copy, r, sizeof copy);
  MatrixRows mine{static_cast<const unsigned short*>(row), copy, n, transposed};
  api->collective(transposed ? "store_matrices_transposed" : "store_matrices", kAllLanes, &mine,
                  &store_matrices_all, false, line);
}
}  // namespace host
template <int n> void load_matrices(unsigned (&r)[n], const void* row, TS_LINE) {
  host::load_matrices(r, row, false, line);
}
template <int n> void load_matrices_transposed(unsigned (&r)[n], const void* row, TS_LINE) {
  host::load_matrices(r, row, true, line);
}
template <int n> void store_matrices(void* row, const unsigned (&r)[n], TS_LINE) {
  host::store_matrices(row, r, false, line);
}
template <int n> void store_matrices_transposed(void* row, const unsigned (&r)[n], TS_LINE) {
  host::store_matrices(row, r, true, line);
}

namespace host {
struct Fragments {
  float* d;
  const unsigned *a, *b;
};
// PTX, mma: with g = lane / 4 and t = lane % 4, register i of A holds row g + 8(i % 2) and, of
// 16-bit elements, columns 2t + 8(i / 2) and the next, of 32-bit ones column t + 4(i / 2); register
// i of B holds column g and rows as A's columns; D holds rows g and g + 8, columns 2t and 2t + 1.
template <class T> float element(unsigned r, int e) {
  return to_float(T{static_cast<unsigned short>(r >> (16 * e))});
}
template <> inline float element<tf32>(unsigned r, int) { return bits<float>(r); }
// What a product makes of the other 13 bits is not defined.
inline bool rounded_to_tf32(unsigned r) { return (r & 0x1fffu) == 0 || r == 0x7fffffffu; }
template <class T> void multiply_add_all(void* const* lanes, unsigned) {
  constexpr int packed = sizeof(T) == 2 ? 2 : 1, depth = 8 * packed;
  const auto of = [&](int l) { return static_cast<Fragments*>(lanes[l]); };
  float a[16][depth], b[depth][8];
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    for (int e = 0; e < packed; ++e) {
      for (int i = 0; i < 4; ++i)
        a[g + 8 * (i % 2)][packed * (t + 4 * (i / 2)) + e] = element<T>(of(l)->a[i], e);
      for (int i = 0; i < 2; ++i) b[packed * (t + 4 * i) + e][g] = element<T>(of(l)->b[i], e);
    }
  }
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + 8 * (i / 2), column = l % 4 * 2 + i % 2;
      float sum = of(l)->d[i];
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      of(l)->d[i] = sum;
    }
}
}  // namespace host
template <class T>
void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], T, TS_LINE) {
  if constexpr (sizeof(T) != 2)
    for (int i = 0; i < 6; ++i)
      if (!host::rounded_to_tf32(i < 4 ? a[i] : b[i - 4]))
        host::api->fault("an operand of a product in tf32 has not been rounded", line);
  host::Fragments mine{d, a, b};
  host::api->collective("multiply_add", kAllLanes, &mine, &host::multiply_add_all<T>, false, line);
}

// --- barriers in shared memory
inline void init_barrier(Barrier* b, int count, TS_LINE) {
  host::api->barrier_init(b, count, line);
}
inline void publish_barriers(TS_LINE) { host::api->fence_async(line); }
inline void arrive(Barrier* b, TS_LINE) { host::api->barrier_arrive(b, 0, line); }
inline void expect_bytes(Barrier* b, int bytes, TS_LINE) {
  host::api->barrier_arrive(b, bytes, line);
}
inline void wait(Barrier* b, int parity, TS_LINE) { host::api->barrier_wait(b, parity, line); }

// --- boxes of arrays
namespace host {
struct Array {
  char* data;
  long long pitch;
  int rows, row_bytes, element_bytes, box_rows, box_bytes, swizzled;
};
// rows × columns elements, `pitch` bytes from row to row, in boxes of box_rows × box_columns; where
// swizzled, a box is 128, 64 or 32 bytes wide.
inline TensorMap tensor_map(void* data, int rows, int columns, long long pitch, int element_bytes,
                            int box_rows, int box_columns, bool swizzled) {
  const Array a{static_cast<char*>(data),    pitch,         rows,
                columns * element_bytes,     element_bytes, box_rows,
                box_columns * element_bytes, swizzled};
  TensorMap map{};
  static_assert(sizeof a <= sizeof map);
  std::memcpy(&map, &a, sizeof a);
  return map;
}
inline Rows box(const TensorMap& map, int x, int y, void* shared) {
  Array a;
  std::memcpy(&a, &map, sizeof a);
  const int byte = x * a.element_bytes;
  return {static_cast<char*>(shared),
          a.data + y * a.pitch + byte,
          a.pitch,
          a.box_rows,
          a.box_bytes,
          -y,
          a.rows - y,
          -byte,
          a.row_bytes - byte,
          a.swizzled != 0};
}
}  // namespace host
inline void copy_tile(void* to, const TensorMap& map, int x, int y, Barrier* b, TS_LINE) {
  host::api->copy_rows(host::box(map, x, y, to), b, line);
}
inline void store_tile(const TensorMap& map, int x, int y, const void* from, TS_LINE) {
  host::api->store_rows(host::box(map, x, y, const_cast<void*>(from)), line);
}
inline void commit_stores(TS_LINE) { host::api->store_commit(line); }
template <int pending> void wait_stores(TS_LINE) { host::api->store_wait(pending, line); }
inline void fence_async(TS_LINE) { host::api->fence_async(line); }

// --- products of four warps
inline unsigned long long operand(const void* p, int leading, int stride, int row_bytes = 128) {
  const auto start = static_cast<unsigned long long>(static_cast<const char*>(p) - shared());
  return start >> 4 | static_cast<unsigned long long>(leading >> 4) << 16 |
         static_cast<unsigned long long>(stride >> 4) << 32 |
         static_cast<unsigned long long>(row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3) << 62;
}
template <int n> void keep(unsigned (&)[n][4]) {}
template <int n> void begin_products(float (&)[n], TS_LINE) { host::api->product_begin(line); }
inline void commit_products(TS_LINE) { host::api->product_commit(line); }
template <int pending, int n> void wait_products(float (&)[n], TS_LINE) {
  host::api->product_wait(pending, line);
}
namespace host {
// PTX, wgmma, canonical layouts with swizzling of 128, 64 or 32 bytes: where element (i, k) of an
// operand lies, i its row (of A) or column (of B).
inline int place(unsigned long long operand, int i, int k, bool transposed) {
  const int start = int(operand & 0x3fff) << 4, leading = int(operand >> 16 & 0x3fff) << 4,
            stride = int(operand >> 32 & 0x3fff) << 4, row = 256 >> int(operand >> 62);
  const int at = transposed
                     ? start + i / (row / 2) * leading + k / 8 * stride + k % 8 * row + i % (row / 2) * 2
                     : start + i / 8 * stride + i % 8 * row + k * 2;
  return at ^ (at >> 7 & (row / 16 - 1)) << 4;
}
template <class T> struct Wide {
  float* d;
  unsigned long long a, b;
  char* shared;
  bool add;
  unsigned rows[4];  // instead of a: the registers that mma's A is in
};
// PTX, wgmma: warp w of the four holds rows 16w and on, as mma's A and D hold sixteen rows.
// ta: a is transposed, or in registers where it is kInRegisters.
constexpr int kInRegisters = 2;
template <class T, int n, int ta, int tb> void multiply_add_wide_all(void* const* threads) {
  const auto of = [&](int t) { return static_cast<Wide<T>*>(threads[t]); };
  const auto at = [&](int place) {
    T x;
    std::memcpy(&x, of(0)->shared + place, sizeof x);
    return to_float(x);
  };
  static thread_local float a[64][16], b[16][n];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 64; ++i)
      a[i][k] = ta == kInRegisters
                    ? element<T>(of(i / 16 * 32 + i % 8 * 4 + k / 2 % 4)
                                     ->rows[i / 8 % 2 + k / 8 * 2],
                                 k % 2)
                    : at(place(of(0)->a, i, k, ta));
    for (int j = 0; j < n; ++j) b[k][j] = at(place(of(0)->b, j, k, tb));
  }
  for (int t = 0; t < 128; ++t)
    for (int r = 0; r < n / 2; ++r) {
      const int i = t / 32 * 16 + t % 32 / 4 + 8 * (r % 4 / 2), j = r / 4 * 8 + t % 4 * 2 + r % 2;
      float sum = of(t)->add ? of(t)->d[r] : 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][j];
      of(t)->d[r] = sum;
    }
}
}  // namespace host
namespace host {
template <class T, int n, int ta, int tb> void product(const Wide<T>& mine, float* d, int line) {
  Span reads[(64 + n) * 16];
  int count = 0;
  if (lane() == 0)  // in pieces of 16 bytes
    for (int which = ta == kInRegisters ? 1 : 0; which < 2; ++which)
      for (int i = 0; i < (which == 0 ? 64 : n); ++i)
        for (int k = 0; k < 16; ++k) {
          const int at = place(which == 0 ? mine.a : mine.b, i, k, which == 0 ? ta : tb);
          if (at % 16 == 0) reads[count++] = {shared() + at, 16};
        }
  api->product(d, n / 2, &mine, int(sizeof mine), &multiply_add_wide_all<T, n, ta, tb>, reads,
               count, line);
}
}  // namespace host
template <int ta, int tb, int r, class T>
void multiply_add_wide(float (&d)[r], unsigned long long a, unsigned long long b, T, bool add,
                       TS_LINE) {
  host::product<T, 2 * r, ta, tb>({d, a, b, shared(), add, {}}, d, line);
}
template <int tb, int r, class T>
void multiply_add_wide(float (&d)[r], const unsigned (&a)[4], unsigned long long b, T, bool add,
                       TS_LINE) {
  host::product<T, 2 * r, host::kInRegisters, tb>(
      {d, 0, b, shared(), add, {a[0], a[1], a[2], a[3]}}, d, line);
}

}  // namespace ts
