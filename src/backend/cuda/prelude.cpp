#include "backend/cuda/prelude.h"

#include "backend/prelude_text.h"

namespace tessera {
namespace {

// A function of the library, of floats and of doubles.
std::string both(const std::string& name, const std::string& of) {
  return "TS_DEVICE float " + name + "(float x) { return " + of + "f(x); }\nTS_DEVICE double " +
         name + "(double x) { return " + of + "(x); }\n";
}

const std::vector<PreludeFunction>& cuda_functions() {
  static const std::vector<PreludeFunction> table = {
      {"t_max", {}, R"(
// Maximum and minimum that keep NaN, as NumPy's do.
template <class T> TS_DEVICE T t_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> TS_DEVICE T t_min(T a, T b) { return a < b || a != a ? a : b; }
)"},
      {"t_sign", {}, R"(
template <class T> TS_DEVICE T t_sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x + T(0); }
)"},
      {"t_exp", {}, both("t_exp", "exp")},
      {"t_exp_down", {"t_exp"}, R"(
// e^x for x <= 0, as differences to a maximum are.
template <class T> TS_DEVICE T t_exp_down(T x) { return t_exp(x); }
)"},
      {"t_exp_down16", {}, R"(
// The same for results of 16 bits.
TS_DEVICE float t_exp_down16(float x) { return ts::exp2_fast(x * 1.44269504f); }
)"},
      {"t_log", {}, both("t_log", "log")},
      {"t_expm1", {}, both("t_expm1", "expm1")},
      {"t_log1p", {}, both("t_log1p", "log1p")},
      {"t_tanh", {}, both("t_tanh", "tanh")},
      {"t_sigmoid", {"t_exp"}, R"(
template <class T> TS_DEVICE T t_sigmoid(T x) { return T(1) / (T(1) + t_exp(-x)); }
)"},
      {"t_erfc", {}, both("t_erfc", "erfc")},
      {"t_erf", {}, both("t_erf", "erf") + R"(
TS_DEVICE float t_gelu(float x) { return 0.5f * x * erfcf(-0.707106781f * x); }
TS_DEVICE double t_gelu(double x) { return 0.5 * x * erfc(-0.70710678118654752440 * x); }
)"},
      {"t_gelu_tanh", {"t_tanh"}, R"(
template <class T> TS_DEVICE T t_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + t_tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
}
)"},
      {"t_pow", {}, R"(
// x^e for a constant e that no product or root expresses; float through double.
template <class T> TS_DEVICE T t_pow(T x, double e) { return T(pow(double(x), e)); }
)"},
      {"t_power", {}, R"(
template <class T> TS_DEVICE T t_power(T x, T y) { return T(pow(double(x), double(y))); }
// By squaring, modulo the type; of negative exponents the part before the point.
TS_DEVICE unsigned long t_power_of(unsigned long x, long y) {
  unsigned long r = 1;
  for (; y > 0; y /= 2, x *= x) r = y % 2 ? r * x : r;
  return r;
}
TS_DEVICE long t_power(long x, long y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
  return long(t_power_of(static_cast<unsigned long>(x), y));
}
TS_DEVICE int t_power(int x, int y) { return int(t_power(long(x), long(y))); }
)"},
      {"t_mod", {}, R"(
// x - y floor(x/y), of the sign of y; of integers by 0: 0.
TS_DEVICE double t_mod(double x, double y) {
  double r = fmod(x, y);
  return r == 0.0 ? copysign(0.0, y) : (r < 0.0) != (y < 0.0) ? r + y : r;
}
TS_DEVICE float t_mod(float x, float y) {
  float r = fmodf(x, y);
  return r == 0.0f ? copysignf(0.0f, y) : (r < 0.0f) != (y < 0.0f) ? r + y : r;
}
template <class T> TS_DEVICE T t_mod(T x, T y) {
  T d = y == 0 || y == -1 ? 1 : y, r = x % d;
  return r != 0 && (r < 0) != (d < 0) ? r + d : r;
}
)"},
      {"t_atan2", {}, R"(
TS_DEVICE float t_atan2(float y, float x) { return atan2f(y, x); }
TS_DEVICE double t_atan2(double y, double x) { return atan2(y, x); }
)"},
      {"t_trig", {}, both("t_sin", "sin") + both("t_cos", "cos")},
      {"t_truncate", {}, R"(
// Towards zero; NaN and what is out of range give the least integer, as x86-64's conversions do.
TS_DEVICE long t_truncate_long(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? long(x)
                                                                  : -0x7fffffffffffffffL - 1;
}
TS_DEVICE int t_truncate(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? int(x) : -0x7fffffff - 1;
}
)"},
      {"t_index", {}, R"(
// An index into [0, n): negative ones count from the end, and what is still outside is clamped.
TS_DEVICE int t_index(long i, int n) {
  i = i < 0 ? i + n : i;
  i = i < 0 ? 0 : i;
  return i < n ? int(i) : n - 1;
}
)"},
  };
  return table;
}

}  // namespace

std::string cuda_prelude(const std::set<std::string>& used) {
  return prelude_text(cuda_functions(), used);
}

}  // namespace tessera
