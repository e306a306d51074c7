// Kernels for AVX2 and FMA; compiled with those flags (CMakeLists.txt), called only where they run.
#include "eval/kernels_impl.h"

#ifdef __AVX2__
#include <immintrin.h>

namespace tessera {
namespace {

struct Avx2 {};

// As the portable kernel, four 64-bit lanes at a time: accumulators in [−2p², 2p²).
struct Micro31 : Words31<Avx2, 4, 8> {
  static void step(const uint32_t* a, const uint32_t* b, __m256i (&acc)[kMR][2]) {
    const __m256i b0 = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
    const __m256i b1 =
        _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 4)));
#pragma GCC unroll 4
    for (int i = 0; i < kMR; ++i) {
      const __m256i x = _mm256_set1_epi32(int(a[i]));
      acc[i][0] = _mm256_add_epi64(acc[i][0], _mm256_mul_epu32(x, b0));
      acc[i][1] = _mm256_add_epi64(acc[i][1], _mm256_mul_epu32(x, b1));
    }
  }
  static void tile(const Context& m, int64_t kc, const uint32_t* a, const uint32_t* b,
                   uint32_t* out) {
    const int64_t twice = int64_t(2) * m.p * m.p;
    const __m256i limit = _mm256_set1_epi64x(twice), zero = _mm256_setzero_si256();
    __m256i acc[kMR][2];
    for (auto& row : acc) row[0] = row[1] = _mm256_set1_epi64x(-twice);
    auto fold = [&] {
#pragma GCC unroll 4
      for (int i = 0; i < kMR; ++i) {
        for (int v = 0; v < 2; ++v) {
          __m256i negative = _mm256_cmpgt_epi64(zero, acc[i][v]);
          acc[i][v] = _mm256_sub_epi64(acc[i][v], _mm256_andnot_si256(negative, limit));
        }
      }
    };
    int64_t k = 0;
    for (; k + 2 <= kc; k += 2) {
      step(a + k * kMR, b + k * kNR, acc);
      step(a + (k + 1) * kMR, b + (k + 1) * kNR, acc);
      fold();
    }
    if (k < kc) step(a + k * kMR, b + k * kNR, acc);
    fold();
    alignas(32) int64_t lanes[kNR];
    for (int i = 0; i < kMR; ++i) {
      for (int v = 0; v < 2; ++v)
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + 4 * v), acc[i][v]);
      for (int j = 0; j < kNR; ++j) out[i * kNR + j] = m.reduce(uint64_t(lanes[j] + twice));
    }
  }
};

}  // namespace

const Kernels* avx2_kernels() { return kernel_table<Avx2, Micro31, WideMicro<Avx2>, 8, 6>("avx2"); }

}  // namespace tessera
#else
namespace tessera {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace tessera
#endif
