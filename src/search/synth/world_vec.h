// Elements of a world with the arithmetic that eval/pointwise.h makes operators of.
#pragma once
#include <cmath>

#include "eval/ndarray.h"
#include "eval/pointwise.h"
#include "search/synth/discrete_log.h"
#include "search/synth/world.h"

namespace tessera::synth {

static_assert(kMaxCount <= kRun);

struct WorldVec {
  const ChainTables<uint32_t>* chain = nullptr;
  int n = 0;
  bool with_q = false;
  int undefined = 0;  // elements, counted once or more
  uint32_t p[kMaxCount], q[kMaxCount];
  double x[kMaxCount];

  WorldVec() = default;
  WorldVec(const WorldVec& a) { *this = a; }
  WorldVec& operator=(const WorldVec& a) {
    if (this == &a) return *this;
    like(a);
    undefined = a.undefined;
    std::memcpy(p, a.p, size_t(n) * sizeof(uint32_t));
    if (with_q) std::memcpy(q, a.q, size_t(n) * sizeof(uint32_t));
    std::memcpy(x, a.x, size_t(n) * sizeof(double));
    return *this;
  }
  void like(const WorldVec& a) {
    chain = a.chain;
    n = a.n;
    with_q = a.with_q;
  }
  const Modulus<uint32_t>& field() const { return chain->modulus[0]; }
  const Modulus<uint32_t>& exponents() const { return chain->modulus[1]; }
  WorldVec constant(const Rational& value) const {
    WorldVec r;
    r.like(*this);
    const auto cp = chain->constant(0, value), cq = chain->constant(1, value);
    r.undefined = cp && cq ? 0 : n;
    for (int i = 0; i < n; ++i) {
      r.p[i] = cp.value_or(0);
      r.q[i] = cq.value_or(0);
      r.x[i] = value.to_double();
    }
    return r;
  }
  void assign_integers(const IntVec& v) {
    n = v.n;
    undefined = 0;
    for (int i = 0; i < n; ++i) {
      p[i] = field().from_int(v.v[i]);
      q[i] = exponents().from_int(v.v[i]);
      x[i] = double(v.v[i]);
    }
  }
};

struct WorldChunk {
  WorldVec f;
  IntVec i;
};

inline WorldVec alike(const WorldVec& a, const WorldVec* b = nullptr) {
  WorldVec r;
  r.like(a);
  r.undefined = a.undefined + (b ? b->undefined : 0);
  return r;
}
template <class F> WorldVec with_real(WorldVec r, const WorldVec& a, F f) {
  for (int i = 0; i < a.n; ++i) r.x[i] = f(a.x[i]);
  return r;
}
// f(modulus, a, b) on p and q, g on x.
template <class F, class G> WorldVec zip(const WorldVec& a, const WorldVec& b, F f, G g) {
  WorldVec r = alike(a, &b);
  const Modulus<uint32_t> field = a.field(), exponents = a.exponents();
  for (int i = 0; i < r.n; ++i) r.p[i] = f(field, a.p[i], b.p[i]);
  if (r.with_q)
    for (int i = 0; i < r.n; ++i) r.q[i] = f(exponents, a.q[i], b.q[i]);
  for (int i = 0; i < r.n; ++i) r.x[i] = g(a.x[i], b.x[i]);
  return r;
}
using Field = Modulus<uint32_t>;
inline WorldVec operator+(const WorldVec& a, const WorldVec& b) {
  return zip(
      a, b, [](const Field& m, uint32_t x, uint32_t y) { return m.add(x, y); },
      [](double x, double y) { return x + y; });
}
inline WorldVec operator-(const WorldVec& a, const WorldVec& b) {
  return zip(
      a, b, [](const Field& m, uint32_t x, uint32_t y) { return m.sub(x, y); },
      [](double x, double y) { return x - y; });
}
inline WorldVec operator*(const WorldVec& a, const WorldVec& b) {
  return zip(
      a, b, [](const Field& m, uint32_t x, uint32_t y) { return m.mul(x, y); },
      [](double x, double y) { return x * y; });
}
inline WorldVec operator-(const WorldVec& a) {
  return zip(
      a, a, [](const Field& m, uint32_t x, uint32_t) { return m.neg(x); },
      [](double x, double) { return -x; });
}
// Inverses with one division for all: prefix products forward, divided out backward.
inline void invert(const Field& m, const uint32_t* x, int n, uint32_t* out) {
  uint32_t prefix[kMaxCount], product = m.one;
  for (int i = 0; i < n; ++i) {
    prefix[i] = product;
    if (x[i] != 0) product = m.mul(product, x[i]);
  }
  uint32_t inverse = m.inv(product);
  for (int i = n; i-- > 0;) {
    out[i] = x[i] == 0 ? 0 : m.mul(inverse, prefix[i]);
    if (x[i] != 0) inverse = m.mul(inverse, x[i]);
  }
}
inline WorldVec operator/(const WorldVec& a, const WorldVec& b) {
  WorldVec inverse = alike(b);
  invert(b.field(), b.p, b.n, inverse.p);
  if (b.with_q) invert(b.exponents(), b.q, b.n, inverse.q);
  for (int i = 0; i < b.n; ++i) {
    inverse.x[i] = 1 / b.x[i];
    if (b.p[i] == 0) ++inverse.undefined;
  }
  return a * inverse;
}
inline WorldVec sqrt(const WorldVec& a) {
  WorldVec r = alike(a);
  for (int i = 0; i < a.n; ++i) {
    r.p[i] = a.field().root(a.p[i]);
    if (a.field().mul(r.p[i], r.p[i]) != a.p[i]) ++r.undefined;
    if (a.with_q) r.q[i] = a.exponents().root(a.q[i]);
    r.x[i] = std::sqrt(a.x[i]);
  }
  return r;
}
// A function that the field knows by name only.
template <class F> WorldVec by_name(const WorldVec& a, Keyed name, uint64_t label, F real) {
  WorldVec r = alike(a);
  for (int i = 0; i < a.n; ++i) {
    r.p[i] = a.chain->keyed(name, 0, a.p[i], label);
    if (a.with_q) r.q[i] = a.chain->keyed(name, 1, a.q[i], label);
    r.x[i] = real(a.x[i]);
  }
  return r;
}
// Without exponents, worlds of real numbers only ask what exp and log make of those.
inline WorldVec exp(const WorldVec& a) {
  if (!a.with_q) return by_name(a, Keyed::DeepExp, 0, [](double x) { return std::exp(x); });
  WorldVec r = alike(a);
  for (int i = 0; i < a.n; ++i) {
    r.p[i] = a.chain->exp[0].power(a.field(), a.exponents().to_word(a.q[i]));
    const uint32_t root = a.chain->keyed(Keyed::DeepExp, 1, a.q[i]);
    r.q[i] = a.q[i] == 0 ? a.exponents().one : a.exponents().mul(root, root);
    r.x[i] = std::exp(a.x[i]);
  }
  return r;
}
inline WorldVec log(const WorldVec& a) {
  if (!a.with_q) return by_name(a, Keyed::Log, 0, [](double x) { return std::log(x); });
  WorldVec r = alike(a);
  for (int i = 0; i < a.n; ++i) {
    const auto e = discrete_log(*a.chain, a.p[i]);
    if (!e) ++r.undefined;
    r.q[i] = a.exponents().from_word(e.value_or(0));
    r.p[i] = a.chain->keyed(Keyed::Log, 0, a.p[i]);
    r.x[i] = std::log(a.x[i]);
  }
  return r;
}
// The symmetries that cost nothing, as in eval/field_vector.h.
inline WorldVec erf(const WorldVec& a) {
  return with_real(
      a * by_name(
              a * a, Keyed::Erf, 0, [](double) { return 0.0; }),
      a, [](double x) { return std::erf(x); });
}
inline WorldVec half_angle(const WorldVec& a) {
  return a * by_name(
                 a * a, Keyed::Trig, 0, [](double) { return 0.0; });
}
inline WorldVec sin(const WorldVec& a) {
  const WorldVec t = half_angle(a);
  return with_real((t + t) / (a.constant(1) + t * t), a, [](double x) { return std::sin(x); });
}
inline WorldVec cos(const WorldVec& a) {
  const WorldVec t = half_angle(a), one = a.constant(1);
  return with_real((one - t * t) / (one + t * t), a, [](double x) { return std::cos(x); });
}
inline WorldVec tanh(const WorldVec& a) {
  if (!a.with_q) return by_name(a, Keyed::Erf, 1, [](double x) { return std::tanh(x); });
  const WorldVec one = a.constant(1);
  const WorldVec e = exp(a);
  return with_real(one - a.constant(2) / (e * e + one), a, [](double x) { return std::tanh(x); });
}
inline WorldVec floor(const WorldVec& a) {
  return by_name(
      a, Keyed::Set, 1, [](double x) { return std::floor(x); });
}
inline WorldVec round(const WorldVec& a) {
  return by_name(
      a, Keyed::Set, 2, [](double x) { return std::nearbyint(x); });
}
inline WorldVec log1p(const WorldVec& a) { return log(a.constant(1) + a); }
inline WorldVec expm1(const WorldVec& a) { return exp(a) - a.constant(1); }
// A function of two numbers that the field knows by name only.
template <class F>
WorldVec by_name(const WorldVec& a, const WorldVec& b, Keyed name, uint64_t label, F real) {
  WorldVec r = alike(a, &b);
  for (int i = 0; i < a.n; ++i) {
    r.p[i] = a.chain->keyed(name, 0, a.p[i], derive_key(label, b.p[i]));
    if (a.with_q) r.q[i] = a.chain->keyed(name, 1, a.q[i], derive_key(label, b.q[i]));
    r.x[i] = real(a.x[i], b.x[i]);
  }
  return r;
}
inline WorldVec power(const WorldVec& a, const WorldVec& b) {
  return by_name(
      a, b, Keyed::Pow, 1, [](double x, double y) { return std::pow(x, y); });
}
inline WorldVec mod(const WorldVec& a, const WorldVec& b) {
  return by_name(
      a, b, Keyed::Set, 3, [](double x, double y) { return floored_mod(x, y); });
}
inline WorldVec atan2(const WorldVec& a, const WorldVec& b) {
  return by_name(
      a, b, Keyed::Set, 4, [](double y, double x) { return std::atan2(y, x); });
}
inline WorldVec custom(const CustomFunction&, const WorldVec&, const WorldVec&) {
  unreachable("spec.cpp understands no operator that users state");
}
inline WorldVec general_power(const WorldVec& a, const Rational& e) {
  const uint64_t label =
      derive_key(uint64_t(e.num()), derive_key(uint64_t(e.den()), uint64_t(e.exp2())));
  return by_name(a, Keyed::Pow, label, [&](double x) { return std::pow(x, e.to_double()); });
}

// --- order: the real numbers decide

// Two expressions for one number differ by rounding only.
inline bool same_real(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-9 * (std::abs(a) + std::abs(b));
}
template <class F> WorldVec pick(const WorldVec& a, const WorldVec& b, F first) {
  WorldVec r = alike(a, &b);
  for (int i = 0; i < a.n; ++i) {
    const WorldVec& from = first(i) ? a : b;
    r.p[i] = from.p[i];
    if (r.with_q) r.q[i] = from.q[i];
    r.x[i] = from.x[i];
  }
  return r;
}
inline WorldVec max(const WorldVec& a, const WorldVec& b) {
  return pick(
      a, b, [&](int i) { return a.x[i] >= b.x[i]; });
}
inline WorldVec min(const WorldVec& a, const WorldVec& b) {
  return pick(
      a, b, [&](int i) { return a.x[i] <= b.x[i]; });
}
inline WorldVec abs(const WorldVec& a) {
  return pick(
      a, -a, [&](int i) { return a.x[i] >= 0; });
}
inline WorldVec relu(const WorldVec& a) { return max(a, a.constant(0)); }
inline WorldVec sign(const WorldVec& a) {
  WorldVec r = alike(a);
  for (int i = 0; i < a.n; ++i) {
    const int s = a.p[i] == 0 || a.x[i] == 0 ? 0 : a.x[i] > 0 ? 1 : -1;
    r.p[i] = a.field().from_int(s);
    r.q[i] = a.exponents().from_int(s);
    r.x[i] = s;
  }
  return r;
}
inline IntVec compare(const WorldVec& a, const WorldVec& b, Order order) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    const bool equal = a.p[i] == b.p[i] && same_real(a.x[i], b.x[i]);
    r.v[i] = equal ? order == Order::Eq || order == Order::Le
                   : order == Order::Ne || (order != Order::Eq && a.x[i] < b.x[i]);
  }
  r.flagged = a.undefined + b.undefined != 0;
  std::memset(r.flag, r.flagged ? 1 : 0, size_t(r.n));
  return r;
}
inline IntVec not_zero(const WorldVec& a) { return compare(a, a.constant(0), Order::Ne); }
// Known by name only, like all that rounds.
inline IntVec truncate(const WorldVec& a, DType dtype) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i)
    r.v[i] = wrap_to(dtype, int64_t(a.chain->keyed(Keyed::Set, 0, a.p[i], 32 + uint64_t(dtype))));
  r.flagged = a.undefined != 0;
  std::memset(r.flag, r.flagged ? 1 : 0, size_t(r.n));
  return r;
}
inline WorldVec select(const IntVec& c, const WorldVec& a, const WorldVec& b) {
  WorldVec r = pick(a, b, [&](int i) { return c.v[i] != 0; });
  if (c.flagged) r.undefined += c.n;
  return r;
}

}  // namespace tessera::synth
