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
inline IntVec operator-(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return int64_t(0 - uint64_t(x)); });
}
inline IntVec operator+(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b, [](int64_t x, int64_t y) { return int64_t(uint64_t(x) + uint64_t(y)); });
}
inline IntVec operator-(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b, [](int64_t x, int64_t y) { return int64_t(uint64_t(x) - uint64_t(y)); });
}
inline IntVec operator*(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b, [](int64_t x, int64_t y) { return int64_t(uint64_t(x) * uint64_t(y)); });
}
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
inline IntVec abs(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return x < 0 ? int64_t(0 - uint64_t(x)) : x; });
}
inline IntVec sign(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return int64_t((x > 0) - (x < 0)); });
}
inline IntVec relu(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return x > 0 ? x : 0; });
}
inline IntVec logical_not(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return int64_t(x == 0); });
}
inline IntVec not_zero(const IntVec& a) {
  return map_int(
      a, [](int64_t x) { return int64_t(x != 0); });
}
inline IntVec max(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b, [](int64_t x, int64_t y) { return x > y ? x : y; });
}
inline IntVec min(const IntVec& a, const IntVec& b) {
  return zip_int(
      a, b, [](int64_t x, int64_t y) { return x < y ? x : y; });
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
template <class T> struct MagnitudeVec {
  int n = 0;
  T v[kRun], m[kRun];

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
// f(v) and the factor by which it scales m.
template <class T, class F, class G>
MagnitudeVec<T> map_magnitude(const MagnitudeVec<T>& a, F f, G derivative) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    r.v[i] = f(a.v[i]);
    // a slope of 0 or a value below the scale must not hide the result's own rounding
    const T carried = std::abs(derivative(a.v[i])) * a.m[i];
    r.m[i] = carried > std::abs(r.v[i]) ? carried : std::abs(r.v[i]);
  }
  return r;
}
template <class T, class F>
MagnitudeVec<T> zip_magnitude(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b, F f) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) f(a.v[i], a.m[i], b.v[i], b.m[i], r.v[i], r.m[i]);
  return r;
}
template <class T> T tanh_slope(T x) {
  const T t = std::tanh(x);
  return 1 - t * t;
}
#define TESSERA_MAP(name, value, slope)                                                            \
  template <class T> MagnitudeVec<T> name(const MagnitudeVec<T>& a) {                              \
    return map_magnitude(                                                                          \
        a, [](T x) -> T { return value; }, []([[maybe_unused]] T x) -> T { return slope; });       \
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
template <class T> MagnitudeVec<T> operator-(MagnitudeVec<T> a) {
  for (int i = 0; i < a.n; ++i) a.v[i] = -a.v[i];
  return a;
}
template <class T> MagnitudeVec<T> abs(MagnitudeVec<T> a) {
  for (int i = 0; i < a.n; ++i) a.v[i] = std::abs(a.v[i]);
  return a;
}
// Rounding may change the order of numbers that are near: then the result is as uncertain as the
// worse of them; else as the one that is chosen.
template <class T> T chosen_magnitude(T v, T x, T mx, T y, T my) {
  constexpr double kNear = 0.125;  // of the scale; more than a few roundings even of bf16
  if (!(std::abs(x - y) > kNear * (mx + my))) return propagating_max(mx, my);
  return v == x ? mx : my;
}
template <class T> MagnitudeVec<T> relu(const MagnitudeVec<T>& a) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    r.v[i] = propagating_max(a.v[i], T(0));
    r.m[i] = chosen_magnitude(r.v[i], a.v[i], a.m[i], T(0), T(0));
  }
  return r;
}
template <class T> MagnitudeVec<T> sqrt(const MagnitudeVec<T>& a) {
  // Near zero the slope is no measure: an error e of x becomes at most sqrt(e), so that where x
  // cancelled to nothing the root keeps half of the digits.
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    r.v[i] = std::sqrt(a.v[i]);
    const T most = std::sqrt(a.m[i] / kRounding);
    r.m[i] = larger(std::abs(r.v[i]), smaller(0.5 * a.m[i] / r.v[i], most));
  }
  return r;
}
template <class T> MagnitudeVec<T> exp(const MagnitudeVec<T>& a) {
  // libm takes four times as long to tell that a result is out of range.
  constexpr T kBeyond = std::numeric_limits<T>::max_exponent + std::numeric_limits<T>::digits;
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    const T x = a.v[i];
    r.v[i] = x > kBeyond ? std::numeric_limits<T>::infinity() : x < -kBeyond ? 0 : std::exp(x);
    const T carried = r.v[i] * a.m[i];
    r.m[i] = or_underflow(r.v[i], carried > r.v[i] ? carried : r.v[i], std::isinf(x));
  }
  return r;
}
template <class T> MagnitudeVec<T> general_power(const MagnitudeVec<T>& a, const Rational& e) {
  const T k = e.to_double();
  MagnitudeVec<T> r = map_magnitude(
      a, [&](T x) { return std::pow(x, k); }, [&](T x) { return k * std::pow(x, k - 1); });
  for (int i = 0; i < r.n; ++i)
    r.m[i] = or_underflow(r.v[i], r.m[i], a.v[i] == 0 || std::isinf(a.v[i]));
  return r;
}
template <class T> MagnitudeVec<T> operator+(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = x + y;
        m = mx + my;
      });
}
template <class T> MagnitudeVec<T> operator-(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = x - y;
        m = mx + my;
      });
}
template <class T> MagnitudeVec<T> operator*(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = x * y;
        // The last one is of second order: the product of two errors, where both values cancelled
        // to nothing.
        m = larger(larger(std::abs(x) * my, std::abs(y) * mx), kRounding * mx * my);
        m = or_underflow(v, m, x == 0 || y == 0);
      });
}
template <class T> MagnitudeVec<T> operator/(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = x / y;
        m = larger(mx, std::abs(v) * my) / std::abs(y);
        // A divisor that overflowed is any number beyond the largest; one that is infinite has no
        // m.
        constexpr T kMost = std::numeric_limits<T>::max(), kRoundings = 0x1p52;
        if (std::isinf(y) && my > 0) m = std::abs(x) / kMost * kRoundings;
        m = or_underflow(v, m, x == 0 || std::isinf(y));
      });
}
template <class T> MagnitudeVec<T> power(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = std::pow(x, y);
        T base = std::abs(y * std::pow(x, y - 1)) * mx;
        // Near zero a root's slope is no measure: see sqrt.
        if (y > 0 && y < 1) base = smaller(base, std::pow(kRounding * mx, y) / kRounding);
        const T exponent = v == 0 ? 0 : std::abs(v * std::log(std::abs(x))) * my;
        m = or_underflow(v, larger(std::abs(v), larger(base, exponent)),
                         x == 0 || std::isinf(x) || std::isinf(y));
      });
}
// The jumps are no measure: where the quotient is rounded to another integer, programs differ.
template <class T> MagnitudeVec<T> mod(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = floored_mod(x, y);
        m = larger(mx, larger(std::abs(v), std::abs(std::floor(x / y)) * my));
      });
}
template <class T> MagnitudeVec<T> atan2(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T y, T my, T x, T mx, T& v, T& m) {
        v = std::atan2(y, x);
        const T slope = (std::abs(x) * my + std::abs(y) * mx) / (x * x + y * y);
        m = larger(std::abs(v), smaller(slope, T(4 / kRounding)));  // never off by more than 2π
      });
}
template <class T> MagnitudeVec<T> max(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = propagating_max(x, y);
        m = chosen_magnitude(v, x, mx, y, my);
      });
}
template <class T> MagnitudeVec<T> min(const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  return zip_magnitude(
      a, b,
      [](T x, T mx, T y, T my, T& v, T& m) {
        v = propagating_min(x, y);
        m = chosen_magnitude(v, x, mx, y, my);
      });
}
template <class T>
MagnitudeVec<T> select(const IntVec& c, const MagnitudeVec<T>& a, const MagnitudeVec<T>& b) {
  MagnitudeVec<T> r;
  r.n = a.n;
  for (int i = 0; i < a.n; ++i) {
    r.v[i] = c.v[i] ? a.v[i] : b.v[i];
    r.m[i] = c.v[i] ? a.m[i] : b.m[i];
  }
  return r;
}

}  // namespace tessera
