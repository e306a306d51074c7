// Runs of elements of finite-field tensors with the arithmetic operators are made of: several
// components at once, flags of undefined elements, and the argument sets of maxima.
//
// Rules (docs of eval/field.h say why they are sound):
//   signs       the Legendre symbol of component p, for all components, so that exp(c ? x : y)
//               and c ? exp(x) : exp(y) agree; or unknown odd functions (Signs)
//   √x          undefined unless x is a residue in every component held
//   1/0         undefined
//   maxima      of one element the element, of two by sign, of more a keyed hash of the set of
//               arguments, which nested maxima carry along (order and grouping do not matter)
//   −∞          is a flag: max ignores it and exp maps it to 0
#pragma once
#include <array>
#include <bit>

#include "eval/eval.h"
#include "eval/field.h"
#include "eval/kernels.h"
#include "eval/vectors.h"

namespace tessera {

// What all vectors of an evaluation share.
template <class W> struct FieldShared {
  const ChainTables<W>* chain;
  const FieldLoops<W>* loops;
  uint64_t atom_key;   // hashes an element as a member of a set
  bool unknown_signs;  // Signs::Unknown
  bool small;          // FieldSize::Small: logarithms have their domain
  const DeemedPoles* deemed = nullptr;
  FieldCharacters* characters = nullptr;
  void ask(uint64_t word, int value, bool is_root) const {
    if (characters != nullptr) characters->push_back({word, value, is_root});
  }

  // The sign of an element in component k: odd, and a function of component p for all components.
  W unknown_sign(int k, W x) const {
    const W opposite = chain->modulus[0].neg(x);
    if (x == 0) return 0;
    const W s = chain->keyed(Keyed::Sign, k, std::min(x, opposite));
    return x < opposite ? s : chain->modulus[size_t(k)].neg(s);
  }
  // (x + y + s·(x − y)) / 2, the greater of both for s = 1.
  W chosen(int k, W x, W y, W s) const {
    const Modulus<W>& m = chain->modulus[size_t(k)];
    const W sum = m.add(m.add(x, y), m.mul(s, m.sub(x, y)));
    return m.mul(sum, halves[size_t(k)]);
  }
  std::array<W, 3> halves{};

  uint64_t atom(W x, uint64_t minimum) const {
    return keyed_hash(atom_key, minimum ? chain->modulus[0].neg(x) : x) & ~uint64_t(1);
  }
  // The value of a set with more than two members.
  W of_set(int k, uint64_t members, uint64_t minimum) const {
    const W x = chain->keyed_set(k, members);
    return minimum ? chain->modulus[size_t(k)].neg(x) : x;
  }
};

template <class W> struct FieldVec {
  const FieldShared<W>* shared = nullptr;
  int n = 0;
  uint8_t components = 0;  // mask of the planes held
  bool flagged = false;    // whether `flag` holds anything
  bool has_set = false;    // whether `set` holds anything
  W c[3][kRun];
  uint8_t flag[kRun];
  uint64_t set[kRun];  // 0: a plain element; else the set of a maximum (bit 0 clear) or minimum

  FieldVec() = default;
  FieldVec(const FieldVec& a) { *this = a; }
  // Copies what is held, which is little of the storage.
  FieldVec& operator=(const FieldVec& a) {
    if (this == &a) return *this;
    shared = a.shared;
    n = a.n;
    components = a.components;
    flagged = a.flagged;
    has_set = a.has_set;
    for (int k = 0; k < 3; ++k)
      if (holds(k)) std::memcpy(c[k], a.c[k], size_t(n) * sizeof(W));
    if (flagged) std::memcpy(flag, a.flag, size_t(n));
    if (has_set) std::memcpy(set, a.set, size_t(n) * 8);
    return *this;
  }

  bool holds(int k) const { return (components >> k & 1) != 0; }
  const Modulus<W>& modulus(int k) const { return shared->chain->modulus[size_t(k)]; }
  const FieldLoops<W>& loops() const { return *shared->loops; }
  uint8_t flag_at(int i) const { return flagged ? flag[i] : uint8_t(0); }

  // An empty result like this vector.
  void like(const FieldVec& a, uint8_t planes) {
    shared = a.shared;
    n = a.n;
    components = planes;
  }
  void set_flags(const FieldVec& a) {
    flagged = a.flagged;
    if (flagged) std::memcpy(flag, a.flag, size_t(n));
  }
  void clear_flags() {
    if (!flagged) std::memset(flag, 0, size_t(n));
    flagged = true;
  }
  // Flags of an operation that does not know −∞: any flagged operand makes the result undefined.
  void poison(const FieldVec& a) {
    if (!a.flagged) return;
    clear_flags();
    for (int i = 0; i < n; ++i) flag[i] |= uint8_t(a.flag[i] != 0);
  }
  void undefine(int i) {
    clear_flags();
    flag[i] = FieldArray::Undefined;
  }
  FieldVec constant(const Rational& value) const {
    FieldVec r;
    r.like(*this, 7);
    for (int k = 0; k < 3; ++k) {
      const auto word = shared->chain->constant(k, value);
      CHECK(word) << "a constant's denominator is divisible by the prime";
      for (int i = 0; i < n; ++i) r.c[k][i] = *word;
    }
    return r;
  }
  void assign_integers(const IntVec& x) {
    n = x.n;
    components = 7;
    flagged = x.flagged;
    has_set = false;
    if (flagged) std::memcpy(flag, x.flag, size_t(n));
    for (int k = 0; k < 3; ++k)
      for (int i = 0; i < n; ++i) c[k][i] = modulus(k).from_int(x.v[i]);
  }
  void accumulate(const FieldVec& x) {
    components &= x.components;
    has_set = false;
    for (int k = 0; k < 3; ++k)
      if (holds(k)) loops().add(modulus(k), c[k], x.c[k], c[k], x.n);
    if (x.flagged) {
      clear_flags();
      for (int i = 0; i < x.n; ++i) flag[i] |= x.flag[i];
    }
  }
  FieldVec slice(int from, int count) const {
    FieldVec r;
    r.shared = shared;
    r.n = count;
    r.components = components;
    for (int k = 0; k < 3; ++k)
      if (holds(k)) std::memcpy(r.c[k], c[k] + from, size_t(count) * sizeof(W));
    r.flagged = flagged;
    r.has_set = has_set;
    if (flagged) std::memcpy(r.flag, flag + from, size_t(count));
    if (has_set) std::memcpy(r.set, set + from, size_t(count) * 8);
    return r;
  }
  // −1, 0, 1 per element.
  void signs(int8_t* s) const {
    CHECK(holds(0)) << "a sign needs component p";
    W powers[kRun];
    loops().pow(modulus(0), c[0], modulus(0).residue_exponent, powers, n);
    const W one = modulus(0).one;
    for (int i = 0; i < n; ++i) {
      s[i] = c[0][i] == 0 ? int8_t(0) : powers[i] == one ? int8_t(1) : int8_t(-1);
      shared->ask(c[0][i], s[i], false);
    }
  }
  // The hash of element i as a member of a maximum (or minimum): its own set if it has one. The
  // minimum of S is −max(−S).
  uint64_t members(int i, uint64_t minimum) const {
    return plain(i, minimum) ? shared->atom(c[0][i], minimum) : set[i] & ~uint64_t(1);
  }
  bool plain(int i, uint64_t minimum) const {
    return !has_set || set[i] == 0 || (set[i] & 1) != minimum;
  }
  // Whether element i is an extremum of two, one of them `member` (larger sets cannot tell).
  bool includes(int i, uint64_t minimum, uint64_t member) const {
    if (plain(i, minimum)) return false;
    const uint64_t mine = shared->atom(c[0][i], minimum);
    return mine == member || mine + member == (set[i] & ~uint64_t(1));
  }
};

template <class W, class F>
FieldVec<W> zip_field(const FieldVec<W>& a, const FieldVec<W>& b, F loop) {
  FieldVec<W> r;
  r.like(a, a.components & b.components);
  for (int k = 0; k < 3; ++k)
    if (r.holds(k)) loop(r.modulus(k), a.c[k], b.c[k], r.c[k]);
  return r;
}

// f(k, i) in component k of element i; where `a` is flagged it is undefined.
template <class W, class F> FieldVec<W> of_elements(const FieldVec<W>& a, F f) {
  FieldVec<W> r;
  r.like(a, a.components);
  r.poison(a);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    for (int i = 0; i < r.n; ++i) r.c[k][i] = f(k, i);
  }
  return r;
}

template <class W> FieldVec<W> operator-(const FieldVec<W>& a) {
  FieldVec<W> r = of_elements(a, [&](int k, int i) { return a.modulus(k).neg(a.c[k][i]); });
  if (a.has_set) {  // −max(S) = min(−S), with the same set hash
    r.has_set = true;
    for (int i = 0; i < a.n; ++i) r.set[i] = a.set[i] == 0 ? 0 : a.set[i] ^ 1;
  }
  return r;
}

// −∞ + x = −∞; a flag of Undefined wins.
template <class W>
void add_flags(FieldVec<W>& r, const FieldVec<W>& a, const FieldVec<W>& b, bool subtract) {
  if (!a.flagged && !b.flagged) return;
  r.clear_flags();
  for (int i = 0; i < r.n; ++i) {
    uint8_t x = a.flag_at(i), y = b.flag_at(i);
    if (subtract && y != 0) y = FieldArray::Undefined;  // x − (−∞) = +∞ is not modelled
    r.flag[i] = (x | y) & FieldArray::Undefined ? uint8_t(FieldArray::Undefined) : uint8_t(x | y);
  }
}

template <class W> FieldVec<W> operator+(const FieldVec<W>& a, const FieldVec<W>& b) {
  FieldVec<W> r = zip_field(a, b, [&](const Modulus<W>& m, const W* x, const W* y, W* out) {
    a.loops().add(m, x, y, out, a.n);
  });
  add_flags(r, a, b, false);
  return r;
}
template <class W> FieldVec<W> operator-(const FieldVec<W>& a, const FieldVec<W>& b) {
  FieldVec<W> r = zip_field(a, b, [&](const Modulus<W>& m, const W* x, const W* y, W* out) {
    a.loops().sub(m, x, y, out, a.n);
  });
  add_flags(r, a, b, true);
  return r;
}
// −∞ times a positive value stays −∞.
template <class W>
void scale_flags(FieldVec<W>& r, const FieldVec<W>& a, const FieldVec<W>& b, bool divide) {
  if (!a.flagged && !b.flagged) return;
  r.clear_flags();
  for (int i = 0; i < r.n; ++i) {
    const uint8_t x = a.flag_at(i), y = b.flag_at(i);
    if ((x | y) == 0) continue;
    auto positive = [](const FieldVec<W>& v, int at) {
      if (!v.holds(0) || v.flag_at(at) != 0) return false;
      const int sign = v.modulus(0).legendre(v.c[0][at]);
      v.shared->ask(v.c[0][at], sign, false);
      return sign == 1;
    };
    const bool infinite = (x == FieldArray::NegInf && positive(b, i)) ||
                          (!divide && y == FieldArray::NegInf && positive(a, i));
    r.flag[i] = infinite ? FieldArray::NegInf : FieldArray::Undefined;
  }
}
template <class W> FieldVec<W> operator*(const FieldVec<W>& a, const FieldVec<W>& b) {
  FieldVec<W> r = zip_field(a, b, [&](const Modulus<W>& m, const W* x, const W* y, W* out) {
    a.loops().mul(m, x, y, out, a.n);
  });
  scale_flags(r, a, b, false);
  return r;
}
// Inverses of n elements, 0 for 0, with a single inversion: prefix products forward, divided out
// backward, in interleaved chains that do not wait for one another.
template <class W> void invert_run(const Modulus<W>& m, const W* x, int n, W* out) {
  constexpr int kChains = 8;
  static_assert(kRun % kChains == 0);
  W y[kRun], prefix[kRun], product[kChains], inverse[kChains];
  for (W& p : product) p = m.one;
  for (int i = 0; i < n; i += kChains) {
    for (int j = 0; j < kChains; ++j) {
      y[i + j] = i + j < n && x[i + j] != 0 ? x[i + j] : m.one;
      prefix[i + j] = product[j];
      product[j] = m.mul(product[j], y[i + j]);
    }
  }
  W all = m.one;
  for (int j = 0; j < kChains; ++j) {
    inverse[j] = all;
    all = m.mul(all, product[j]);
  }
  all = m.inv(all);
  for (int j = kChains; j-- > 0;) {
    inverse[j] = m.mul(inverse[j], all);
    all = m.mul(all, product[j]);
  }
  for (int i = (n - 1) / kChains * kChains; i >= 0; i -= kChains) {
    for (int j = 0; j < kChains; ++j) {
      if (i + j < n) out[i + j] = x[i + j] == 0 ? W(0) : m.mul(inverse[j], prefix[i + j]);
      inverse[j] = m.mul(inverse[j], y[i + j]);
    }
  }
}

template <class W> FieldVec<W> operator/(const FieldVec<W>& a, const FieldVec<W>& b) {
  FieldVec<W> r;
  r.like(a, a.components & b.components);
  scale_flags(r, a, b, true);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    const Modulus<W>& m = r.modulus(k);
    W inverse[kRun];
    invert_run(m, b.c[k], r.n, inverse);
    for (int i = 0; i < r.n; ++i) {
      const DeemedPoles* const deemed = a.shared->deemed;
      if (deemed ? deemed->holds(DeemedPoles::Zero, b.c[k][i]) : b.c[k][i] == 0) r.undefine(i);
    }
    a.loops().mul(m, a.c[k], inverse, r.c[k], r.n);
  }
  return r;
}

template <class W> FieldVec<W> sqrt(const FieldVec<W>& a) {
  FieldVec<W> r;
  r.like(a, a.components);
  r.poison(a);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    const Modulus<W>& m = r.modulus(k);
    a.loops().pow(m, a.c[k], m.root_exponent, r.c[k], r.n);
    W square[kRun];
    a.loops().mul(m, r.c[k], r.c[k], square, r.n);
    for (int i = 0; i < r.n; ++i) {
      const DeemedPoles* const deemed = a.shared->deemed;
      const bool is_residue = square[i] == a.c[k][i];
      if (deemed ? deemed->holds(DeemedPoles::Sign, a.c[k][i]) : !is_residue) r.undefine(i);
      if (a.shared->characters != nullptr && a.c[k][i] != m.from_int(2))  // as gelu has
        a.shared->ask(a.c[k][i], a.c[k][i] == 0 ? 0 : is_residue ? 1 : -1, true);
    }
  }
  return r;
}

// Component k of exp comes from component k+1; the last from a keyed function onto the squares.
template <class W> FieldVec<W> exp(const FieldVec<W>& a) {
  FieldVec<W> r;
  r.like(a, uint8_t(((a.components >> 1) & 3) | (a.components & 4)));
  const ChainTables<W>& chain = *a.shared->chain;
  for (int k = 0; k < 2; ++k) {
    if (!r.holds(k)) continue;
    const Modulus<W>&to = r.modulus(k), &from = r.modulus(k + 1);
    for (int i = 0; i < r.n; ++i)
      r.c[k][i] = chain.exp[size_t(k)].power(to, from.to_word(a.c[k + 1][i]));
  }
  if (r.holds(2)) {
    for (int i = 0; i < r.n; ++i) {
      const W root = chain.keyed(Keyed::DeepExp, 2, a.c[2][i]);
      r.c[2][i] = a.c[2][i] == 0 ? r.modulus(2).one : r.modulus(2).mul(root, root);
    }
  }
  if (a.flagged) {
    r.clear_flags();
    for (int i = 0; i < r.n; ++i) {
      if (a.flag[i] == FieldArray::NegInf)
        for (int k = 0; k < 3; ++k) r.c[k][i] = 0;
      else
        r.flag[i] = a.flag[i];
    }
  }
  return r;
}

// tanh x = 1 − 2 / (e^2x + 1)
template <class W> FieldVec<W> tanh(const FieldVec<W>& a) {
  const FieldVec<W> one = a.constant(1);
  const FieldVec<W> e = exp(a);
  return one - a.constant(2) / (e * e + one);
}

// --- functions known by name, with the symmetries that cost nothing

template <class W> FieldVec<W> keyed(const FieldVec<W>& a, Keyed function, uint64_t label = 0) {
  FieldVec<W> r;
  r.like(a, a.components);
  r.poison(a);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    const uint64_t key = a.shared->chain->function_key(function, k, label);
    for (int i = 0; i < r.n; ++i)
      r.c[k][i] = a.shared->chain->element(k, keyed_hash(key, a.c[k][i]));
  }
  return r;
}
// Undefines what a function of `a` is no number at, if holds(k, word); the first component that
// there is speaks for all.
template <class W, class F> void leave(FieldVec<W>& r, const FieldVec<W>& a, F holds) {
  const int k = std::countr_zero(a.components);
  for (int i = 0; k < 3 && i < r.n; ++i)
    if (holds(k, a.c[k][i])) r.undefine(i);
}
template <class W> FieldVec<W> named(const FieldVec<W>& a, uint64_t key) {
  FieldVec<W> r = keyed(a, Keyed::Custom, key);
  if (const DeemedPoles* const deemed = a.shared->deemed) {
    const auto kind = DeemedPoles::Class(DeemedPoles::Custom + (key >> 1));
    leave(r, a, [&](int, W x) { return deemed->holds(kind, x); });
  }
  return r;
}
template <class W> FieldVec<W> log(const FieldVec<W>& a) {
  FieldVec<W> r = keyed(a, Keyed::Log);
  if (const DeemedPoles* const deemed = a.shared->deemed)
    leave(r, a, [&](int, W x) {
      return deemed->holds(DeemedPoles::Sign, x) || deemed->holds(DeemedPoles::Zero, x);
    });
  else if (a.shared->small)
    leave(r, a, [&](int k, W x) { return a.modulus(k).legendre(x) != 1; });
  return r;
}
// Odd: x·h(x²).
template <class W> FieldVec<W> erf(const FieldVec<W>& a) { return a * keyed(a * a, Keyed::Erf); }
// Points of the circle by t ↦ ((1−t²)/(1+t²), 2t/(1+t²)) with t odd: sin² + cos² = 1, sin is odd,
// cos is even. −1 is not a square, so the denominator is never 0.
template <class W> FieldVec<W> half_angle(const FieldVec<W>& a) {
  return a * keyed(a * a, Keyed::Trig);
}
template <class W> FieldVec<W> sin(const FieldVec<W>& a) {
  const FieldVec<W> t = half_angle(a);
  return (t + t) / (a.constant(1) + t * t);
}
template <class W> FieldVec<W> cos(const FieldVec<W>& a) {
  const FieldVec<W> t = half_angle(a), one = a.constant(1);
  return (one - t * t) / (one + t * t);
}
template <class W> FieldVec<W> general_power(const FieldVec<W>& a, const Rational& e) {
  const uint64_t by = derive_key(uint64_t(e.den()), uint64_t(e.exp2()));
  FieldVec<W> r = keyed(a, Keyed::Pow, derive_key(uint64_t(e.num()), by));
  if (const DeemedPoles* const deemed = a.shared->deemed)
    leave(r, a, [&](int, W x) {
      return (!e.is_integer() && deemed->holds(DeemedPoles::Sign, x)) ||
             (e.negative() && deemed->holds(DeemedPoles::Zero, x));
    });
  return r;
}

template <class W> FieldVec<W> floor(const FieldVec<W>& a) { return keyed(a, Keyed::Floor); }
template <class W> FieldVec<W> round(const FieldVec<W>& a) { return keyed(a, Keyed::Round); }
template <class W> FieldVec<W> log1p(const FieldVec<W>& a) { return log(a.constant(1) + a); }
template <class W> FieldVec<W> expm1(const FieldVec<W>& a) { return exp(a) - a.constant(1); }
template <class W> FieldVec<W> mod(const FieldVec<W>& a, const FieldVec<W>& b) {
  return a - b * floor(a / b);
}

// --- order

// value(modulus, x, s), or where signs are unknown unknown(k, x, s).
template <class W, class F, class G> FieldVec<W> by_sign(const FieldVec<W>& a, F value, G unknown) {
  if (a.shared->unknown_signs) {
    CHECK(a.holds(0)) << "a sign needs component p";
    return of_elements(a, [&](int k, int i) {
      return unknown(k, a.c[k][i], a.shared->unknown_sign(k, a.c[0][i]));
    });
  }
  int8_t s[kRun];
  a.signs(s);
  return of_elements(a, [&](int k, int i) { return value(a.modulus(k), a.c[k][i], s[i]); });
}
template <class W> FieldVec<W> abs(const FieldVec<W>& a) {
  return by_sign(
      a, [](const Modulus<W>& m, W x, int8_t s) { return s < 0 ? m.neg(x) : x; },
      [&](int k, W x, W s) { return a.modulus(k).mul(x, s); });
}
template <class W> FieldVec<W> sign(const FieldVec<W>& a) {
  return by_sign(
      a,
      [](const Modulus<W>& m, W, int8_t s) { return s > 0   ? m.one
                                                    : s < 0 ? m.neg(m.one)
                                                            : W(0); },
      [](int, W, W s) { return s; });
}
// x^y = e^(y log x) of positive x; of others a keyed function of both.
template <class W> FieldVec<W> power(const FieldVec<W>& a, const FieldVec<W>& b) {
  const DeemedPoles* const deemed = a.shared->deemed;
  FieldVec<W> r = exp(b * (deemed ? keyed(a, Keyed::Log) : log(a)));
  if (deemed) leave(r, a, [&](int, W x) { return deemed->holds(DeemedPoles::Power, x); });
  r.components &= a.components & b.components;
  int8_t s[kRun] = {};
  if (!a.shared->unknown_signs) a.signs(s);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    const uint64_t key = a.shared->chain->function_key(Keyed::Pow, k, 1);
    for (int i = 0; i < r.n; ++i)
      if (s[i] <= 0)
        r.c[k][i] = a.shared->chain->element(k, keyed_hash(keyed_hash(key, a.c[k][i]), b.c[k][i]));
  }
  return r;
}
// The angle of (y, x) depends on y/x and the sign of x only; where that is unknown, on both.
template <class W> FieldVec<W> atan2(const FieldVec<W>& y, const FieldVec<W>& x) {
  if (x.shared->unknown_signs) return keyed(y + keyed(x, Keyed::Angle), Keyed::Angle, 1);
  FieldVec<W> r = y / x;
  int8_t s[kRun];
  x.signs(s);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    const uint64_t key = r.shared->chain->function_key(Keyed::Angle, k);
    for (int i = 0; i < r.n; ++i)
      r.c[k][i] =
          r.shared->chain->element(k, keyed_hash(keyed_hash(key, r.c[k][i]), uint64_t(s[i] + 1)));
  }
  return r;
}
// max(x, 0), always by sign: relu(relu(x)) = relu(x). relu(−∞) = 0.
template <class W> FieldVec<W> relu(const FieldVec<W>& a) {
  FieldVec<W> r = by_sign(
      a, [](const Modulus<W>&, W x, int8_t s) { return s > 0 ? x : W(0); },
      [&](int k, W x, W s) { return a.shared->chosen(k, x, 0, s); });
  for (int i = 0; a.flagged && i < a.n; ++i) {
    if (a.flag[i] != FieldArray::NegInf) continue;
    r.flag[i] = FieldArray::Defined;
    for (int k = 0; k < 3; ++k)
      if (r.holds(k)) r.c[k][i] = 0;
  }
  return r;
}

// The maximum (minimum = 0) or minimum (1) of two vectors.
template <class W>
FieldVec<W> extremum(const FieldVec<W>& a, const FieldVec<W>& b, uint64_t minimum) {
  FieldVec<W> r;
  r.like(a, a.components & b.components);
  CHECK(r.holds(0)) << "a maximum needs component p";
  r.has_set = true;
  if (a.flagged || b.flagged) r.clear_flags();
  W difference[kRun], powers[kRun];
  const bool unknown = a.shared->unknown_signs;
  a.loops().sub(r.modulus(0), a.c[0], b.c[0], difference, r.n);
  if (!unknown) a.loops().pow(r.modulus(0), difference, r.modulus(0).residue_exponent, powers, r.n);
  const W one = r.modulus(0).one;
  for (int i = 0; i < r.n; ++i) {
    const FieldVec<W>* pick = nullptr;
    const uint8_t x = a.flag_at(i), y = b.flag_at(i);
    if ((x | y) != 0) {
      const bool usable = minimum == 0 && ((x | y) & FieldArray::Undefined) == 0;
      r.flag[i] = !usable ? FieldArray::Undefined : (x & y);
      pick = x == FieldArray::NegInf ? &b : &a;  // max ignores −∞
    }
    uint64_t set = 0;
    bool two = false;  // plain elements
    if (pick == nullptr) {
      const uint64_t p = a.members(i, minimum), q = b.members(i, minimum);
      if (p == q || a.includes(i, minimum, q)) {
        pick = &a;
      } else if (b.includes(i, minimum, p)) {
        pick = &b;
      } else {
        set = (p + q) | minimum;
        two = a.plain(i, minimum) && b.plain(i, minimum);
        if (two && !unknown) {
          pick = (powers[i] == one) == (minimum == 0) ? &a : &b;
          a.shared->ask(difference[i], powers[i] == one ? 1 : -1, false);
        }
      }
    }
    if (pick != nullptr && set == 0 && pick->has_set) set = pick->set[i];
    for (int k = 0; k < 3; ++k) {
      if (!r.holds(k)) continue;
      if (two && unknown) {
        const FieldVec<W>&x = minimum ? b : a, &y = minimum ? a : b;
        r.c[k][i] =
            a.shared->chosen(k, x.c[k][i], y.c[k][i],
                             a.shared->unknown_sign(k, r.modulus(0).sub(a.c[0][i], b.c[0][i])));
        continue;
      }
      r.c[k][i] =
          pick != nullptr ? pick->c[k][i] : a.shared->of_set(k, set & ~uint64_t(1), minimum);
    }
    r.set[i] = set;
  }
  return r;
}
template <class W> FieldVec<W> max(const FieldVec<W>& a, const FieldVec<W>& b) {
  return extremum(a, b, 0);
}
template <class W> FieldVec<W> min(const FieldVec<W>& a, const FieldVec<W>& b) {
  return extremum(a, b, 1);
}

template <class W> IntVec compare(const FieldVec<W>& a, const FieldVec<W>& b, Order order) {
  IntVec r;
  r.n = a.n;
  const FieldVec<W> d = a - b;
  CHECK(d.holds(0)) << "a comparison needs component p";
  int8_t s[kRun];
  if (order == Order::Eq || order == Order::Ne)
    for (int i = 0; i < d.n; ++i) s[i] = int8_t(d.c[0][i] != 0);
  else
    d.signs(s);
  for (int i = 0; i < d.n; ++i) r.v[i] = ordered(int(s[i]), 0, order);
  r.flagged = d.flagged;
  for (int i = 0; d.flagged && i < d.n; ++i) {
    r.flag[i] = d.flag[i] == FieldArray::NegInf && a.flag_at(i) == FieldArray::NegInf
                    ? uint8_t(0)
                    : uint8_t(d.flag[i] != 0);
    if (a.flag_at(i) == FieldArray::NegInf && b.flag_at(i) == 0) r.v[i] = order != Order::Eq;
    if (b.flag_at(i) == FieldArray::NegInf && a.flag_at(i) == 0) {  // x ? −∞
      r.v[i] = order == Order::Ne;
      r.flag[i] = 0;
    }
  }
  return r;
}
template <class W> IntVec not_zero(const FieldVec<W>& a) {
  return compare(a, a.constant(0), Order::Ne);
}
// Conversion to integers is a function known by name.
template <class W> IntVec truncate(const FieldVec<W>& a, DType dtype) {
  IntVec r;
  r.n = a.n;
  const uint64_t key = a.shared->chain->function_key(Keyed::CastInt, 0, uint64_t(dtype));
  CHECK(a.holds(0)) << "a conversion needs component p";
  for (int i = 0; i < r.n; ++i) r.v[i] = wrap_to(dtype, int64_t(keyed_hash(key, a.c[0][i])));
  r.flagged = a.flagged;
  for (int i = 0; r.flagged && i < r.n; ++i) r.flag[i] = a.flag[i] != 0;
  return r;
}
template <class W> FieldVec<W> select(const IntVec& c, const FieldVec<W>& a, const FieldVec<W>& b) {
  FieldVec<W> r;
  r.like(a, a.components & b.components);
  for (int k = 0; k < 3; ++k) {
    if (!r.holds(k)) continue;
    for (int i = 0; i < r.n; ++i) r.c[k][i] = c.v[i] ? a.c[k][i] : b.c[k][i];
  }
  if (c.flagged || a.flagged || b.flagged) {
    r.clear_flags();
    for (int i = 0; i < r.n; ++i) {
      const bool unknown = c.flagged && c.flag[i] != 0;
      r.flag[i] = unknown ? uint8_t(FieldArray::Undefined) : (c.v[i] ? a : b).flag_at(i);
    }
  }
  if (a.has_set || b.has_set) {
    r.has_set = true;
    for (int i = 0; i < r.n; ++i) {
      const FieldVec<W>& from = c.v[i] ? a : b;
      r.set[i] = from.has_set ? from.set[i] : 0;
    }
  }
  return r;
}

}  // namespace tessera
