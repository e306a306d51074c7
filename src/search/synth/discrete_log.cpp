#include "search/synth/discrete_log.h"

#include <array>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace tessera::synth {
namespace {

constexpr uint32_t kBaby = 1u << 17, kSlots = 1u << 18;
constexpr uint32_t kHalf = 46'341;  // √2^31: every residue is ±a/b with a, b below it
constexpr uint32_t kBase = 512;     // primes of the factor base are below

class Logarithms {
 public:
  explicit Logarithms(const ChainTables<uint32_t>& chain)
      : base(chain.exp[0].base), m_(chain.modulus[0]), q_(chain.modulus[1].p), slots_(kSlots),
        least_prime_(kHalf) {
    uint32_t power = m_.one;
    for (uint32_t e = 0; e < kBaby; ++e) {
      uint32_t at = slot_of(power);
      while (slots_[at].key != 0) at = (at + 1) & (kSlots - 1);
      slots_[at] = {power, e};
      power = m_.mul(power, base);
    }
    giant_ = m_.inv(power);
    for (uint32_t r = 2; r < kBase; ++r) {
      if (least_prime_[r] != 0) continue;
      for (uint32_t n = r; n < kHalf; n += r)
        if (least_prime_[n] == 0) least_prime_[n] = uint16_t(r);
      const uint32_t prime = m_.from_word(r);
      log_of_square_[r] = shanks(m_.mul(prime, prime));
    }
  }

  // Of a square. Index calculus: of x·ω^k, k = 0, 1, …, written as a fraction of two small numbers,
  // until both are products of small primes, whose logarithms are known: some five tries.
  uint32_t operator()(uint32_t x) const {
    constexpr uint32_t kTries = 1000;
    uint32_t y = x;
    for (uint32_t k = 0; k < kTries; ++k, y = m_.mul(y, base)) {
      int64_t r0 = m_.p, r1 = m_.to_word(y), t0 = 0, t1 = 1;
      while (r1 >= int64_t(kHalf)) {
        const int64_t quotient = r0 / r1, r2 = r0 - quotient * r1, t2 = t0 - quotient * t1;
        r0 = r1, r1 = r2, t0 = t1, t1 = t2;
      }
      const auto over = of_smooth(uint32_t(r1)), under = of_smooth(uint32_t(std::abs(t1)));
      if (!over || !under) continue;
      // Twice the logarithm; signs leave squares.
      const uint64_t twice = *over + q_ - *under;
      const uint64_t half = (twice % q_) * ((uint64_t(q_) + 1) / 2) % q_;
      return uint32_t((half + q_ - k) % q_);
    }
    return shanks(x);
  }

  const uint32_t base;

 private:
  struct Slot {
    uint32_t key = 0, exponent = 0;  // 0 is no power
  };
  static uint32_t slot_of(uint32_t key) { return uint32_t(mix64(key)) & (kSlots - 1); }

  // Baby steps, which are tabulated, and giant ones.
  uint32_t shanks(uint32_t x) const {
    uint32_t y = x;
    for (uint64_t e = 0; e < q_; e += kBaby) {
      for (uint32_t at = slot_of(y); slots_[at].key != 0; at = (at + 1) & (kSlots - 1))
        if (slots_[at].key == y) return uint32_t((e + slots_[at].exponent) % q_);
      y = m_.mul(y, giant_);
    }
    unreachable("a square that is no power of the generator");
  }
  // The logarithm of n², of products of primes of the base.
  std::optional<uint64_t> of_smooth(uint32_t n) const {
    if (n == 0 || n >= kHalf) return std::nullopt;
    uint64_t sum = 0;
    while (n > 1) {
      const uint32_t r = least_prime_[n];
      if (r == 0) return std::nullopt;
      sum += log_of_square_[r];
      n /= r;
    }
    return sum % q_;
  }

  const Modulus<uint32_t> m_;
  const uint32_t q_;
  std::vector<Slot> slots_;
  uint32_t giant_ = 0;                           // ω^-kBaby
  std::vector<uint16_t> least_prime_;            // factor, 0 where that is not of the base
  std::array<uint32_t, kBase> log_of_square_{};  // by prime
};

}  // namespace

std::optional<uint32_t> discrete_log(const ChainTables<uint32_t>& chain, uint32_t x) {
  static const Logarithms logarithms(chain);
  CHECK(logarithms.base == chain.exp[0].base) << "another chain";
  const Modulus<uint32_t>& m = chain.modulus[0];
  if (x == 0 || m.pow(x, m.residue_exponent) != m.one) return std::nullopt;
  return logarithms(x);
}

}  // namespace tessera::synth
