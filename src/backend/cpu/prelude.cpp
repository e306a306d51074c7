#include "backend/cpu/prelude.h"

#include "backend/prelude_text.h"

namespace tessera {
namespace {

// Polynomials are Chebyshev interpolants computed at 50 digits; the comments give their error.
// Selections (?:) keep both sides evaluated, so that loops over these functions vectorise.
const std::vector<PreludeFunction>& cpu_functions() {
  static const std::vector<PreludeFunction> table = {
      {"t_poly", {}, R"(
// A polynomial in x by Horner's rule; its coefficients begin with that of the highest power.
template <class T> INLINE T t_poly(T, T q) { return q; }
template <class T, class... C> INLINE T t_poly(T x, T q, T c, C... more) {
  return t_poly(x, q * x + c, more...);
}
)"},
      {"t_bits", {}, R"(
INLINE int t_bits(float x) { int r; __builtin_memcpy(&r, &x, 4); return r; }
INLINE long t_bits(double x) { long r; __builtin_memcpy(&r, &x, 8); return r; }
INLINE float t_float(int x) { float r; __builtin_memcpy(&r, &x, 4); return r; }
INLINE double t_double(long x) { double r; __builtin_memcpy(&r, &x, 8); return r; }
)"},
      {"t_f16", {"t_bits"}, R"(
// IEEE half precision, held in 16-bit words; rounds to nearest, ties to even.
INLINE float t_from_f16(unsigned short h) {
  int m = h & 0x7fff;
  float f = t_float(m << 13) * 0x1p112f;
  int b = t_bits(f) | (m >= 0x7c00 ? 0x7f800000 : 0) | (h & 0x8000) << 16;
  return t_float(b);
}
INLINE unsigned short t_to_f16(float x) {
  int b = t_bits(x), a = b & 0x7fffffff;
  int normal = (a - 0x37fff001 + ((a >> 13) & 1)) >> 13;
  int small = t_bits(t_float(a) + 0.5f) - 0x3f000000;  // adding 1/2 aligns to half's subnormals
  int r = a < 0x38800000 ? small : normal;
  r = a >= 0x477ff000 ? 0x7c00 : r;
  r = a > 0x7f800000 ? 0x7e00 : r;
  return (unsigned short)(r | (b >> 16 & 0x8000));
}
)"},
      {"t_bf16", {"t_bits"}, R"(
// bfloat16, the upper half of a float; rounds to nearest, ties to even.
INLINE float t_from_bf16(unsigned short h) { return t_float((int)((unsigned)h << 16)); }
INLINE unsigned short t_to_bf16(float x) {
  unsigned b = (unsigned)t_bits(x);
  unsigned r = (b + 0x7fffu + (b >> 16 & 1)) >> 16;
  r = (b & 0x7fffffffu) > 0x7f800000u ? (b >> 16 | 0x40) : r;
  return (unsigned short)r;
}
INLINE float t_as_bf16(float x) {  // what it is after both
  int b = t_bits(x), r = (b + 0x7fff + (b >> 16 & 1)) & (int)0xffff0000;
  return x != x ? x : t_float(r);
}
)"},
      {"t_round_bf16", {"t_bf16"}, R"(
// A vector rounded to bf16 by the instruction for it (AVX512_BF16), which takes subnormal numbers
// for zero.
typedef float t_floats __attribute__((vector_size(64), may_alias));
INLINE void t_round_bf16(unsigned short* to, const float (&from)[16], long n) {
  typedef unsigned short h __attribute__((vector_size(32), aligned(2), may_alias));
  if (n == 16) {
    h r;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(*(const t_floats*)from));
    *(h*)to = r;
    return;
  }
  for (long i = 0; i < n; ++i) to[i] = t_to_bf16(from[i]);
}
)"},
      {"t_split", {"t_bf16"}, R"(
// A float as the sum of two bf16, to 2^-16 of it or better: its upper half and the rest.
INLINE unsigned short t_high(float x) {
  return (unsigned short)(x != x ? 0x7fc0u : (unsigned)t_bits(x) >> 16);
}
INLINE unsigned short t_low(float x) {
  int b = t_bits(x);
  float rest = x - t_float(b & (int)0xffff0000);
  return t_to_bf16((b & 0x7f800000) == 0x7f800000 ? 0.0f : rest);
}
)"},
      {"t_max", {}, R"(
// Maximum and minimum that keep NaN, as NumPy's do. One comparison suffices beside a constant, and
// compilers make vectors of chains of these.
#define T_EXTREMA(T) \
  INLINE T t_max(T a, T b) { \
    if (__builtin_constant_p(b) && b == b) return !(a <= b) ? a : b; \
    return a > b || a != a ? a : b; \
  } \
  INLINE T t_min(T a, T b) { \
    if (__builtin_constant_p(b) && b == b) return !(a >= b) ? a : b; \
    return a < b || a != a ? a : b; \
  }
T_EXTREMA(float)
T_EXTREMA(double)
template <class T> INLINE T t_max(T a, T b) { return a > b ? a : b; }
template <class T> INLINE T t_min(T a, T b) { return a < b ? a : b; }
)"},
      {"t_zero", {}, R"(
// 0, which no compiler knows: x * y - t_zero is the rounded product, and nothing that is added to it
// can be fused with the multiplication.
static const volatile double t_zero = 0;
)"},
      {"t_sign", {}, R"(
// Of both zeros +0, as NumPy's.
template <class T> INLINE T t_sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x + T(0); }
)"},
      {"t_exp", {"t_bits", "t_poly"}, R"(
// e^x = 2^n e^r with |r| <= ln(2)/2; 2^n in two factors, so that results may be subnormal.
// Polynomials: relative error 1.6e-9 (float), 2.2e-20 (double). t_expm1 is exact near 0.
INLINE float t_exp_tail(float r) {  // e^r - 1
  float q = t_poly(r, 0.00019892991763f, 0.00139354518439f, 0.00833330908652f, 0.0416664483657f,
                   0.166666666835f, 0.500000001516f);
  return q * (r * r) + r;
}
INLINE double t_exp_tail(double r) {
  double q = t_poly(r, 1.6087737571667892192e-10, 2.0919802534908384295e-9,
                    2.5052068034668043454e-8, 2.7557258688623930226e-7, 2.7557319250135433051e-6,
                    0.000024801587340818260645, 0.00019841269841262181842, 0.0013888888888877397697,
                    0.0083333333333341538, 0.041666666666666678976, 0.16666666666666666667, 0.5);
  return q * (r * r) + r;
}
INLINE float t_exp(float x) {
  float c = x < -105.0f ? -105.0f : x;
  c = c > 89.0f ? 89.0f : c;
  float t = c * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
  float n = t - 12582912.0f;
  float r = (c - n * 0.693145752f) - n * 1.42860677e-6f;
  int k = t_bits(t) - 0x4b400000, h = k >> 1;
  float y = (1.0f + t_exp_tail(r)) * t_float((h + 127) << 23);
  return y * t_float((k - h + 127) << 23);
}
INLINE double t_exp(double x) {
  double c = x < -746.0 ? -746.0 : x;
  c = c > 710.0 ? 710.0 : c;
  double t = c * 1.4426950408889634 + 6755399441055744.0;
  double n = t - 6755399441055744.0;
  double r = (c - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  long k = t_bits(t) - 0x4338000000000000L;
  int h = (int)k >> 1;
  double y = (1.0 + t_exp_tail(r)) * t_double((long)(h + 1023) << 52);
  return y * t_double((long)((int)k - h + 1023) << 52);
}
)"},
      {"t_exp_down", {"t_exp", "t_poly"}, R"(
// e^x for x <= 0, as differences to a maximum are; 0 where 2^n is below the normal numbers. The
// polynomial is one term shorter than that of t_exp: relative error 1.1e-8.
INLINE float t_exp_down(float x) {
  float c = x < -88.0f ? -88.0f : x;  // rounds to 2^-127, whose bits are those of 0
  float t = c * 1.44269504f + 12583039.0f;  // rounds; the low bits are the result's exponent
  float n = t - 12583039.0f;
  float r = (c - n * 0.693145752f) - n * 1.42860677e-6f;
  float q = t_poly(r, 0.00139262134663f, 0.00836320297158f, 0.0416665544377f, 0.16666576846f, 0.5f,
                   1.0f);
  return (q * r + 1.0f) * t_float((int)((unsigned)t_bits(t) << 23));
}
INLINE double t_exp_down(double x) { return t_exp(x); }
)"},
      {"t_exp_down16", {"t_bits", "t_poly"}, R"(
// The same for results of 16 bits, to 4e-6: 2^n 2^f with |f| <= 1/2.
INLINE float t_exp_down16(float x) {
  float c = x < -88.0f ? -88.0f : x;
  float t = c * 1.44269504f + 12583039.0f;
  float f = c * 1.44269504f - (t - 12583039.0f);
  float q = t_poly(f, 0.0095701f, 0.05591786f, 0.24024745f, 0.69312181f);
  return (q * f + 0.99999926f) * t_float((int)((unsigned)t_bits(t) << 23));
}
)"},
      {"t_expm1", {"t_exp"}, R"(
// e^x - 1. Below the lower clamp it rounds to -1; 2^k may be one power beyond the largest number.
INLINE float t_expm1(float x) {
  float c = x < -30.0f ? -30.0f : x;
  c = c > 89.0f ? 89.0f : c;
  float t = c * 1.44269504f + 12582912.0f;
  float n = t - 12582912.0f;
  float r = (c - n * 0.693145752f) - n * 1.42860677e-6f;
  int k = t_bits(t) - 0x4b400000, h = k < 127 ? k : 127;
  float s = t_float((h + 127) << 23);
  float y = s * t_exp_tail(r) + (s - 1.0f);
  return __builtin_copysignf(k > h ? y + y : y, x);
}
INLINE double t_expm1(double x) {
  double c = x < -60.0 ? -60.0 : x;
  c = c > 710.0 ? 710.0 : c;
  double t = c * 1.4426950408889634 + 6755399441055744.0;
  double n = t - 6755399441055744.0;
  double r = (c - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  long k = t_bits(t) - 0x4338000000000000L, h = k < 1023 ? k : 1023;
  double s = t_double((h + 1023) << 52);
  double y = s * t_exp_tail(r) + (s - 1.0);
  return __builtin_copysign(k > h ? y + y : y, x);
}
)"},
      {"t_log", {"t_bits", "t_poly"}, R"(
// log x = k ln 2 + log(1+f) with 1+f in [sqrt(1/2), sqrt(2)); log(1+f) = f - f^2/2 + s(f^2/2 + R),
// s = f/(2+f). Polynomial error 1.3e-9 (float), 1.7e-20 (double), relative to R.
INLINE float t_log(float x) {
  float y = x < 1.17549435e-38f ? x * 33554432.0f : x;
  int b = t_bits(y);
  int k = (b - 0x3f3504f3) >> 23;
  float f = t_float(b - (k << 23)) - 1.0f;
  float s = f / (2.0f + f), z = s * s, h = 0.5f * f * f;
  float q = t_poly(z, 0.233534276037f, 0.285499685913f, 0.40000129427f, 0.666666665451f);
  float e = (float)(x < 1.17549435e-38f ? k - 25 : k);
  float r = e * 0.693145752f - ((h - (s * (h + q * z) + e * 1.42860677e-6f)) - f);
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x < __builtin_inff() ? r : x;  // +inf and NaN
}
INLINE double t_log(double x) {
  double y = x < 2.2250738585072014e-308 ? x * 18014398509481984.0 : x;
  long b = t_bits(y);
  long k = (b - 0x3fe6a09e667f3bcdL) >> 52;
  double f = t_double(b - (k << 52)) - 1.0;
  double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
  double q = t_poly(z, 0.11911140964953425846, 0.11684875777034337673, 0.13335785054380889394,
                    0.15384571714534154042, 0.18181818637598999785, 0.22222222219554103805,
                    0.28571428571436387475, 0.39999999999999991192, 0.66666666666666666668);
  double e = (double)(int)(x < 2.2250738585072014e-308 ? k - 54 : k);
  double r = e * 0.693147180369123816490 -
             ((h - (s * (h + q * z) + e * 1.90821492927058770002e-10)) - f);
  r = x == 0.0 ? -__builtin_inf() : r;
  r = x < 0.0 ? __builtin_nan("") : r;
  return x < __builtin_inf() ? r : x;
}
)"},
      {"t_log1p", {"t_log"}, R"(
// log(1 + x) = log u + (1 + x - u)/u with u = 1 + x rounded.
INLINE float t_log1p(float x) {
  float u = 1.0f + x, lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  float r = t_log(u) + lost / u;
  return __builtin_copysignf(u > 0.0f && u < __builtin_inff() ? r : t_log(u), x);
}
INLINE double t_log1p(double x) {
  double u = 1.0 + x, lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
  double r = t_log(u) + lost / u;
  return __builtin_copysign(u > 0.0 && u < __builtin_inf() ? r : t_log(u), x);
}
)"},
      {"t_tanh", {"t_expm1", "t_poly"}, R"(
// tanh x = m / (m + 2) with m = e^(2|x|) - 1, in float as 2^n 2^f - 1: an error in the product with
// 2/ln 2 matters less, the larger x is. Below 2^-12 x itself is the nearest float.
INLINE float t_tanh(float x) {
  float a = __builtin_fabsf(x);
  a = a > 10.0f ? 10.0f : a;
  float t = a * 2.88539004f + 12583039.0f;  // rounds; the low bits are the exponent of 2^n
  float n = t - 12583039.0f;
  float f = a * 2.88539004f - n;
  float s = t_float((int)((unsigned)t_bits(t) << 23));
  // (2^f - 1)/f, to 8e-9
  float q = t_poly(f, 0.000154531629451f, 0.00133908633647f, 0.00961808255728f, 0.0555035711422f,
                   0.240226507606f, 0.693147188026f);
  float m = s * (q * f) + (s - 1.0f);
  return a < 0x1p-12f ? x : __builtin_copysignf(m / (m + 2.0f), x);
}
INLINE double t_tanh(double x) {
  double a = __builtin_fabs(x);
  a = a > 20.0 ? 20.0 : a;
  double m = t_expm1(2.0 * a);
  return __builtin_copysign(x != x ? x : m / (m + 2.0), x);
}
)"},
      {"t_sigmoid", {"t_exp", "t_poly"}, R"(
// In float, e^-x is infinite where the result would be below the normal numbers, and it is 0.
INLINE float t_sigmoid(float x) {
  float c = x < -89.0f ? -89.0f : x;
  c = c > 88.0f ? 88.0f : c;
  float t = c * -1.44269504f + 12583039.0f;  // rounds; the low bits are the exponent of 2^n
  float n = t - 12583039.0f;
  float r = -n * 1.42860677e-6f - (n * 0.693145752f + c);
  // e^r, to 1.1e-8 (t_exp_down)
  float q = t_poly(r, 0.00139262134663f, 0.00836320297158f, 0.0416665544377f, 0.16666576846f, 0.5f,
                   1.0f);
  return 1.0f / ((q * r + 1.0f) * t_float((int)((unsigned)t_bits(t) << 23)) + 1.0f);
}
INLINE double t_sigmoid(double x) {
  double e = t_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}
)"},
      {"t_erf", {"t_exp_down", "t_poly"}, R"(
// erf x = x P(x^2) below 1 (errors 3e-11, 2e-21). Above, in double, erfc x =
// e^(-x^2) Q((x-2.5)/(x+2.5)) (relative error 5e-19 up to 28), with the rounding error of x^2 put
// back; in float, erfc x = 2^-G(x) up to 4, where erf rounds to 1 (error 5e-8).
INLINE float t_erf_small(float z) {  // erf(x)/x, z = x^2
  float p = t_poly(z, -9.66704457149e-6f, 0.000112659590256f, -0.000848408040554f,
                   0.00522103180786f, -0.0268654307277f, 0.112837824952f, -0.37612638468f);
  return p * z + 1.12837916706f;
}
INLINE double t_erf_small(double z) {
  double p = t_poly(z, -4.2309458242953378173e-12, 8.7090451290531066896e-11,
                    -1.2164560057283450081e-9, 1.4792401209404813002e-8, -1.6364642158167615302e-7,
                    1.6462045441468418937e-6, -0.000014925647567519332125, 0.0001205533290288873541,
                    -0.00085483270219348295955, 0.0052239776254232983087, -0.026866170645129840806,
                    0.11283791670955120236, -0.37612638903183752379);
  return p * z + 1.1283791670955125739;
}
INLINE double t_erfc_large(double x) {
  double a = x > 28.0 ? 28.0 : x;
  double t = (a - 2.5) / (a + 2.5);
  double q = t_poly(t, -6.951484416539366735823e-9, 2.370913600920818235871e-8,
                    -2.341049272862824895495e-9, -4.810010741566571511681e-8,
                    -5.316537632214576780496e-8, 9.042776910080083447e-8,
                    3.872785693798207713533e-7, 7.499622013689749877129e-8,
                    -1.816232135446137058361e-6, -2.298365795336252112712e-6,
                    7.555113098584460724074e-6, 0.00001861457258450246956005,
                    -0.00003418249754194080793072, -0.0001288771851638330399766,
                    0.0002283803945994395607987, 0.0008759154509366183399474,
                    -0.002642365964830888715118, -0.003993701165881323332775,
                    0.03992253907559385704611, -0.1250330523788290279282, 0.2517131932174492452712,
                    -0.3717367339489733533381, 0.2108063640611435806491);
  double hi = t_double(t_bits(a) & ~0x7ffffffL), lo = a - hi;  // hi has 26 bits: hi*hi is exact
  double low = (a + hi) * lo;                                  // a^2 = hi^2 + low
  return t_exp(-hi * hi) * t_exp(-low) * q;
}
INLINE float t_erf(float x) {
  float a = __builtin_fabsf(x);
  a = a > 4.0f ? 4.0f : a;
  float g = t_poly(a, 1.9147970566e-05f, -0.000457243470622f, 0.00495183631552f, -0.0326117928083f,
                   0.149003156177f, 0.922085922834f, 1.6243211889f, 0.0011049569286f);
  float t = 12583039.0f - g;  // rounds; the low bits are the exponent of 2^n
  float f = (12583039.0f - t) - g;
  float q = t_poly(f, 0.00133908633647f, 0.00967603191832f, 0.0555035711422f, 0.240221074853f,
                   0.693147188026f, 1.00000007545f);
  float l = 1.0f - q * t_float((int)((unsigned)t_bits(t) << 23));
  float r = a < 1.0f ? a * t_erf_small(a * a) : l;
  return __builtin_copysignf(r, x);
}
INLINE double t_erf(double x) {
  double a = __builtin_fabs(x), s = a > 1.0 ? 1.0 : a, l = a < 1.0 ? 1.0 : a;
  double r = a < 1.0 ? s * t_erf_small(s * s) : 1.0 - t_erfc_large(l);
  return x != x ? x : __builtin_copysign(r, x);
}
// x (1 + erf(x/sqrt 2)) / 2, without cancellation for negative x. In float, what lies below -|x| is
// e^(-x^2/2) Q((|x|-3)/(|x|+3)), to 2e-8, where that is a normal number.
INLINE float t_gelu(float x) {
  float a = __builtin_fabsf(x);
  a = a > 13.3f ? 13.3f : a;
  float t = (a - 3.0f) / (a + 3.0f);
  float q = t_poly(t, 5.42102320992e-05f, 0.000116136371376f, -0.000339921935639f,
                   -0.000984258691394f, 0.00290469152452f, 0.00613220196594f, -0.046213310897f,
                   0.123225020106f, -0.206402618061f, 0.121513947746f);
  float below = q * t_exp_down(-0.5f * a * a);
  return x * (x < 0 ? below : 1.0f - below);
}
INLINE double t_gelu(double x) {
  double u = x * 0.70710678118654752440;
  double a = __builtin_fabs(u), s = a > 1.0 ? 1.0 : a, l = a < 1.0 ? 1.0 : a;
  double c = t_erfc_large(l);
  double far = u < 0 ? c : 2.0 - c;
  double near = 1.0 + __builtin_copysign(s * t_erf_small(s * s), u);
  return 0.5 * x * (a < 1.0 ? near : far);
}
)"},
      {"t_erfc", {"t_erf"}, R"(
// Up to where it is tiny, as precise as erf near 0; floats in double.
INLINE double t_erfc(double x) {
  double a = __builtin_fabs(x), s = a > 1.0 ? 1.0 : a, l = a < 1.0 ? 1.0 : a;
  double c = t_erfc_large(l);
  double r = a < 1.0 ? 1.0 - x * t_erf_small(s * s) : x < 0 ? 2.0 - c : c;
  return x != x ? x : r;
}
INLINE float t_erfc(float x) { return (float)t_erfc((double)x); }
)"},
      {"t_gelu_tanh", {"t_tanh"}, R"(
INLINE float t_gelu_tanh(float x) {
  float u = 0.797884561f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + t_tanh(u));
}
INLINE double t_gelu_tanh(double x) {
  double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + t_tanh(u));
}
)"},
      {"t_libm", {}, R"(
// Functions of libm have forms for vectors, which loops call: those of glibc's libmvec (exact to 4
// units in the last place), or our own, T_FORMS.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define T_OWN_FORMS
#define T_VECTORS __attribute__((simd("notinbranch")))
#else
#define T_VECTORS
#endif
#ifdef T_LIBMVEC
#define T_LIBM T_VECTORS
#else
#define T_LIBM
#endif
)"},
      {"t_forms", {"t_libm", "t_bits"}, R"(
#define T_VECTOR(type, n) \
  typedef type type##n __attribute__((vector_size(n * sizeof(type)), may_alias));
T_VECTOR(float, 4) T_VECTOR(float, 8) T_VECTOR(float, 16)
T_VECTOR(double, 2) T_VECTOR(double, 4) T_VECTOR(double, 8)
// Whether any element is NaN.
#ifdef T_OWN_FORMS
INLINE int t_none(float4 r) { return __builtin_ia32_movmskps(r != r); }
INLINE int t_none(double2 r) { return __builtin_ia32_movmskpd(r != r); }
#ifdef __AVX2__
INLINE int t_none(float8 r) { return __builtin_ia32_movmskps256(r != r); }
INLINE int t_none(double4 r) { return __builtin_ia32_movmskpd256(r != r); }
#endif
#ifdef __AVX512F__
INLINE int t_none(float16 r) { return __builtin_ia32_cmpps512_mask(r, r, 3, (unsigned short)-1, 4); }
INLINE int t_none(double8 r) { return __builtin_ia32_cmppd512_mask(r, r, 3, (unsigned char)-1, 4); }
#endif
#endif
// F::near of each element, and where that is NaN F::far, which calls libm.
template <class F, class V, class T, int N> INLINE V t_each(V x, V y) {
  alignas(V) T a[N], b[N], r[N];
  *(V*)a = x, *(V*)b = y;
#pragma omp simd
  for (int i = 0; i < N; ++i) r[i] = F::near(a[i], b[i]);
  if (__builtin_expect(t_none(*(V*)r), 0))
    for (int i = 0; i < N; ++i) r[i] = (T)F::far((double)a[i], (double)b[i]);
  return *(V*)r;
}
#define T_FORM(isa, n, type, args, name, F, params, x, y)                                      \
  extern "C" __attribute__((visibility("hidden"))) type##n _ZGV##isa##N##n##args##_##name params \
  { return t_each<F, type##n, type, n>(x, y); }
#define T_FORMS_B(one, name4, name8, F) one(b, 4, float, name4, F) one(b, 2, double, name8, F)
#define T_FORMS_D(one, name4, name8, F) one(d, 8, float, name4, F) one(d, 4, double, name8, F)
#define T_FORMS_E(one, name4, name8, F) one(e, 16, float, name4, F) one(e, 8, double, name8, F)
#define T_OF_ONE(isa, n, type, name, F) T_FORM(isa, n, type, v, name, F, (type##n x), x, x)
#define T_OF_TWO(isa, n, type, name, F) \
  T_FORM(isa, n, type, vv, name, F, (type##n x, type##n y), x, y)
#ifndef T_OWN_FORMS
#define T_FORMS(...)
#elif defined(__AVX512F__)
#define T_FORMS(...) T_FORMS_B(__VA_ARGS__) T_FORMS_D(__VA_ARGS__) T_FORMS_E(__VA_ARGS__)
#elif defined(__AVX2__)
#define T_FORMS(...) T_FORMS_B(__VA_ARGS__) T_FORMS_D(__VA_ARGS__)
#else
#define T_FORMS(...) T_FORMS_B(__VA_ARGS__)
#endif
)"},
      {"t_pow", {"t_exp", "t_log", "t_libm"}, R"(
// x^e for constant e that no product or root expresses; double goes to libm, float through double.
extern "C" double pow(double, double) T_LIBM;
INLINE float t_pow(float x, double e) {
  double l = e * t_log((double)__builtin_fabsf(x));
  float r = (float)t_exp(l);
  float other = x < -3.40282347e38f ? r : __builtin_nanf("");
  return x < 0 ? (e == (double)(long)e ? ((long)e & 1 ? -r : r) : other) : r;
}
INLINE double t_pow(double x, double e) { return pow(x, e); }
)"},
      {"t_power", {"t_exp", "t_log", "t_libm"}, R"(
// x^y with C's special cases; float through double, double by libm.
extern "C" double pow(double, double) T_LIBM;
INLINE float t_power(float x, float y) {
  float a = __builtin_fabsf(x), half = 0.5f * y;
  float r = (float)t_exp((double)y * t_log((double)a));
  float whole = __builtin_floorf(half) != half ? -r : r;  // of odd and even y
  float below = x == 0.0f || x < -3.40282347e38f ? r : __builtin_nanf("");
  below = __builtin_floorf(y) == y ? whole : below;
  below = a == 1.0f && __builtin_fabsf(y) > 3.40282347e38f ? 1.0f : below;
  r = t_bits(x) < 0 ? below : r;
  return y == 0.0f || x == 1.0f ? 1.0f : r;
}
INLINE double t_power(double x, double y) { return pow(x, y); }
)"},
      {"t_mod", {"t_forms"}, R"(
// x - y floor(x/y), of the sign of y; of integers by 0: 0.
extern "C" float fmodf(float, float) T_VECTORS;
extern "C" double fmod(double, double) T_VECTORS;
double t_fmod(double, double) __asm__("fmod");  // which has no other form
// x - y trunc(x/y) is exact where the quotient is small. It may have been rounded up: then it is
// fmod(x, y) - y, of which t_mod makes the same.
struct t_remainder {
  INLINE float near(float x, float y) {
    double q = __builtin_trunc((double)x / y), r = x - q * y;
    bool is = (__builtin_fabs(q) < 0x1p27) & (__builtin_fabsf(y) < __builtin_inff());
    return (float)(is ? r : __builtin_nan(""));
  }
  INLINE double near(double x, double y) {
    double q = __builtin_trunc(x / y), r = __builtin_fma(-q, y, x);
    bool is = (__builtin_fabs(q) < 0x1p52) & (__builtin_fabs(y) < __builtin_inf());
    return is ? r : __builtin_nan("");
  }
  static double far(double x, double y) { return t_fmod(x, y); }
};
T_FORMS(T_OF_TWO, fmodf, fmod, t_remainder)
INLINE double t_mod(double x, double y) {
  double r = fmod(x, y);
  return r == 0.0 ? __builtin_copysign(0.0, y) : (r < 0.0) != (y < 0.0) ? r + y : r;
}
INLINE float t_mod(float x, float y) {
  float r = fmodf(x, y);
  return r == 0.0f ? __builtin_copysignf(0.0f, y) : (r < 0.0f) != (y < 0.0f) ? r + y : r;
}
template <class T> INLINE T t_mod(T x, T y) {
  T d = y == 0 || y == -1 ? 1 : y, r = x % d;
  return r != 0 && (r < 0) != (d < 0) ? r + d : r;
}
)"},
      {"t_atan2", {"t_libm"}, R"(
extern "C" float atan2f(float, float) T_LIBM;
extern "C" double atan2(double, double) T_LIBM;
INLINE float t_atan2(float y, float x) { return atan2f(y, x); }
INLINE double t_atan2(double y, double x) { return atan2(y, x); }
)"},
      {"t_trig", {"t_forms", "t_poly"}, R"(
#ifdef __FMA__
#define T_WAVE T_VECTORS
#else
#define T_WAVE
#endif
// By names that compilers do not know: they make one call of both, which has no form for vectors.
float t_sine_of(float) __asm__("sinf") __attribute__((const)) T_WAVE;
float t_cosine_of(float) __asm__("cosf") __attribute__((const)) T_WAVE;
double t_sine_of(double) __asm__("sin") __attribute__((const)) T_WAVE;
double t_cosine_of(double) __asm__("cos") __attribute__((const)) T_WAVE;
#ifdef __FMA__
double t_libm_sin(double) __asm__("sin");  // which have no other form
double t_libm_cos(double) __asm__("cos");
// x = n pi/2 + r with |r| <= pi/4, the first difference exact; sin or cos of r by the parity of
// n + turn.
// Polynomials: relative error 2e-11 (float), 1.3e-17 (double).
INLINE float t_wave(float x, long turn) {
  float t = x * 0.636619772f + 12582912.0f, n = t - 12582912.0f;
  float a = __builtin_fmaf(-n, 1.57079637f, x);
  float p = n * -4.37113883e-08f, r = a - p;
  float low = ((a - r) - p) - __builtin_fmaf(n, -4.37113883e-08f, -p);  // r + low: the rest
  low += n * 1.71512451e-15f;
  float z = r * r;
  int k = t_bits(t) + (int)turn;
  float s = t_poly(z, 2.72493140547e-6f, -0.000198400820128f, 0.00833333186596f, -0.166666666638f);
  float c = 2.45474372102e-5f;
  c = c * z - 0.00138883006969f;
  c = c * z + 0.0416666646475f;
  float h = 0.5f * z, w = 1.0f - h;
  float y = (k & 1) != 0 ? w + (((1.0f - w) - h) + (z * z * c - r * low)) : r + (s * z * r + low);
  y = t_float(t_bits(y) ^ (k & 2) << 30);
  return __builtin_fabsf(x) < 0x1p16f ? y : __builtin_nanf("");
}
INLINE double t_wave(double x, long turn) {
  double t = x * 0.63661977236758134 + 6755399441055744.0, n = t - 6755399441055744.0;
  double a = __builtin_fma(-n, 1.5707963267948966, x);  // exact
  double p = n * 6.123233995736766e-17, r = a - p;
  double low = ((a - r) - p) - __builtin_fma(n, 6.123233995736766e-17, -p);  // r + low: the rest
  low += n * 1.4973849048591698e-33;
  double z = r * r;
  long k = t_bits(t) + turn;
  double s = t_poly(z, 1.5917848524808261007e-10, -2.5051127944014187575e-8,
                    2.755731608381635861e-6, -0.00019841269836722417756, 0.0083333333333309245621,
                    -0.16666666666666664599);
  double c = t_poly(z, -1.1382456778061305849e-11, 2.0876143827993132496e-9,
                    -2.7557317260008838164e-7, 0.000024801587298743069286,
                    -0.0013888888888887382271, 0.041666666666666665373);
  double h = 0.5 * z, w = 1.0 - h;
  double y = (k & 1) != 0 ? w + (((1.0 - w) - h) + (z * z * c - r * low))
                          : r + (s * z * r + (low - h * low));
  y = t_double(t_bits(y) ^ (k & 2) << 62);
  return __builtin_fabs(x) < 0x1p20 ? y : __builtin_nan("");
}
struct t_sine {
  template <class T> INLINE T near(T x, T) { return x == 0 ? x : t_wave(x, 0); }  // -0 too
  static double far(double x, double) { return t_libm_sin(x); }
};
struct t_cosine {
  template <class T> INLINE T near(T x, T) { return t_wave(x, 1); }
  static double far(double x, double) { return t_libm_cos(x); }
};
T_FORMS(T_OF_ONE, sinf, sin, t_sine)
T_FORMS(T_OF_ONE, cosf, cos, t_cosine)
#endif
INLINE float t_sin(float x) { return t_sine_of(x); }
INLINE double t_sin(double x) { return t_sine_of(x); }
INLINE float t_cos(float x) { return t_cosine_of(x); }
INLINE double t_cos(double x) { return t_cosine_of(x); }
)"},
      {"t_truncate", {}, R"(
// Towards zero; NaN and what is out of range give the least integer, as x86-64's conversions do.
INLINE long t_truncate_long(double x) { return (long)((x >= -0x1p63) & (x < 0x1p63) ? x : -0x1p63); }
INLINE int t_truncate(float x) { return (int)((x >= -0x1p31f) & (x < 0x1p31f) ? x : -0x1p31f); }
INLINE int t_truncate(double x) { return (int)((x > -0x1.00000002p31) & (x < 0x1p31) ? x : -0x1p31); }
)"},
      {"t_wide", {}, R"(
// Quotients and roots of 16 numbers: an approximation, made exact but for a rounding in some 2^20
// by what it leaves over. What is not an ordinary number in the end is computed the long way.
typedef float t_wide __attribute__((vector_size(64), aligned(4), may_alias));
INLINE t_wide t_all(float x) {
  return (t_wide){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
INLINE t_wide t_fma(t_wide a, t_wide b, t_wide c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
}
INLINE bool t_ordinary(t_wide x) {  // neither NaN, zero, subnormal nor infinite
  return __builtin_ia32_fpclassps512_mask(x, 0xbf, (unsigned short)-1) == 0;
}
INLINE t_wide t_divide(t_wide x, t_wide y) {
  const t_wide a = __builtin_ia32_rcp14ps512_mask(y, y, (unsigned short)-1);
  const t_wide r = t_fma(a, t_fma(-y, a, t_all(1)), a), q = x * r;
  const t_wide better = t_fma(t_fma(-q, y, x), r, q);
  return __builtin_expect(t_ordinary(better), 1) ? better : x / y;
}
INLINE t_wide t_root(t_wide x) {
  const t_wide a = __builtin_ia32_rsqrt14ps512_mask(x, x, (unsigned short)-1);
  const t_wide g = x * a, h = a * t_all(0.5f), e = t_fma(-g, h, t_all(0.5f));
  const t_wide r = t_fma(g, e, g);
  const t_wide better = t_fma(t_fma(-r, r, x), t_fma(h, e, h), r);
  if (__builtin_expect(t_ordinary(better), 1)) return better;
  t_wide root;
#pragma omp simd
  for (int l = 0; l < 16; ++l) root[l] = __builtin_sqrtf(x[l]);
  return root;
}
)"},
      {"t_running", {}, R"(
// Running sums of a row, in place: some lanes at a time, each with the sum of those before it.
template <class A, class T> static void t_running(T* x, long n) {
#if __AVX512F__
  enum { W = 8 };
#define BEHIND(k) __builtin_shufflevector(zero, a, 8 - k, 9 - k, 10 - k, 11 - k, 12 - k, 13 - k, 14 - k, 15 - k)
#define LAST __builtin_shufflevector(a, a, 7, 7, 7, 7, 7, 7, 7, 7)
#else
  enum { W = 4 };
#define BEHIND(k) __builtin_shufflevector(zero, a, 4 - k, 5 - k, 6 - k, 7 - k)
#define LAST __builtin_shufflevector(a, a, 3, 3, 3, 3)
#endif
  typedef A v __attribute__((vector_size(W * sizeof(A)), may_alias));
  typedef T t_row __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
  const v zero = {};
  v sum = {};
  long i = 0;
  for (; i + W <= n; i += W) {
    t_row* row = (t_row*)(x + i);
    v a = __builtin_convertvector(*row, v);
    a += BEHIND(1);
    a += BEHIND(2);
    if (W > 4) a += BEHIND(4);
    *row = __builtin_convertvector(a + sum, t_row);
    sum += LAST;
  }
  for (A s = sum[0]; i < n; ++i) x[i] = (T)(s += x[i]);
#undef BEHIND
#undef LAST
}
)"},
      {"t_lanes", {}, R"(
// What the lanes of a vector, kept in an array, add up to; their maximum, minimum, or of bits.
typedef float t_f4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double t_d2 __attribute__((vector_size(16), aligned(8), may_alias));
struct t_add { template <class T> INLINE T of(T a, T b) { return a + b; } };
struct t_most { template <class T> INLINE T of(T a, T b) { return a > b ? a : b; } };
struct t_fewest { template <class T> INLINE T of(T a, T b) { return a < b ? a : b; } };
template <class F, int N> INLINE float t_lanes(const float (&s)[N]) {
  t_f4 x = *(const t_f4*)s;
  for (int i = 4; i < N; i += 4) x = F::of(x, *(const t_f4*)(s + i));
  x = F::of(x, (t_f4)__builtin_shufflevector(x, x, 2, 3, 0, 1));
  x = F::of(x, (t_f4)__builtin_shufflevector(x, x, 1, 0, 3, 2));
  return x[0];
}
template <class F, int N> INLINE double t_lanes(const double (&s)[N]) {
  t_d2 x = *(const t_d2*)s;
  for (int i = 2; i < N; i += 2) x = F::of(x, *(const t_d2*)(s + i));
  return F::of(x[0], x[1]);
}
template <class T, int N> INLINE T t_any(const T (&u)[N]) {
  T r = 0;
  for (int i = 0; i < N; ++i) r |= u[i];
  return r;
}
)"},
      {"t_stream", {}, R"(
// Writes a vector past the cache where that is possible: to memory that is not read again soon.
template <class T, int N> INLINE void t_stream(T* to, const T (&from)[N], long n) {
  typedef T v __attribute__((vector_size(N * sizeof(T)), may_alias));
  if (n == N && ((unsigned long)to & (N * sizeof(T) - 1)) == 0) {
#if defined(__clang__)
    __builtin_nontemporal_store(*(const v*)from, (v*)to);
    return;
#elif defined(__AVX512F__)
    if (N * sizeof(T) == 64) {
      typedef float w __attribute__((vector_size(64), may_alias));
      __builtin_ia32_movntps512((float*)to, *(const w*)from);
      return;
    }
#elif defined(__AVX__)
    if (N * sizeof(T) == 32) {
      typedef float w __attribute__((vector_size(32), may_alias));
      __builtin_ia32_movntps256((float*)to, *(const w*)from);
      return;
    }
#endif
    *(v*)to = *(const v*)from;
    return;
  }
  for (long i = 0; i < n; ++i) to[i] = from[i];
}
// Makes those writes visible to other threads.
INLINE void t_streamed() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}
)"},
      {"t_least", {}, R"(
INLINE long t_least(long a, long b) { return a < b ? a : b; }
)"},
      {"t_transpose", {}, R"(
// to[q*tq + i] = from[i*fi + q] for q < nq, i < ni, in 8 by 8 tiles of words of the size of T's.
template <class T> static void t_transpose(const void* from, long fi, void* to, long tq, long nq, long ni) {
  typedef T t_row __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
  const T* f = (const T*)from;
  T* t = (T*)to;
  long i = 0;
  for (; i + 8 <= ni; i += 8) {
    long q = 0;
    for (; q + 8 <= nq; q += 8) {
      const T* s = f + i * fi + q;
      T* d = t + q * tq + i;
      t_row a0 = *(const t_row*)s, a1 = *(const t_row*)(s + fi), a2 = *(const t_row*)(s + 2 * fi),
            a3 = *(const t_row*)(s + 3 * fi), a4 = *(const t_row*)(s + 4 * fi),
            a5 = *(const t_row*)(s + 5 * fi), a6 = *(const t_row*)(s + 6 * fi),
            a7 = *(const t_row*)(s + 7 * fi);
#define LO(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define HI(x, y) __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
      t_row b0 = LO(a0, a1), b1 = HI(a0, a1), b2 = LO(a2, a3), b3 = HI(a2, a3);
      t_row b4 = LO(a4, a5), b5 = HI(a4, a5), b6 = LO(a6, a7), b7 = HI(a6, a7);
#undef LO
#undef HI
#define LO(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define HI(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
      a0 = LO(b0, b2), a1 = HI(b0, b2), a2 = LO(b1, b3), a3 = HI(b1, b3);
      a4 = LO(b4, b6), a5 = HI(b4, b6), a6 = LO(b5, b7), a7 = HI(b5, b7);
#undef LO
#undef HI
#define LO(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define HI(x, y) __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)
      *(t_row*)d = LO(a0, a4), *(t_row*)(d + tq) = LO(a1, a5);
      *(t_row*)(d + 2 * tq) = LO(a2, a6), *(t_row*)(d + 3 * tq) = LO(a3, a7);
      *(t_row*)(d + 4 * tq) = HI(a0, a4), *(t_row*)(d + 5 * tq) = HI(a1, a5);
      *(t_row*)(d + 6 * tq) = HI(a2, a6), *(t_row*)(d + 7 * tq) = HI(a3, a7);
#undef LO
#undef HI
    }
    for (; q < nq; ++q) {
      for (long j = i; j < i + 8; ++j) t[q * tq + j] = f[j * fi + q];
    }
  }
  for (; i < ni; ++i) {
    for (long q = 0; q < nq; ++q) t[q * tq + i] = f[i * fi + q];
  }
}
)"},
      {"t_index", {}, R"(
// An index into [0, n): negative ones count from the end, and what is still outside is clamped.
INLINE long t_index(long i, long n) {
  i = i < 0 ? i + n : i;
  i = i < 0 ? 0 : i;
  return i < n ? i : n - 1;
}
)"},
  };
  return table;
}

}  // namespace

std::string prelude(const std::set<std::string>& used) {
  // Calls would keep the loops around them from being vectorised.
  const char* const is = "#define INLINE static inline __attribute__((always_inline))\n";
  return used.empty() ? "" : is + prelude_text(cpu_functions(), used);
}

}  // namespace tessera
