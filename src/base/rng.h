// Random numbers from a recorded 64-bit seed, the same on every machine and for any thread count.
// SplitMix64 (Steele, Lea, Flood, OOPSLA'14); streams are split by hashing, not by sharing state.
#pragma once
#include <cstdint>

namespace tessera {

// A bijection of 64-bit words that scatters its argument; also good for hashing.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__extension__ using uint128 = unsigned __int128;

class Rng {
 public:
  using result_type = uint64_t;  // usable with <random> and std::shuffle
  explicit constexpr Rng(uint64_t seed) : state_(seed) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return UINT64_MAX; }

  constexpr uint64_t operator()() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }
  // Uniform in [0, n), n > 0; the bias is below n / 2^64.
  constexpr uint64_t below(uint64_t n) {
    return uint64_t((static_cast<uint128>((*this)()) * n) >> 64);
  }
  // Uniform in [low, high].
  constexpr int64_t between(int64_t low, int64_t high) {
    return low + int64_t(below(uint64_t(high - low) + 1));
  }
  // Uniform in [0, 1).
  constexpr double unit() { return double((*this)() >> 11) * 0x1p-53; }
  constexpr bool chance(double p) { return unit() < p; }
  // An independent stream: `rng.split(i)` for different i never depend on one another's use.
  constexpr Rng split(uint64_t i) const {
    return Rng(mix64(state_ ^ mix64(i + 0x632be59bd9b4e019ull)));
  }

 private:
  uint64_t state_;
};

// A seed that nobody can foresee.
uint64_t seed_from_system();

}  // namespace tessera
