#include "backend/cuda/prelude.h"

#include <vector>

#include "base/check.h"

namespace tessera {
namespace {

struct Function {
  const char* name;
  std::vector<const char*> needs;  // earlier functions
  const char* text;
};

const std::vector<Function>& functions() {
  static const std::vector<Function> table = {
      {"t_max", {}, R"(
// Maximum and minimum that keep NaN, as NumPy's do.
template <class T> TS_DEVICE T t_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> TS_DEVICE T t_min(T a, T b) { return a < b || a != a ? a : b; }
)"},
      {"t_sign", {}, R"(
TS_DEVICE float t_sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
TS_DEVICE double t_sign(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; }
TS_DEVICE long t_sign(long x) { return (x > 0) - (x < 0); }
TS_DEVICE int t_sign(int x) { return (x > 0) - (x < 0); }
)"},
      {"t_exp", {}, R"(
TS_DEVICE float t_exp(float x) { return expf(x); }
TS_DEVICE double t_exp(double x) { return exp(x); }
)"},
      {"t_exp_down", {"t_exp"}, R"(
// e^x for x <= 0, as differences to a maximum are.
TS_DEVICE float t_exp_down(float x) { return t_exp(x); }
TS_DEVICE double t_exp_down(double x) { return t_exp(x); }
)"},
      {"t_exp_down16", {}, R"(
// The same for results of 16 bits.
TS_DEVICE float t_exp_down16(float x) { return ts::exp2_fast(x * 1.44269504f); }
)"},
      {"t_log", {}, R"(
TS_DEVICE float t_log(float x) { return logf(x); }
TS_DEVICE double t_log(double x) { return log(x); }
)"},
      {"t_expm1_any", {}, R"(
TS_DEVICE float t_expm1_any(float x) { return expm1f(x); }
TS_DEVICE double t_expm1_any(double x) { return expm1(x); }
)"},
      {"t_log1p", {}, R"(
TS_DEVICE float t_log1p(float x) { return log1pf(x); }
TS_DEVICE double t_log1p(double x) { return log1p(x); }
)"},
      {"t_tanh", {}, R"(
TS_DEVICE float t_tanh(float x) { return tanhf(x); }
TS_DEVICE double t_tanh(double x) { return tanh(x); }
)"},
      {"t_sigmoid", {"t_exp"}, R"(
TS_DEVICE float t_sigmoid(float x) { return 1.0f / (1.0f + t_exp(-x)); }
TS_DEVICE double t_sigmoid(double x) { return 1.0 / (1.0 + t_exp(-x)); }
)"},
      {"t_erf", {}, R"(
TS_DEVICE float t_erf(float x) { return erff(x); }
TS_DEVICE double t_erf(double x) { return erf(x); }
TS_DEVICE float t_gelu(float x) { return 0.5f * x * erfcf(-0.707106781f * x); }
TS_DEVICE double t_gelu(double x) { return 0.5 * x * erfc(-0.70710678118654752440 * x); }
)"},
      {"t_gelu_tanh", {"t_tanh"}, R"(
TS_DEVICE float t_gelu_tanh(float x) {
  return 0.5f * x * (1.0f + t_tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}
TS_DEVICE double t_gelu_tanh(double x) {
  return 0.5 * x * (1.0 + t_tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
)"},
      {"t_pow", {}, R"(
// x^e for a constant e that no product or root expresses; float through double.
TS_DEVICE float t_pow(float x, double e) { return float(pow(double(x), e)); }
TS_DEVICE double t_pow(double x, double e) { return pow(x, e); }
)"},
      {"t_power", {}, R"(
TS_DEVICE float t_power(float x, float y) {
  return float(pow(double(x), double(y)));
}
TS_DEVICE double t_power(double x, double y) { return pow(x, y); }
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
TS_DEVICE int t_power(int x, int y) {
  return int(t_power(long(x), long(y)));
}
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
TS_DEVICE long t_mod(long x, long y) {
  long d = y == 0 || y == -1 ? 1 : y, r = x % d;
  return r != 0 && (r < 0) != (d < 0) ? r + d : r;
}
TS_DEVICE int t_mod(int x, int y) {
  int d = y == 0 || y == -1 ? 1 : y, r = x % d;
  return r != 0 && (r < 0) != (d < 0) ? r + d : r;
}
)"},
      {"t_atan2", {}, R"(
TS_DEVICE float t_atan2(float y, float x) { return atan2f(y, x); }
TS_DEVICE double t_atan2(double y, double x) { return atan2(y, x); }
)"},
      {"t_trig", {}, R"(
TS_DEVICE float t_sin(float x) { return sinf(x); }
TS_DEVICE double t_sin(double x) { return sin(x); }
TS_DEVICE float t_cos(float x) { return cosf(x); }
TS_DEVICE double t_cos(double x) { return cos(x); }
)"},
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
  std::set<std::string> wanted = used;
  const std::vector<Function>& table = functions();
  for (size_t i = table.size(); i-- > 0;)
    if (wanted.count(table[i].name) != 0)
      wanted.insert(table[i].needs.begin(), table[i].needs.end());
  std::string text;
  for (const Function& f : table)
    if (wanted.erase(f.name) > 0) text += f.text;
  CHECK(wanted.empty()) << "no function " << *wanted.begin();
  return text;
}

}  // namespace tessera
