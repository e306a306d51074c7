#include "search/synth/discrete_log.h"

#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace tessera::synth {
namespace {

constexpr uint32_t kBaby = 1u << 20, kSlots = 1u << 21;

struct Steps {
  uint32_t base;
  uint32_t giant;  // ω^-kBaby
  struct Slot {
    uint32_t key = 0, exponent = 0;  // 0 is no power
  };
  std::vector<Slot> slots;

  static uint32_t slot_of(uint32_t key) { return uint32_t(mix64(key)) & (kSlots - 1); }

  explicit Steps(const ChainTables<uint32_t>& chain) : base(chain.exp[0].base), slots(kSlots) {
    const Modulus<uint32_t>& m = chain.modulus[0];
    uint32_t power = m.one;
    for (uint32_t e = 0; e < kBaby; ++e) {
      uint32_t at = slot_of(power);
      while (slots[at].key != 0) at = (at + 1) & (kSlots - 1);
      slots[at] = {power, e};
      power = m.mul(power, base);
    }
    giant = m.inv(power);
  }
};

}  // namespace

std::optional<uint32_t> discrete_log(const ChainTables<uint32_t>& chain, uint32_t x) {
  static const Steps steps(chain);
  CHECK(steps.base == chain.exp[0].base) << "another chain";
  const Modulus<uint32_t>& m = chain.modulus[0];
  if (x == 0 || m.pow(x, m.residue_exponent) != m.one) return std::nullopt;
  const uint32_t q = chain.modulus[1].p;
  uint32_t y = x;
  for (uint64_t e = 0; e < q; e += kBaby) {
    for (uint32_t at = Steps::slot_of(y); steps.slots[at].key != 0; at = (at + 1) & (kSlots - 1)) {
      if (steps.slots[at].key == y) return uint32_t((e + steps.slots[at].exponent) % q);
    }
    y = m.mul(y, steps.giant);
  }
  return std::nullopt;
}

}  // namespace tessera::synth
