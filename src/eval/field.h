// Arithmetic modulo the primes of a safe-prime chain p = 2q+1, q = 2r+1, in Montgomery form, and
// the tables of one draw of the model. Everything that needs the number theory is in this file.
//
// p, q and r are ≡ 7 (mod 8), so −1 is a non-residue and the quadratic residues (the subgroup of
// odd order q in F_p) play the positive numbers: exp maps a value's q-component onto them by
// x ↦ ω^x, √x = x^((p+1)/4) is multiplicative, and the sign is the Legendre symbol. All primes up
// to 43 (of 31 bits: 37, 7 and 3) are residues modulo p, 41 modulo q, 43 modulo r, so that the
// small constants of programs are positive and have roots at every level. The seed of a draw
// chooses the chain: a difference that vanishes modulo a known prime can be written down.
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

inline constexpr uint64_t kPrime31 = 1718196479u;  // → 859098239 → 429549119
inline constexpr uint64_t kPrime61 =
    1949338859156969279u;  // → 974669429578484639 → 487334714789242319
// Found by sieving and proved by sympy.isprime (Baillie–PSW, exact below 2^64).
inline constexpr uint64_t kPrimesSmall[] = {1439u, 2879u, 4127u, 6047u};
inline constexpr uint64_t kPrimes31[] = {1372566719u, 1466962559u, 1484857919u, 1516263839u,
                                         1718196479u, 1720175519u, 1912844639u, 1983004799u,
                                         1987329119u, 1995322559u};
inline constexpr uint64_t kPrimes61[] = {
    1415368522245918239u, 1435454291291660639u, 1452326387877324959u, 1477754805897770399u,
    1504346283985053599u, 1523476288667642399u, 1526353532542718879u, 1533759486995255519u,
    1565607154919676959u, 1569310200950681279u, 1584567967866723839u, 1634827800241184639u,
    1639082788741026719u, 1652073154690358399u, 1667223256790931839u, 1698221387559365759u,
    1711257993278302559u, 1741328879437055999u, 1759797842493731039u, 1797436078314676799u,
    1802922270341381279u, 1840086684072917279u, 1846995486340673759u, 1919675288341880159u,
    1932687303433286399u, 1936456613393571359u, 1949338859156969279u, 1986741925705205759u,
    2024708993404537439u, 2049968513028945599u, 2059525605488900639u, 2084656630647951359u,
    2089582044796165919u, 2105275201639690079u, 2110786224697550399u, 2128999469648600639u,
    2135674877811383999u, 2145579179427072479u, 2147439166043851679u, 2164614258140443199u,
    2164963239941261759u, 2221014621562376639u, 2227728857653659359u, 2277461801944318079u,
    2279824272690444479u, 2295475485352838879u, 2298275918392403039u, 2300352466917785279u};

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
  enum Class : uint64_t { Zero, Sign };  // divisors; operands of roots and logarithms
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
