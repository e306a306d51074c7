// Runs of up to kRun elements of integers and floats with the arithmetic that operators are made
// of. The field's vectors (eval/field_vector.h) offer the same operations.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "eval/field_array.h"
#include "eval/ndarray.h"
#include "ir/custom.h"
#include "ir/op.h"

namespace tessera {

inline constexpr int kRun = 128;

enum class Order : uint8_t { Eq, Ne, Lt, Le };

template <class T> bool ordered(T a, T b, Order order) {
  switch (order) {
  case Order::Eq: return a == b;
  case Order::Ne: return a != b;
  case Order::Lt: return a < b;
  case Order::Le: return a <= b;
  }
  return false;
}

// --- integers and bools: arithmetic modulo 2^64; storing wraps to the dtype.
struct IntVec {
  int n = 0;
  bool flagged = false;
  int64_t v[kRun];
  uint8_t flag[kRun];  // only when flagged

  void set_flags(const IntVec& a) {
    flagged = a.flagged;
    if (flagged) std::memcpy(flag, a.flag, size_t(n));
  }
  void set_flags(const IntVec& a, const IntVec& b) {
    set_flags(a);
    if (!b.flagged) return;
    if (!flagged) std::memset(flag, 0, size_t(n));
    flagged = true;
    for (int i = 0; i < n; ++i) flag[i] |= b.flag[i];
  }
  IntVec constant(const Rational& c) const {
    IntVec r;
    r.n = n;
    for (int i = 0; i < n; ++i) r.v[i] = c.num();
    return r;
  }
  void accumulate(const IntVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] = int64_t(uint64_t(v[i]) + uint64_t(x.v[i]));
    merge_flags(x);
  }
  void accumulate_max(const IntVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] = v[i] > x.v[i] ? v[i] : x.v[i];
    merge_flags(x);
  }
  void accumulate_min(const IntVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] = v[i] < x.v[i] ? v[i] : x.v[i];
    merge_flags(x);
  }
  IntVec slice(int from, int count) const {
    IntVec r;
    r.n = count;
    std::memcpy(r.v, v + from, size_t(count) * sizeof(int64_t));
    r.flagged = flagged;
    if (flagged) std::memcpy(r.flag, flag + from, size_t(count));
    return r;
  }

 private:
  void merge_flags(const IntVec& x) {
    if (!x.flagged) return;
    if (!flagged) std::memset(flag, 0, size_t(n));
    flagged = true;
    for (int i = 0; i < x.n; ++i) flag[i] |= x.flag[i];
  }
};

template <class F> IntVec map_int(const IntVec& a, F f) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = f(a.v[i]);
  r.set_flags(a);
  return r;
}
template <class F> IntVec zip_int(const IntVec& a, const IntVec& b, F f) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = f(a.v[i], b.v[i]);
  r.set_flags(a, b);
  return r;
}
#define TESSERA_MAP(name, value)                                                                   \
  inline IntVec name(const IntVec& a) {                                                            \
    return map_int(a, [](int64_t x) { return int64_t(value); });                                   \
  }
#define TESSERA_ZIP(name, value)                                                                   \
  inline IntVec name(const IntVec& a, const IntVec& b) {                                           \
    return zip_int(a, b, [](int64_t x, int64_t y) { return int64_t(value); });                     \
  }
TESSERA_MAP(operator-, 0 - uint64_t(x))
TESSERA_MAP(abs, x < 0 ? int64_t(0 - uint64_t(x)) : x)
TESSERA_MAP(sign, (x > 0) - (x < 0))
TESSERA_MAP(relu, x > 0 ? x : 0)
TESSERA_MAP(logical_not, x == 0)
TESSERA_MAP(not_zero, x != 0)
TESSERA_ZIP(operator+, uint64_t(x) + uint64_t(y))
TESSERA_ZIP(operator-, uint64_t(x) - uint64_t(y))
TESSERA_ZIP(operator*, uint64_t(x) * uint64_t(y))
TESSERA_ZIP(max, x > y ? x : y)
TESSERA_ZIP(min, x < y ? x : y)
#undef TESSERA_MAP
#undef TESSERA_ZIP
// Used by power() with negative exponents, which integers do not have.
inline IntVec operator/(const IntVec&, const IntVec&) { unreachable("integer division"); }
inline IntVec sqrt(const IntVec&) { unreachable("integer root"); }
inline IntVec general_power(const IntVec& x, const Rational& e) {
  return map_int(
      x,
      [&](int64_t base) {
        uint64_t r = 1, b = uint64_t(base);
        for (uint64_t n = uint64_t(e.num()); n != 0; n >>= 1, b *= b)
          if (n & 1) r *= b;
        return int64_t(r);
      });
}
// Of the divisor's sign; 0 where the divisor is 0 (as in NumPy).
inline IntVec mod(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b,
      [](int64_t x, int64_t y) -> int64_t {
        if (y == 0 || y == -1) return 0;  // the smallest number divided by −1 would overflow
        const int64_t r = x % y;
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;
      });
}
inline IntVec compare(const IntVec& a, const IntVec& b, Order order) {
  return zip_int(
      a, b, [&](int64_t x, int64_t y) { return int64_t(ordered(x, y, order)); });
}
inline IntVec select(const IntVec& c, const IntVec& a, const IntVec& b) {
  IntVec r;
  r.n = c.n;
  r.flagged = c.flagged || a.flagged || b.flagged;
  for (int i = 0; i < c.n; ++i) {
    const IntVec& from = c.v[i] ? a : b;
    r.v[i] = from.v[i];
    if (r.flagged)
      r.flag[i] = uint8_t((c.flagged ? c.flag[i] : 0) | (from.flagged ? from.flag[i] : 0));
  }
  return r;
}

// --- floats
template <class T> T propagating_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> T propagating_min(T a, T b) { return a < b || a != a ? a : b; }

template <class T> T floored_mod(T x, T y) {
  const T r = std::fmod(x, y);
  if (r == 0) return std::copysign(T(0), y);
  return (r < 0) != (y < 0) ? r + y : r;
}

template <class T> struct RealVec {
  int n = 0;
  T v[kRun];

  RealVec constant(const Rational& c) const {
    RealVec r;
    r.n = n;
    const T x = T(c.to_double());
    for (int i = 0; i < n; ++i) r.v[i] = x;
    return r;
  }
  void assign_integers(const IntVec& x) {
    n = x.n;
    for (int i = 0; i < n; ++i) v[i] = T(x.v[i]);
  }
  void accumulate(const RealVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] += x.v[i];
  }
  void accumulate_max(const RealVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] = propagating_max(v[i], x.v[i]);
  }
  void accumulate_min(const RealVec& x) {
    for (int i = 0; i < x.n; ++i) v[i] = propagating_min(v[i], x.v[i]);
  }
  RealVec slice(int from, int count) const {
    RealVec r;
    r.n = count;
    std::memcpy(r.v, v + from, size_t(count) * sizeof(T));
    return r;
  }
};

template <class T, class F> RealVec<T> map_real(const RealVec<T>& a, F f) {
  RealVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = f(a.v[i]);
  return r;
}
template <class T, class F> RealVec<T> zip_real(const RealVec<T>& a, const RealVec<T>& b, F f) {
  RealVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = f(a.v[i], b.v[i]);
  return r;
}
#define TESSERA_MAP(name, value)                                                                   \
  template <class T> RealVec<T> name(const RealVec<T>& a) {                                        \
    return map_real(a, [](T x) -> T { return value; });                                            \
  }
#define TESSERA_ZIP(name, value)                                                                   \
  template <class T> RealVec<T> name(const RealVec<T>& a, const RealVec<T>& b) {                   \
    return zip_real(a, b, [](T x, T y) -> T { return value; });                                    \
  }
TESSERA_MAP(operator-, -x)
TESSERA_MAP(abs, std::abs(x))
TESSERA_MAP(sign, x != x ? x : T((x > 0) - (x < 0)))
TESSERA_MAP(relu, propagating_max(x, T(0)))
TESSERA_MAP(sqrt, std::sqrt(x))
TESSERA_MAP(exp, std::exp(x))
TESSERA_MAP(log, std::log(x))
TESSERA_MAP(sin, std::sin(x))
TESSERA_MAP(cos, std::cos(x))
TESSERA_MAP(erf, std::erf(x))
TESSERA_MAP(erfc, std::erfc(x))
TESSERA_MAP(tanh, std::tanh(x))
TESSERA_MAP(floor, std::floor(x))
TESSERA_MAP(round, std::nearbyint(x))
TESSERA_MAP(log1p, std::log1p(x))
TESSERA_MAP(expm1, std::expm1(x))
TESSERA_ZIP(operator+, x + y)
TESSERA_ZIP(operator-, x - y)
TESSERA_ZIP(operator*, x* y)
TESSERA_ZIP(operator/, x / y)
TESSERA_ZIP(max, propagating_max(x, y))
TESSERA_ZIP(min, propagating_min(x, y))
TESSERA_ZIP(power, std::pow(x, y))
TESSERA_ZIP(mod, floored_mod(x, y))
TESSERA_ZIP(atan2, std::atan2(x, y))
#undef TESSERA_MAP
#undef TESSERA_ZIP
template <class T>
RealVec<T> custom(const CustomFunction& f, const RealVec<T>& a, const RealVec<T>& b) {
  return zip_real(
      a, b, [&](T x, T y) -> T { return f(x, y); });
}
template <class T> RealVec<T> general_power(const RealVec<T>& a, const Rational& e) {
  const T exponent = T(e.to_double());
  return map_real(a, [&](T x) { return std::pow(x, exponent); });
}
template <template <class> class V, class T>
IntVec compare(const V<T>& a, const V<T>& b, Order order) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = ordered(a.v[i], b.v[i], order);
  return r;
}
template <template <class> class V, class T> IntVec not_zero(const V<T>& a) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = a.v[i] != 0;
  return r;
}
// C's conversion where it is defined. As x86-64 does, and so NumPy there: NaN and what an int64
// (for narrower types an int32, of which they are the low bits) cannot hold give the least one.
inline int64_t truncate_real(double x, DType dtype) {
  const bool wide = dtype == DType::I64;
  const double limit = wide ? 0x1p63 : 0x1p31;
  const bool holds = (wide ? x >= -limit : x > -limit - 1) && x < limit;
  return int64_t(holds ? x : -limit);
}
template <template <class> class V, class T> IntVec truncate(const V<T>& a, DType dtype) {
  IntVec r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = truncate_real(double(std::trunc(a.v[i])), dtype);
  return r;
}
template <class T> RealVec<T> select(const IntVec& c, const RealVec<T>& a, const RealVec<T>& b) {
  RealVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.v[i] = c.v[i] ? a.v[i] : b.v[i];
  return r;
}

// --- values with magnitudes: m is the first-order scale of the rounding error of v. Sums add it,
// products and quotients carry it by the derivative in each operand and take the larger, functions
// multiply it by their derivative; it is never below |v|. T is the type they are computed in.
constexpr double kRounding = 0x1p-23;  // of f32
template <class T> struct Magnitude {  // of one element
  T v, m;
};
template <class T> struct MagnitudeVec {
  int n = 0;
  T v[kRun], m[kRun];

  Magnitude<T> operator[](int i) const { return {v[i], m[i]}; }
  void set(int i, Magnitude<T> x) { v[i] = x.v, m[i] = x.m; }
  MagnitudeVec constant(const Rational& c) const {
    MagnitudeVec r;
    r.n = n;
    const T x = T(c.to_double());
    for (int i = 0; i < n; ++i) {
      r.v[i] = x;
      r.m[i] = std::isfinite(x) ? std::abs(x) : 0;  // an infinite constant is never rounded
    }
    return r;
  }
  void assign_integers(const IntVec& x) {
    n = x.n;
    for (int i = 0; i < n; ++i) {
      v[i] = T(x.v[i]);
      m[i] = std::abs(v[i]);
    }
  }
  // After a cast: what was rounded more finely weighs less by as much.
  void narrow(DType from, DType to) {
    const auto digits = [](DType t) {
      return t == DType::F64 ? 53 : t == DType::F32 ? 24 : t == DType::F16 ? 11 : 8;
    };
    const T finer = std::exp2(T(std::min(0, digits(to) - digits(from))));
    for (int i = 0; i < n; ++i)
      m[i] = m[i] * finer < std::abs(v[i]) ? std::abs(v[i]) : m[i] * finer;
  }
  void accumulate(const MagnitudeVec& x) {
    for (int i = 0; i < x.n; ++i) {
      v[i] += x.v[i];
      m[i] += x.m[i];
    }
  }
  void accumulate_max(const MagnitudeVec& x) {
    fold_order(
        x, [](T a, T b) { return propagating_max(a, b); });
  }
  void accumulate_min(const MagnitudeVec& x) {
    fold_order(
        x, [](T a, T b) { return propagating_min(a, b); });
  }
  MagnitudeVec slice(int from, int count) const {
    MagnitudeVec r;
    r.n = count;
    std::memcpy(r.v, v + from, size_t(count) * sizeof(T));
    std::memcpy(r.m, m + from, size_t(count) * sizeof(T));
    return r;
  }

 private:
  // The order may change by rounding, so the result is as uncertain as the worst operand.
  template <class F> void fold_order(const MagnitudeVec& x, F f) {
    for (int i = 0; i < x.n; ++i) {
      v[i] = f(v[i], x.v[i]);
      m[i] = propagating_max(m[i], x.m[i]);
    }
  }
};

// As std::fmax and std::fmin, which are calls.
template <class T> T larger(T x, T y) { return x > y || y != y ? x : y; }
template <class T> T smaller(T x, T y) { return x < y || y != y ? x : y; }
// The m of a result that is not 0 but is rounded to 0 or to few digits, for want of exponents: in
// f64 it is off by half of the least subnormal number, whatever its size, and what it is multiplied
// with makes that large.
template <class T> T or_underflow(T v, T m, bool is_zero) {
  constexpr T kLeastNormal = std::numeric_limits<T>::min();
  return std::abs(v) < kLeastNormal && !is_zero ? larger(m, kLeastNormal) : m;
}
// A value by the slope of its function, and the m of the operand. A slope of 0 or a value below the
// scale must not hide the result's own rounding.
template <class T> Magnitude<T> carried(T v, T slope, T m) {
  const T by_slope = std::abs(slope) * m;
  return {v, by_slope > std::abs(v) ? by_slope : std::abs(v)};
}
template <class T> T tanh_slope(T x) {
  const T t = std::tanh(x);
  return 1 - t * t;
}
#define TESSERA_MAP(name, value, slope)                                                            \
  template <class T> Magnitude<T> name(Magnitude<T> a) {                                           \
    const T x = a.v;                                                                               \
    return carried<T>(value, slope, a.m);                                                          \
  }
TESSERA_MAP(sign, x != x ? x : T((x > 0) - (x < 0)), T(0))
TESSERA_MAP(log, std::log(x), 1 / x)
TESSERA_MAP(sin, std::sin(x), std::cos(x))
TESSERA_MAP(cos, std::cos(x), std::sin(x))
TESSERA_MAP(erf, std::erf(x), 1.1283791670955126 * std::exp(-x * x))
TESSERA_MAP(erfc, std::erfc(x), 1.1283791670955126 * std::exp(-x * x))
TESSERA_MAP(tanh, std::tanh(x), tanh_slope(x))
TESSERA_MAP(floor, std::floor(x), T(0))
TESSERA_MAP(round, std::nearbyint(x), T(0))
TESSERA_MAP(log1p, std::log1p(x), 1 / (1 + x))
TESSERA_MAP(expm1, std::expm1(x), std::exp(x))
#undef TESSERA_MAP
template <class T> Magnitude<T> operator-(Magnitude<T> x) { return {-x.v, x.m}; }
template <class T> Magnitude<T> abs(Magnitude<T> x) { return {std::abs(x.v), x.m}; }
// Rounding may change the order of numbers that are near: then the result is as uncertain as the
// worse of them; else as the one that is chosen.
template <class T> Magnitude<T> chosen(T v, Magnitude<T> x, Magnitude<T> y) {
  constexpr double kNear = 0.125;  // of the scale; more than a few roundings even of bf16
  if (!(std::abs(x.v - y.v) > kNear * (x.m + y.m))) return {v, propagating_max(x.m, y.m)};
  return {v, v == x.v ? x.m : y.m};
}
template <class T> Magnitude<T> relu(Magnitude<T> x) {
  return chosen(propagating_max(x.v, T(0)), x, {0, 0});
}
template <class T> Magnitude<T> max(Magnitude<T> x, Magnitude<T> y) {
  return chosen(propagating_max(x.v, y.v), x, y);
}
template <class T> Magnitude<T> min(Magnitude<T> x, Magnitude<T> y) {
  return chosen(propagating_min(x.v, y.v), x, y);
}
template <class T> Magnitude<T> sqrt(Magnitude<T> x) {
  // Near zero the slope is no measure: an error e of x becomes at most sqrt(e), so that where x
  // cancelled to nothing the root keeps half of the digits.
  const T v = std::sqrt(x.v), most = std::sqrt(x.m / kRounding);
  return {v, larger(std::abs(v), smaller<T>(0.5 * x.m / v, most))};
}
template <class T> Magnitude<T> exp(Magnitude<T> x) {
  // libm takes four times as long to tell that a result is out of range.
  constexpr T kBeyond = std::numeric_limits<T>::max_exponent + std::numeric_limits<T>::digits;
  const T v = x.v > kBeyond    ? std::numeric_limits<T>::infinity()
              : x.v < -kBeyond ? 0
                               : std::exp(x.v);
  return {v, or_underflow(v, carried(v, v, x.m).m, std::isinf(x.v))};
}
template <class T> Magnitude<T> operator+(Magnitude<T> x, Magnitude<T> y) {
  return {x.v + y.v, x.m + y.m};
}
template <class T> Magnitude<T> operator-(Magnitude<T> x, Magnitude<T> y) {
  return {x.v - y.v, x.m + y.m};
}
template <class T> Magnitude<T> operator*(Magnitude<T> x, Magnitude<T> y) {
  // The last one is of second order: the product of two errors, where both values cancelled to
  // nothing.
  const T v = x.v * y.v,
          m = larger<T>(larger(std::abs(x.v) * y.m, std::abs(y.v) * x.m), kRounding * x.m * y.m);
  return {v, or_underflow(v, m, x.v == 0 || y.v == 0)};
}
template <class T> Magnitude<T> operator/(Magnitude<T> x, Magnitude<T> y) {
  // A divisor that overflowed is any number beyond the largest; one that is infinite has no m.
  constexpr T kMost = std::numeric_limits<T>::max(), kRoundings = 0x1p52;
  const T v = x.v / y.v, m = std::isinf(y.v) && y.m > 0
                                 ? std::abs(x.v) / kMost * kRoundings
                                 : larger(x.m, std::abs(v) * y.m) / std::abs(y.v);
  return {v, or_underflow(v, m, x.v == 0 || std::isinf(y.v))};
}
template <class T> Magnitude<T> power(Magnitude<T> x, Magnitude<T> y) {
  const T v = std::pow(x.v, y.v);
  T base = std::abs(y.v * std::pow(x.v, y.v - 1)) * x.m;
  // Near zero a root's slope is no measure: see sqrt.
  if (y.v > 0 && y.v < 1) base = smaller<T>(base, std::pow(kRounding * x.m, y.v) / kRounding);
  const T exponent = v == 0 ? 0 : std::abs(v * std::log(std::abs(x.v))) * y.m;
  return {v, or_underflow(v, larger(std::abs(v), larger(base, exponent)),
                          x.v == 0 || std::isinf(x.v) || std::isinf(y.v))};
}
// The jumps are no measure: where the quotient is rounded to another integer, programs differ.
template <class T> Magnitude<T> mod(Magnitude<T> x, Magnitude<T> y) {
  const T v = floored_mod(x.v, y.v);
  return {v, larger(x.m, larger(std::abs(v), std::abs(std::floor(x.v / y.v)) * y.m))};
}
template <class T> Magnitude<T> atan2(Magnitude<T> y, Magnitude<T> x) {
  const T v = std::atan2(y.v, x.v);
  const T slope = (std::abs(x.v) * y.m + std::abs(y.v) * x.m) / (x.v * x.v + y.v * y.v);
  return {v, larger(std::abs(v), smaller(slope, T(4 / kRounding)))};  // never off by more than 2π
}
template <class T, class F> MagnitudeVec<T> map_magnitude(const MagnitudeVec<T>& a, F f) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.set(i, f(a[i]));
  return r;
}
template <class T>
MagnitudeVec<T> custom(const CustomFunction& f, const MagnitudeVec<T>& a,
                       const MagnitudeVec<T>& b) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    const Magnitude<T> x = a[i], y = b[i];
    const T v = f(x.v, y.v), h = std::abs(x.v) * T(0x1p-20), k = std::abs(y.v) * T(0x1p-20);
    const T of_x = std::abs(f(x.v + h, y.v) - f(x.v - h, y.v)) / (2 * h) * x.m;
    const T of_y = std::abs(f(x.v, y.v + k) - f(x.v, y.v - k)) / (2 * k) * y.m;
    r.set(i, {v, larger(std::abs(v), larger(of_x, of_y))});
  }
  return r;
}
template <class T> MagnitudeVec<T> general_power(const MagnitudeVec<T>& a, const Rational& e) {
  const T k = e.to_double();
  return map_magnitude(a, [&](Magnitude<T> x) -> Magnitude<T> {
    const T v = std::pow(x.v, k), m = carried<T>(v, k * std::pow(x.v, k - 1), x.m).m;
    return {v, or_underflow(v, m, x.v == 0 || std::isinf(x.v))};
  });
}
template <class T>
MagnitudeVec<T> select(const IntVec& c, const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) r.set(i, c.v[i] ? a[i] : b[i]);
  return r;
}
// The functions above, of runs.
#define TESSERA_MAP(name)                                                                          \
  template <class T> MagnitudeVec<T> name(const MagnitudeVec<T>& a) {                              \
    return map_magnitude(a, [](Magnitude<T> x) { return name(x); });                               \
  }
#define TESSERA_ZIP(name)                                                                          \
  template <class T> MagnitudeVec<T> name(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {    \
    MagnitudeVec<T> r;                                                                             \
    r.n = a.n;                                                                                     \
    for (int i = 0; i < a.n; ++i) r.set(i, name(a[i], b[i]));                                      \
    return r;                                                                                      \
  }
TESSERA_MAP(operator-)
TESSERA_MAP(abs)
TESSERA_MAP(sign)
TESSERA_MAP(relu)
TESSERA_MAP(sqrt)
TESSERA_MAP(exp)
TESSERA_MAP(log)
TESSERA_MAP(sin)
TESSERA_MAP(cos)
TESSERA_MAP(erf)
TESSERA_MAP(tanh)
TESSERA_MAP(floor)
TESSERA_MAP(round)
TESSERA_MAP(log1p)
TESSERA_MAP(expm1)
TESSERA_ZIP(operator+)
TESSERA_ZIP(operator-)
TESSERA_ZIP(operator*)
TESSERA_ZIP(operator/)
TESSERA_ZIP(max)
TESSERA_ZIP(min)
TESSERA_ZIP(power)
TESSERA_ZIP(mod)
TESSERA_ZIP(atan2)
#undef TESSERA_MAP
#undef TESSERA_ZIP

}  // namespace tessera
