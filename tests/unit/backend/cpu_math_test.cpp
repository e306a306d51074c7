// The functions that generated code carries with it, against libm in higher precision, in units of
// the last place, over ordinary, huge, tiny and special arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/arrays.h"
#include "backend/testing.h"
#include "base/rng.h"

namespace tessera {
namespace {

struct Function {
  OpKind kind;
  long double (*reference)(long double);
  double ulps32, ulps64;
  double low, high;  // range of ordinary arguments
};

long double sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
long double silu(long double x) { return x / (1 + std::exp(-x)); }
long double gelu(long double x) { return x * std::erfc(-x / std::sqrt(2.0L)) / 2; }
long double rsqrt(long double x) { return 1 / std::sqrt(x); }

const Function kFunctions[] = {
    {OpKind::Exp, std::exp, 1.5, 1.5, -100, 90},
    {OpKind::Log, std::log, 1.5, 1.5, 0, 1e4},
    {OpKind::Tanh, std::tanh, 3, 3, -12, 12},
    {OpKind::Sigmoid, sigmoid, 3, 3, -80, 80},
    {OpKind::Silu, silu, 3.5, 3.5, -80, 80},
    {OpKind::Erf, std::erf, 3, 3, -5, 5},
    // In the tail, rounding x^2 is amplified.
    {OpKind::Erfc, std::erfc, 1, 8, -6, 9},
    // In gelu's tail, rounding x^2 (and x/sqrt 2, in f64) is amplified.
    {OpKind::Gelu, gelu, 30, 90, -8, 8},
    {OpKind::Sqrt, std::sqrt, 1, 1, 0, 1e6},
    {OpKind::Rsqrt, rsqrt, 2, 2, 1e-3, 1e6},
    {OpKind::Log1p, std::log1p, 2.5, 2.5, -1, 100},
    {OpKind::Expm1, std::expm1, 3, 3, -40, 90},
    {OpKind::Floor, std::floor, 0, 0, -1e6, 1e6},
    {OpKind::Round, std::nearbyint, 0, 0, -1e3, 1e3},
    {OpKind::Sin, std::sin, 0.85, 0.85, -1e4, 1e4},
    {OpKind::Cos, std::cos, 0.85, 0.85, -1e4, 1e4},
};

template <class T> std::vector<T> arguments(const Function& f) {
  Rng rng(5);
  std::vector<T> x;
  for (int i = 0; i < 20000; ++i)
    x.push_back(static_cast<T>(f.low + (f.high - f.low) * rng.unit()));
  for (int i = 0; i < 5000; ++i)
    x.push_back(
        static_cast<T>((rng.unit() - 0.5) * std::ldexp(1.0, -static_cast<int>(rng.below(60)))));
  for (int i = 0; i < 6000; ++i)  // where sines and cosines are 0
    if (const double at = i * std::acos(0.0); at < f.high) x.push_back(static_cast<T>(at));
  using L = std::numeric_limits<T>;
  for (T s : {T(0), L::min(), L::denorm_min(), L::max(), L::infinity(), T(1), L::epsilon(), T(7e4),
              T(1e9), T(1e17), L::min() / 3}) {
    x.push_back(s);
    x.push_back(-s);
  }
  x.push_back(L::quiet_NaN());
  // Not side by side: a vector with one of them may be computed the long way.
  for (size_t i = x.size(); i-- > 1;) std::swap(x[i], x[rng.below(i + 1)]);
  return x;
}

template <class T> void expect_accurate(const Function& f, DType dtype, CpuIsa isa, double limit) {
  const std::vector<T> x = arguments<T>(f);
  Graph g;
  const Type type{dtype, {static_cast<int64_t>(x.size())}};
  g.add_output(g.add(f.kind, {g.add_input(type)}));
  ModuleOptions options;
  options.isa = isa;
  const auto module = Module::compile(g, test_cache(), options);
  std::vector<T> y(x.size());
  const void* in[] = {x.data()};
  void* out[] = {y.data()};
  module->run(in, out);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = f.reference(static_cast<long double>(x[i]));
    const T want = static_cast<T>(exact);
    if (std::isnan(want) || std::isinf(want) || want == 0 || std::isnan(y[i])) {
      // The sign of zero and tiny results that round to zero are free.
      const bool same =
          std::isnan(want)
              ? std::isnan(y[i])
              : y[i] == want || (want == 0 && std::fabs(y[i]) < std::numeric_limits<T>::min());
      EXPECT_TRUE(same) << name(f.kind) << "(" << x[i] << ") is " << y[i] << " instead of " << want
                        << " on " << to_string(isa);
      continue;
    }
    const long double magnitude =
        std::fmax(std::fabs(exact), static_cast<long double>(std::numeric_limits<T>::min()));
    const long double ulp =
        std::ldexp(1.0L, std::ilogb(magnitude)) * std::numeric_limits<T>::epsilon();
    const double error =
        static_cast<double>(std::fabs(static_cast<long double>(y[i]) - exact) / ulp);
    if (error > limit && error > worst) {
      ADD_FAILURE() << name(f.kind) << "(" << x[i] << ") is " << error << " ulp off on "
                    << to_string(isa) << " in " << tessera::name(dtype);
    }
    worst = std::max(worst, error);
  }
  if (std::getenv("TESSERA_TEST_VERBOSE") != nullptr) {
    printf("%-8s %s %-8s %.2f ulp\n", name(f.kind), tessera::name(dtype), to_string(isa), worst);
  }
}

TEST(CpuMath, FewUlps) {
  for (CpuIsa isa : runnable_isas()) {
    for (const Function& f : kFunctions) {
      expect_accurate<float>(f, DType::F32, isa, f.ulps32);
      expect_accurate<double>(f, DType::F64, isa, f.ulps64);
    }
  }
}

// Two operands, against libm: ordinary arguments of every sign, and all pairs of special ones.
template <class T> void expect_like_libm(OpKind kind, DType dtype, CpuIsa isa, double ulps) {
  const std::vector<T> odd = {0,       -0.0f,   1,           -1,           0.5f,  -0.5f,
                              2,       -2,      3,           -3,           7.5f,  T(0.3),
                              T(1e10), T(1e30), T(INFINITY), T(-INFINITY), T(NAN)};
  std::vector<T> x, y;
  for (T a : odd)
    for (T b : odd) x.push_back(a), y.push_back(b);
  Rng rng(6);
  for (int i = 0; i < 5000; ++i) {
    x.push_back(T((rng.unit() - 0.3) * 20));
    y.push_back(T((rng.unit() - 0.5) * 20));
    if (i % 4 == 0) y.back() = std::floor(y.back());
    if (i % 4 == 1) x.back() = y.back() * static_cast<T>(rng.below(1000));  // or a little beside
  }
  for (size_t i = x.size(); i-- > 1;) {
    const size_t j = rng.below(i + 1);
    std::swap(x[i], x[j]), std::swap(y[i], y[j]);
  }
  Graph g;
  const Type type{dtype, {static_cast<int64_t>(x.size())}};
  const TensorId a = g.add_input(type), b = g.add_input(type);
  g.add_output(g.add(kind, {a, b}));
  ModuleOptions options;
  options.isa = isa;
  const auto module = Module::compile(g, test_cache(), options);
  std::vector<T> got(x.size());
  const void* in[] = {x.data(), y.data()};
  void* out[] = {got.data()};
  module->run(in, out);
  for (size_t i = 0; i < x.size(); ++i) {
    T want = 0;
    if (kind == OpKind::Power) want = std::pow(x[i], y[i]);
    if (kind == OpKind::Atan2) want = std::atan2(x[i], y[i]);
    if (kind == OpKind::Mod) {
      want = std::fmod(x[i], y[i]);
      if (want != 0 && (want < 0) != (y[i] < 0)) want += y[i];
    }
    const bool same = std::isnan(want) ? std::isnan(got[i])
                      : std::isinf(want)
                          ? got[i] == want
                          : std::fabs(got[i] - want) <=
                                ulps * std::numeric_limits<T>::epsilon() * std::fabs(want);
    EXPECT_TRUE(same) << name(kind) << "(" << x[i] << ", " << y[i] << ") is " << got[i]
                      << " instead of " << want << " on " << to_string(isa);
  }
}

TEST(CpuMath, FunctionsOfTwo) {
  for (CpuIsa isa : runnable_isas()) {
    for (OpKind kind : {OpKind::Power, OpKind::Mod, OpKind::Atan2}) {
      expect_like_libm<float>(kind, DType::F32, isa, kind == OpKind::Mod ? 0 : 2);
      expect_like_libm<double>(kind, DType::F64, isa, kind == OpKind::Mod ? 0 : 2);
    }
  }
}

// Exponentials of 16-bit programs below their maximum are as good as their type: rounded correctly
// but for a hundredth of a unit.
TEST(CpuMath, ExponentialsOf16Bits) {
  constexpr int kRows = 16, kColumns = 200;
  const Graph g = parse(R"(graph g {
  X = input : f16[16,200]
  Y = kernel X grid[x=1] {
    X = input : f16[16,200]
    x = iter X {} : f16[16,200]
    m = reduce_max x {axes=[1], keepdims=true} : f16[16,1]
    z = sub x, m : f16[16,200]
    e = exp z : f16[16,200]
    o = save e {} : f16[16,200]
    return o
  } : f16[16,200]
  return Y
}
)");
  std::vector<uint16_t> x(kRows * kColumns), y(x.size());
  Rng rng(3);
  for (size_t i = 0; i < x.size(); ++i) {
    const double most = i % 3 == 0 ? 1e-3 : i % 3 == 1 ? 1 : 16;
    x[i] = i % kColumns == 0 ? 0 : float_bits16(DType::F16, float(-most * rng.unit()));
  }
  x[1] = 0xfc00;         // -inf
  x[kColumns] = 0x7e00;  // NaN in row 1
  for (CpuIsa isa : runnable_isas()) {
    ModuleOptions options;
    options.isa = isa;
    const auto module = Module::compile(g, test_cache(), options);
    EXPECT_NE(module->source().find("t_exp_down16("), std::string::npos);
    const std::vector<const void*> in = {x.data()};
    const std::vector<void*> out = {y.data()};
    module->run(in, out);
    const Type type{DType::F16, {Dim(kRows), Dim(kColumns)}};
    const auto reals = [&](const std::vector<uint16_t>& bits) {
      return from_memory(type, reinterpret_cast<const unsigned char*>(bits.data())).reals;
    };
    const std::vector<double> arguments = reals(x), results = reals(y);
    for (size_t i = 0; i < x.size(); ++i) {
      const double got = results[i];
      if (i / kColumns == 1) {
        EXPECT_TRUE(std::isnan(got)) << to_string(isa);
        continue;
      }
      const double want = std::exp(arguments[i]);
      const double unit = std::max(0x1p-24, std::ldexp(1.0, std::ilogb(want + 0x1p-60) - 10));
      EXPECT_LE(std::fabs(got - want), 0.52 * unit) << to_string(isa) << " at " << i;
    }
  }
}

// The bias of one function is allowed once per function, not by the square root of their number.
TEST(CpuMath, LongChainsMayDriftByAUnitEach) {
  for (const OpKind kind : {OpKind::Tanh, OpKind::Sin}) {
    Graph g("chain");
    TensorId t = g.add_input(Type{DType::F32, {Dim(3), Dim(17)}}, "x");
    for (int i = 0; i < 400; i++) t = g.add(kind, {t});
    g.add_output(t);
    expect_right(g, best_isa());
  }
}

}  // namespace
}  // namespace tessera
