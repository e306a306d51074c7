// Arithmetic modulo the primes of a safe-prime chain p = 2q+1, q = 2r+1, in Montgomery form, and
// the tables of one draw of the model. Everything that needs the number theory is in this file.
//
// p, q and r are ≡ 7 (mod 8), so −1 is a non-residue and the quadratic residues (the subgroup of
// odd order q in F_p) play the positive numbers: exp maps a value's q-component onto them by
// x ↦ ω^x, √x = x^((p+1)/4) is multiplicative, and the sign is the Legendre symbol. The primes up
// to 43 (of 31 bits: 37) are residues modulo p, those up to 7 modulo q, so that the small constants
// of programs are positive and have roots. Of 61 bits the seed of a draw makes its own chain, one
// of some 2^29: a difference that vanishes modulo known primes, or whose signs are wrong there, can
// be written down. Those of 31 bits are known, and prove nothing.
#pragma once
#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/counter_rng.h"
#include "base/rng.h"
#include "eval/field_array.h"
#include "ir/op.h"

namespace tessera {

// Found by sieving and proved by sympy.isprime (Baillie–PSW, exact below 2^64).
inline constexpr uint64_t kPrimesSmall[] = {1439u, 2879u, 4127u, 6047u};
inline constexpr uint64_t kPrimes31[] = {1372566719u, 1466962559u, 1484857919u, 1516263839u,
                                         1718196479u, 1720175519u, 1912844639u, 1983004799u,
                                         1987329119u, 1995322559u};
// p of a chain with 2^59 < p < 2^61; all chains are as likely.
uint64_t random_prime61(uint64_t seed);

template <class W> struct DoubleWord;
template <> struct DoubleWord<uint32_t> { using Type = uint64_t; };
template <> struct DoubleWord<uint64_t> { using Type = uint128; };

// Arithmetic modulo an odd prime below 2^31 (W = u32) or 2^61 (W = u64); operands and results are
// canonical Montgomery residues x·R mod p with R = 2^32 or 2^64.
template <class W> struct Modulus {
  using Word = W;
  using Double = typename DoubleWord<W>::Type;
  static constexpr int kBits = int(sizeof(W) * 8);

  W p = 3;
  W inverse = 0;                  // p^-1 mod R
  W one = 0;                      // R mod p
  W square = 0;                   // R^2 mod p
  uint64_t residue_exponent = 0;  // (p-1)/2
  uint64_t root_exponent = 0;     // (p+1)/4

  Modulus() = default;
  explicit Modulus(uint64_t prime);

  // t·R^-1 mod p for t < p·R.
  [[gnu::always_inline]] W reduce(Double t) const {
    W high = W(t >> kBits);
    W m = W(W(t) * inverse);
    W sub = W((Double(m) * p) >> kBits);
    return high >= sub ? W(high - sub) : W(high - sub + p);
  }
  [[gnu::always_inline]] W mul(W a, W b) const { return reduce(Double(a) * b); }
  [[gnu::always_inline]] W add(W a, W b) const {
    W s = W(a + b);
    return s >= p ? W(s - p) : s;
  }
  [[gnu::always_inline]] W sub(W a, W b) const { return a >= b ? W(a - b) : W(a - b + p); }
  [[gnu::always_inline]] W neg(W a) const { return a == 0 ? W(0) : W(p - a); }
  W from_word(uint64_t x) const { return mul(W(x % p), square); }
  W from_int(int64_t x) const {
    return x < 0 ? neg(from_word(0 - uint64_t(x))) : from_word(uint64_t(x));
  }
  W to_word(W x) const { return reduce(x); }
  W pow(W x, uint64_t e) const;
  W inv(W x) const { return pow(x, p - 2); }  // 0 for 0
  // −1, 0 or 1.
  int legendre(W x) const { return x == 0 ? 0 : pow(x, residue_exponent) == one ? 1 : -1; }
  W root(W x) const { return pow(x, root_exponent); }
};

extern template struct Modulus<uint32_t>;
extern template struct Modulus<uint64_t>;

// Powers of a generator of the order-q subgroup by windows of 8 bits: ω^e is a product of
// sizeof(W) table entries.
template <class W> struct PowerTable {
  std::vector<W> entries;  // [window][256]
  W base = 0;
  PowerTable() = default;
  PowerTable(const Modulus<W>& modulus, W base);
  [[gnu::always_inline]] W power(const Modulus<W>& m, W e) const {
    W result = entries[e & 255];
    for (unsigned w = 1; w < sizeof(W); ++w)
      result = m.mul(result, entries[(w << 8) + ((e >> (8 * w)) & 255)]);
    return result;
  }
};

// What operators are taken to be undefined at instead of what they are: at these words of their
// operands. Programs of which one only divides by what the other divides by, in the same places,
// are undefined alike whatever that is.
struct DeemedPoles {
  // Divisors; operands of roots and logarithms; of powers; of users' operators, each its own.
  enum Class : uint64_t { Zero, Sign, Power, Custom };
  uint64_t key = 0;
  int halvings = 64;                     // one word of 2^halvings is a pole
  std::array<uint64_t, 3> only{};        // keys of words that are
  std::vector<uint64_t>* met = nullptr;  // is given all keys, by evaluations of one thread
  static uint64_t key_of(Class kind, uint64_t word) { return derive_key(word, kind + 1); }
  bool holds(Class kind, uint64_t word) const {
    const uint64_t w = key_of(kind, word);
    if (met != nullptr) met->push_back(w);
    return w == only[0] || w == only[1] || w == only[2] ||
           (halvings < 64 && derive_key(key, w) >> (64 - halvings) == 0);
  }
};

// The functions a field knows by name only.
enum class Keyed : uint8_t {
  Log,
  Trig,
  Erf,
  DeepExp,
  Pow,
  Set,
  Atom,
  CastInt,
  Floor,
  Round,
  Angle,
  Custom,
  Sign
};

template <class W> struct ChainTables {
  std::array<Modulus<W>, 3> modulus;
  std::array<PowerTable<W>, 2> exp;  // component c of exp from component c+1
  uint64_t key = 0;

  ChainTables(uint64_t prime, uint64_t seed);
  uint64_t function_key(Keyed function, int component, uint64_t label = 0) const {
    return derive_key(derive_key(key, uint64_t(function) * 4 + uint64_t(component)), label);
  }
  // A nearly uniform element of component c from a hash.
  W element(int component, uint64_t hash) const {
    return W((uint128(hash) * modulus[size_t(component)].p) >> 64);
  }
  W keyed(Keyed function, int component, W x, uint64_t label = 0) const {
    return element(component, keyed_hash(function_key(function, component, label), x));
  }
  W keyed_set(int component, uint64_t members) const {
    return element(component, keyed_hash(function_key(Keyed::Set, component), members));
  }
  // The image of a finite rational; nullopt when the prime divides its denominator.
  std::optional<W> constant(int component, const Rational& value) const;
};

struct FieldTables {
  std::variant<ChainTables<uint32_t>, ChainTables<uint64_t>> chain;
  template <class W> const ChainTables<W>& get() const { return std::get<ChainTables<W>>(chain); }
};

}  // namespace tessera
