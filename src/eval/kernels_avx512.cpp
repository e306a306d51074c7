// Kernels for AVX-512 with the 52-bit multiply-add (IFMA); compiled with those flags
// (CMakeLists.txt), called only where they run.
#include "eval/kernels_impl.h"

#if defined(__AVX512F__) && defined(__AVX512IFMA__)
#include <immintrin.h>

namespace tessera {
namespace {

struct Avx512 {};

// Terms are below p² < 2^62. Two of them on an accumulator below 2p² stay below 4p² < 2^64; then
// 2p² is subtracted where it fits, which is an unsigned minimum.
struct Micro31 : Words31<Avx512, 8, 16> {
  [[gnu::always_inline]] static inline void step(const uint32_t* a, const uint32_t* b,
                                                 __m512i (&acc)[kMR][2]) {
    const __m512i b0 =
        _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
    const __m512i b1 =
        _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 8)));
#pragma GCC unroll 8
    for (int i = 0; i < kMR; ++i) {
      const __m512i x = _mm512_set1_epi32(int(a[i]));
      acc[i][0] = _mm512_add_epi64(acc[i][0], _mm512_mul_epu32(x, b0));
      acc[i][1] = _mm512_add_epi64(acc[i][1], _mm512_mul_epu32(x, b1));
    }
  }
  static void tile(const Context& m, int64_t kc, const uint32_t* a, const uint32_t* b,
                   uint32_t* out) {
    const __m512i limit = _mm512_set1_epi64(int64_t(uint64_t(2) * m.p * m.p));
    __m512i acc[kMR][2];
#pragma GCC unroll 8
    for (int i = 0; i < kMR; ++i) acc[i][0] = acc[i][1] = _mm512_setzero_si512();
    int64_t k = 0;
    for (; k + 2 <= kc; k += 2) {
      step(a + k * kMR, b + k * kNR, acc);
      step(a + (k + 1) * kMR, b + (k + 1) * kNR, acc);
#pragma GCC unroll 8
      for (int i = 0; i < kMR; ++i) {
        acc[i][0] = _mm512_min_epu64(acc[i][0], _mm512_sub_epi64(acc[i][0], limit));
        acc[i][1] = _mm512_min_epu64(acc[i][1], _mm512_sub_epi64(acc[i][1], limit));
      }
    }
    if (k < kc) step(a + k * kMR, b + k * kNR, acc);
    const __m512i p = _mm512_set1_epi64(int64_t(m.p)),
                  inverse = _mm512_set1_epi64(int64_t(m.inverse));
#pragma GCC unroll 8
    for (int i = 0; i < kMR; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i t = _mm512_min_epu64(acc[i][v], _mm512_sub_epi64(acc[i][v], limit));
        // Montgomery: (t − (t·p^-1 mod 2^32)·p) / 2^32, brought back into [0, p)
        __m512i q = _mm512_mul_epu32(_mm512_mul_epu32(t, inverse), p);
        __m512i d = _mm512_sub_epi64(_mm512_srli_epi64(t, 32), _mm512_srli_epi64(q, 32));
        d = _mm512_min_epu64(d, _mm512_add_epi64(d, p));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * kNR + 8 * v),
                            _mm512_cvtepi64_epi32(d));
      }
    }
  }
};

// 61-bit operands as two limbs of 52 and 9 bits; three accumulators of weight 1, 2^52 and 2^104
// take at most three words below 2^52 per term, so 256 terms stay below 2^62.
struct Micro61 {
  using Context = Modulus<uint64_t>;
  using Element = uint64_t;
  using Packed = uint64_t;
  static constexpr int64_t kMR = 4, kNR = 16, kLimbs = 2;
  static_assert(kGemmKC <= 1024);
  static void pack(uint64_t x, uint64_t* to, int64_t stride) {
    to[0] = x & ((uint64_t(1) << 52) - 1);
    to[stride] = x >> 52;
  }
  static uint64_t combine(const Context& m, uint64_t c, uint64_t t) { return m.add(c, t); }
  static void tile(const Context& modulus, int64_t kc, const uint64_t* a, const uint64_t* b,
                   uint64_t* out) {
    __m512i low[kMR][2], middle[kMR][2], high[kMR][2];
#pragma GCC unroll 4
    for (int i = 0; i < kMR; ++i)
      for (int v = 0; v < 2; ++v) low[i][v] = middle[i][v] = high[i][v] = _mm512_setzero_si512();
    for (int64_t k = 0; k < kc; ++k) {
      const uint64_t* row = b + k * kNR * kLimbs;
      const __m512i b0[2] = {_mm512_loadu_si512(row), _mm512_loadu_si512(row + 8)};
      const __m512i b1[2] = {_mm512_loadu_si512(row + 16), _mm512_loadu_si512(row + 24)};
#pragma GCC unroll 4
      for (int i = 0; i < kMR; ++i) {
        const __m512i a0 = _mm512_set1_epi64(int64_t(a[k * kMR * kLimbs + i]));
        const __m512i a1 = _mm512_set1_epi64(int64_t(a[k * kMR * kLimbs + kMR + i]));
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          low[i][v] = _mm512_madd52lo_epu64(low[i][v], a0, b0[v]);
          middle[i][v] = _mm512_madd52hi_epu64(middle[i][v], a0, b0[v]);
          high[i][v] = _mm512_madd52hi_epu64(high[i][v], a0, b1[v]);
          middle[i][v] = _mm512_madd52lo_epu64(middle[i][v], a0, b1[v]);
          high[i][v] = _mm512_madd52hi_epu64(high[i][v], a1, b0[v]);
          middle[i][v] = _mm512_madd52lo_epu64(middle[i][v], a1, b0[v]);
          high[i][v] = _mm512_madd52lo_epu64(high[i][v], a1, b1[v]);
        }
      }
    }
    const Context m = modulus;
    const uint64_t two52 = (uint64_t(1) << 52) % m.p;
    const uint64_t two104 = m.mul(m.mul(two52, m.square), two52);  // plain 2^104 mod p
    alignas(64) uint64_t l[8], s[8], h[8];
    for (int i = 0; i < kMR; ++i) {
      for (int v = 0; v < 2; ++v) {
        _mm512_store_si512(l, low[i][v]);
        _mm512_store_si512(s, middle[i][v]);
        _mm512_store_si512(h, high[i][v]);
        for (int j = 0; j < 8; ++j) {
          // each product is below 2^63·p < p·2^64, their sum below 2^125 as well after one fold
          uint64_t x = m.reduce(l[j]);
          x = m.add(x, m.mul(s[j], two52));
          out[i * kNR + 8 * v + j] = m.add(x, m.mul(h[j], two104));
        }
      }
    }
  }
};

}  // namespace

const Kernels* avx512_kernels() { return kernel_table<Avx512, Micro31, Micro61, 16, 8>("avx512"); }

}  // namespace tessera
#else
namespace tessera {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace tessera
#endif
