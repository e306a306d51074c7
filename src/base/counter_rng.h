// Counter-based random numbers: the i-th number of a stream is a pure function of (key, i), so
// results do not depend on the number of threads or the order in which elements are drawn.
#pragma once
#include <cstdint>

#include "base/rng.h"

namespace tessera {

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

// Derives an independent key from a key and a label; chain it for (seed, tensor, component …).
constexpr uint64_t derive_key(uint64_t key, uint64_t label) {
  return mix64(mix64(key + kGoldenGamma) ^ (label * 0xd1342543de82ef95u + 0x2545f4914f6cdd1du));
}

// A pseudo-random function of 64-bit words, keyed: two mixing rounds with the key in between.
constexpr uint64_t keyed_hash(uint64_t key, uint64_t x) {
  return mix64(mix64(x + key) ^ (key * kGoldenGamma + 0x632be59bd9b4e019u));
}

// A stream of 64-bit words addressed by index.
struct CounterRng {
  uint64_t key = 0;
  constexpr uint64_t at(uint64_t index) const { return keyed_hash(key, index * kGoldenGamma); }
  // Uniform in [0, 1).
  constexpr double unit(uint64_t index) const { return double(at(index) >> 11) * 0x1p-53; }
};

// Uniform integers in [0, bound) without bias: a 128-bit product with rejection (Lemire 2019);
// the rare rejected word is replaced by the next one of the element's own substream.
class UniformBelow {
 public:
  explicit constexpr UniformBelow(uint64_t bound)
      : bound_(bound), threshold_((0 - bound) % bound) {}
  constexpr uint64_t at(CounterRng rng, uint64_t index) const {
    uint64_t word = rng.at(index);
    for (uint64_t attempt = 1;; ++attempt) {
      uint128 product = static_cast<uint128>(word) * bound_;
      if (uint64_t(product) >= threshold_) return uint64_t(product >> 64);
      word = keyed_hash(rng.at(index), attempt);
    }
  }

 private:
  uint64_t bound_, threshold_;
};

}  // namespace tessera
