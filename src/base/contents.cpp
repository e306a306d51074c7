#include "base/contents.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tessera {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr size_t kWords = kBlockBytes / sizeof(uint64_t);
constexpr uint64_t kPrime = (uint64_t(1) << 61) - 1;

struct Keys {
  alignas(64) std::array<std::array<uint64_t, kWords>, 2> words;
  std::array<uint64_t, 2> points;
  Keys() {
    Rng rng(seed_from_system());
    for (auto& row : words)
      for (uint64_t& w : row) w = rng();
    for (uint64_t& p : points) p = rng() % kPrime;
  }
};

Fingerprint nh(const std::byte* block, const Keys& keys) {
  Fingerprint sums{0, 0};
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, block + i * sizeof word, sizeof word);
    for (size_t k = 0; k < 2; ++k) {
      const uint64_t key = keys.words[k][i];
      const auto low = uint32_t(word) + uint32_t(key);
      const auto high = uint32_t(word >> 32) + uint32_t(key >> 32);
      sums[k] += uint64_t(low) * high;
    }
  }
  return sums;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) Fingerprint nh_avx2(const std::byte* block, const Keys& keys) {
  __m256i sums[2][2] = {};
  for (size_t i = 0; i < kWords; i += 8)
    for (size_t half = 0; half < 2; ++half) {
      const size_t at = i + 4 * half;
      const __m256i word =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + at * sizeof(uint64_t)));
      for (size_t k = 0; k < 2; ++k) {
        const __m256i* key = reinterpret_cast<const __m256i*>(&keys.words[k][at]);
        const __m256i sum = _mm256_add_epi32(word, _mm256_load_si256(key));
        const __m256i product = _mm256_mul_epu32(sum, _mm256_srli_epi64(sum, 32));
        sums[k][half] = _mm256_add_epi64(sums[k][half], product);
      }
    }
  Fingerprint all{0, 0};
  for (size_t k = 0; k < 2; ++k) {
    alignas(32) std::array<uint64_t, 4> lanes;
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()),
                       _mm256_add_epi64(sums[k][0], sums[k][1]));
    for (uint64_t lane : lanes) all[k] += lane;
  }
  return all;
}
#endif

uint64_t times_plus(uint64_t a, uint64_t b, uint64_t c) {
  const auto wide = static_cast<uint128>(a) * b + c;
  const uint64_t sum = uint64_t(wide & kPrime) + uint64_t(wide >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

}  // namespace

Fingerprint fingerprint(std::span<const std::byte> bytes) {
  CHECK(bytes.size() <= size_t(1) << 20) << bytes.size();
  static const Keys keys;
  auto hash = nh;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) hash = nh_avx2;
#endif
  Fingerprint joined{1, 1};
  while (!bytes.empty()) {
    const std::byte* block = bytes.data();
    const size_t size = std::min(kBlockBytes, bytes.size());
    std::array<std::byte, kBlockBytes> padded;  // with zeros: how long ranges are is known
    if (size < kBlockBytes) {
      std::memcpy(padded.data(), block, size);
      std::memset(padded.data() + size, 0, kBlockBytes - size);
      block = padded.data();
    }
    const Fingerprint part = hash(block, keys);
    for (size_t k = 0; k < 2; ++k) {
      joined[k] = times_plus(joined[k], keys.points[k], part[k] >> 32);
      joined[k] = times_plus(joined[k], keys.points[k], part[k] & 0xffffffff);
    }
    bytes = bytes.subspan(size);
  }
  return joined;
}

}  // namespace tessera
