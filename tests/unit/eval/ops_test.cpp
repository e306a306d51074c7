// Every operator against formulas written independently, in f64; a test fails when an operator has
// no case here.
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "eval_test_util.h"

namespace tessera {
namespace {

using eval_test::one_op, eval_test::random_array, eval_test::random_inputs;
using D = std::vector<double>;

double erf_series(double x) {  // Taylor series, enough for |x| <= 3
  double term = x, sum = x;
  for (int n = 1; n < 80; ++n) {
    term *= -x * x / n;
    sum += term / (2 * n + 1);
  }
  return sum * 2 / std::sqrt(M_PI);
}

void expect_near(const D& got, const D& want, double tolerance = 1e-13) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << i;
    } else {
      EXPECT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i]))) << i;
    }
  }
}

NDArray run1(OpKind kind, const std::vector<NDArray>& in, Attrs attrs = NoAttrs{}) {
  const Graph g = one_op(kind, in, std::move(attrs));
  const NDArray out = eval(g, in)[0];
  // the same on three threads, and with magnitudes
  ThreadPool pool(3);
  EvalOptions options;
  options.pool = &pool;
  const NDArray again = eval(g, in, options)[0];
  EXPECT_EQ(again.ints, out.ints);
  const WithMagnitude m = eval_with_magnitude(g, in)[0];
  EXPECT_EQ(m.value.ints, out.ints);
  for (size_t i = 0; i < out.reals.size(); ++i) {
    EXPECT_TRUE(again.reals[i] == out.reals[i] || std::isnan(out.reals[i]));
    if (!std::isfinite(out.reals[i])) continue;
    EXPECT_NEAR(m.value.reals[i], out.reals[i], 1e-12 * m.magnitude.reals[i] + 1e-300);
    EXPECT_GE(m.magnitude.reals[i] * (1 + 1e-12), std::abs(out.reals[i]));
  }
  // natively in f32
  std::vector<NDArray> in32 = in;
  bool floats = is_float(out.dtype);
  for (NDArray& a : in32) {
    if (is_float(a.dtype)) a = NDArray::of(DType::F32, a.shape, a.reals);
  }
  if (floats) {
    const Graph g32 = one_op(kind, in32, g.op(g.tensor(g.outputs()[0]).producer).attrs);
    if (g32.type(g32.outputs()[0]).dtype == DType::F32) {
      EvalOptions native;
      native.precision = Precision::Native;
      const NDArray out32 = eval(g32, in32, native)[0];
      const WithMagnitude exact = eval_with_magnitude(g32, in32)[0];
      for (size_t i = 0; i < out.reals.size(); ++i) {
        if (!std::isfinite(exact.value.reals[i]) || std::abs(exact.value.reals[i]) > 1e30) continue;
        EXPECT_NEAR(out32.reals[i], exact.value.reals[i], 4e-6 * exact.magnitude.reals[i] + 1e-30)
            << name(kind);
      }
    }
  }
  return out;
}

void unary(OpKind kind, const std::function<double(double)>& f, D x, Attrs attrs = NoAttrs{}) {
  for (size_t n : {x.size(), size_t(1000)}) {  // more than one run of the interpreter
    D values(n);
    for (size_t i = 0; i < n; ++i) values[i] = x[i % x.size()];
    const NDArray in = NDArray::of(DType::F64, {int64_t(n)}, values);
    D want;
    for (double v : values) want.push_back(f(v));
    expect_near(run1(kind, {in}, attrs).reals, want);
  }
}
void unary_int(OpKind kind, const std::function<int64_t(int64_t)>& f, Attrs attrs = NoAttrs{}) {
  for (DType dtype : {DType::I64, DType::I32, DType::I8, DType::U8}) {
    NDArray in = NDArray::of(dtype, {7}, {-128, -3, -1, 0, 1, 5, 127});
    NDArray out = run1(kind, {in}, attrs);
    for (size_t i = 0; i < 7; ++i)
      EXPECT_EQ(out.ints[i], wrap_to(dtype, f(in.ints[i]))) << name(kind);
  }
}
void binary(OpKind kind, const std::function<double(double, double)>& f, bool boolean = false) {
  const NDArray a = random_array(DType::F64, {3, 1, 5}, 1), b = random_array(DType::F64, {4, 5}, 2);
  NDArray a2 = a;
  a2.reals[3] = b.reals[3];  // an equal pair
  const NDArray out = run1(kind, {a2, b});
  ASSERT_EQ(out.shape, (std::vector<int64_t>{3, 4, 5}));
  D want;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      for (size_t k = 0; k < 5; ++k) want.push_back(f(a2.reals[i * 5 + k], b.reals[j * 5 + k]));
    }
  }
  if (boolean)
    expect_near(D(out.ints.begin(), out.ints.end()), want);
  else
    expect_near(out.reals, want);
}
void binary_int(OpKind kind, const std::function<int64_t(int64_t, int64_t)>& f,
                bool boolean = false) {
  for (DType dtype : {DType::I64, DType::I32, DType::I8, DType::U8}) {
    NDArray a = NDArray::of(dtype, {4, 1}, {-7, 100, 0, 3}),
            b = NDArray::of(dtype, {3}, {-7, 90, 3});
    NDArray out = run1(kind, {a, b});
    for (size_t i = 0; i < 12; ++i) {
      const int64_t v = f(a.ints[i / 3], b.ints[i % 3]);
      EXPECT_EQ(out.ints[i], boolean ? v : wrap_to(dtype, v)) << name(kind) << " " << name(dtype);
    }
  }
}
const D kAll = {-2.5, -1, -0.0, 0, 0.3, 1, 2.75, 20, -20};
const D kPositive = {0, 1e-9, 0.25, 1, 2, 77.5};

// x with axis (of extent n, `inner` elements apart) reduced by f over the column.
D reduced(const NDArray& x, size_t outer, size_t n, size_t inner,
          const std::function<double(const D&)>& f) {
  D out;
  for (size_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < inner; ++i) {
      D column;
      for (size_t k = 0; k < n; ++k) column.push_back(x.reals[(o * n + k) * inner + i]);
      out.push_back(f(column));
    }
  }
  return out;
}
double total(const D& v) {
  double s = 0;
  for (double x : v) s += x;
  return s;
}
void reduction(OpKind kind, const std::function<double(const D&)>& f) {
  for (bool keep : {false, true}) {
    for (auto shape : {std::vector<int64_t>{3, 7, 5}, {2, 300, 200}, {40, 2, 3}}) {
      const NDArray x = random_array(DType::F64, shape, 3);
      const size_t a = size_t(shape[0]), b = size_t(shape[1]), c = size_t(shape[2]);
      NDArray out = run1(kind, {x}, ReduceAttrs{{1}, keep});
      EXPECT_EQ(out.shape, keep ? (std::vector<int64_t>{shape[0], 1, shape[2]})
                                : (std::vector<int64_t>{shape[0], shape[2]}));
      expect_near(out.reals, reduced(x, a, b, c, f));
      expect_near(run1(kind, {x}, ReduceAttrs{{2}, keep}).reals, reduced(x, a * b, c, 1, f));
      expect_near(run1(kind, {x}, ReduceAttrs{{0, 1}, keep}).reals, reduced(x, 1, a * b, c, f));
      expect_near(run1(kind, {x}, ReduceAttrs{{0, 1, 2}, keep}).reals,
                  reduced(x, 1, a * b * c, 1, f), 1e-12);
    }
  }
}

NDArray numbered(std::vector<int64_t> shape) {
  NDArray a = NDArray::zeros(DType::F64, std::move(shape));
  for (size_t i = 0; i < a.reals.size(); ++i) a.reals[i] = double(i + 1);
  return a;
}

D naive_matmul(const NDArray& a, const NDArray& b, size_t m, size_t k, size_t n, size_t a0,
               size_t b0) {
  D out;
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double s = 0;
      for (size_t l = 0; l < k; ++l) s += a.reals[a0 + i * k + l] * b.reals[b0 + l * n + j];
      out.push_back(s);
    }
  }
  return out;
}

// Block-level operators have their own file of tests (blocks_test.cpp); here each is run once.
void block_case(const std::string& body, const D& want) {
  const Graph g = parse(
      "graph t { X = input : f64[5]\n O = kernel X grid[x=2] loops[i=2] { X = input : f64[5]\n" +
      body + "} return O }");
  expect_near(eval(g, {NDArray::of(DType::F64, {5}, {1, 2, 3, 4, 5})})[0].reals, want);
}

// Convolutions by their defining sum, element by element.
void expect_windows(OpKind kind, const std::vector<int64_t>& xs, const std::vector<int64_t>& ws,
                    const ConvAttrs& a) {
  auto values = [](const std::vector<int64_t>& shape, int64_t factor) {
    NDArray v = NDArray::zeros(DType::F64, shape);
    for (size_t i = 0; i < v.reals.size(); ++i) v.reals[i] = double(int64_t(i) * factor % 17 - 8);
    return v;
  };
  const NDArray x = values(xs, 7), w = values(ws, 5);
  const NDArray got = run1(kind, {x, w}, a);
  const bool transposed = kind == OpKind::ConvTranspose;
  const size_t n = xs.size() - 2;
  const int64_t c = xs[1] / a.groups, f = got.shape[1] / a.groups;
  D want(got.reals.size(), 0);
  auto walk = [](const std::vector<int64_t>& shape, auto visit) {
    std::vector<int64_t> at(shape.size(), 0);
    for (;;) {
      visit(at);
      size_t i = shape.size();
      while (i-- > 0 && ++at[i] == shape[i]) at[i] = 0;
      if (i == size_t(-1)) return;
    }
  };
  auto flat = [](const std::vector<int64_t>& shape, const std::vector<int64_t>& at) {
    int64_t i = 0;
    for (size_t d = 0; d < shape.size(); ++d) i = i * shape[d] + at[d];
    return size_t(i);
  };
  // Either way the first axis of the weights [gF+f, c, t] or [gC+c, f, t] is the walked channel.
  const std::vector<int64_t>& walked = transposed ? xs : got.shape;
  const std::vector<int64_t>& other = transposed ? got.shape : xs;
  walk(walked, [&](const std::vector<int64_t>& at) {
    walk(ws, [&](const std::vector<int64_t>& tap) {
      if (tap[0] != at[1]) return;
      std::vector<int64_t> met = at;
      met[1] = at[1] / (transposed ? c : f) * (transposed ? f : c) + tap[1];
      for (size_t d = 0; d < n; ++d) {
        met[2 + d] = at[2 + d] * a.strides[d] + tap[2 + d] * a.dilations[d] - a.low[d];
        if (met[2 + d] < 0 || met[2 + d] >= other[2 + d]) return;
      }
      const auto& i = transposed ? at : met;
      const auto& o = transposed ? met : at;
      want[flat(got.shape, o)] += x.reals[flat(xs, i)] * w.reals[flat(ws, tap)];
    });
  });
  expect_near(got.reals, want);
}

const std::map<OpKind, std::function<void()>>& cases() {
  static const std::map<OpKind, std::function<void()>> table = {
      {OpKind::Input,
       [] {
         Graph g;
         g.add_output(g.add_input({DType::F64, {Dim(2)}}));
         expect_near(eval(g, {NDArray::of(DType::F64, {2}, {4, 5})})[0].reals, {4, 5});
       }},
      {OpKind::Const,
       [] {
         expect_near(run1(OpKind::Const, {},
                          ConstAttrs{Rational::ratio(1, 3), {DType::F64, {Dim(2), Dim(2)}}})
                         .reals,
                     D(4, 1.0 / 3));
         EXPECT_EQ(run1(OpKind::Const, {}, ConstAttrs{Rational(-5), {DType::U8, {Dim(2)}}}).ints,
                   (std::vector<int64_t>{251, 251}));
       }},
      {OpKind::Iota,
       [] {
         EXPECT_EQ(run1(OpKind::Iota, {}, IotaAttrs{1, {DType::I32, {Dim(2), Dim(3)}}}).ints,
                   (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
         expect_near(run1(OpKind::Iota, {}, IotaAttrs{0, {DType::F64, {Dim(2), Dim(3)}}}).reals,
                     {0, 0, 0, 1, 1, 1});
       }},
      {OpKind::Neg,
       [] {
         unary(
             OpKind::Neg, [](double x) { return -x; }, kAll);
         unary_int(OpKind::Neg, [](int64_t x) { return -x; });
       }},
      {OpKind::Abs,
       [] {
         unary(
             OpKind::Abs, [](double x) { return x < 0 ? -x : x; }, kAll);
         unary_int(OpKind::Abs, [](int64_t x) { return x < 0 ? -x : x; });
       }},
      {OpKind::Sign,
       [] {
         unary(
             OpKind::Sign, [](double x) { return x < 0   ? -1
                                                 : x > 0 ? 1
                                                         : 0; }, kAll);
         unary_int(OpKind::Sign, [](int64_t x) { return x < 0 ? -1 : x > 0 ? 1 : 0; });
       }},
      {OpKind::Sqr,
       [] {
         unary(
             OpKind::Sqr, [](double x) { return x * x; }, kAll);
         unary_int(OpKind::Sqr, [](int64_t x) { return x * x; });
       }},
      {OpKind::Sqrt,
       [] {
         unary(
             OpKind::Sqrt, [](double x) { return std::pow(x, 0.5); }, kPositive);
         unary(OpKind::Sqrt, [](double) { return NAN; }, {-1});
       }},
      {OpKind::Rsqrt,
       [] {
         unary(OpKind::Rsqrt, [](double x) { return std::pow(x, -0.5); }, {0.25, 1, 3, 1e6});
       }},
      {OpKind::Exp,
       [] {
         unary(
             OpKind::Exp, [](double x) { return std::pow(M_E, x); }, kAll);
       }},
      {OpKind::Log,
       [] {
         unary(OpKind::Log, [](double x) { return std::log2(x) * M_LN2; }, {0, 1e-9, 1, 3, 1e9});
       }},
      {OpKind::Sin,
       [] {
         unary(
             OpKind::Sin, [](double x) { return 2 * std::sin(x / 2) * std::cos(x / 2); }, kAll);
       }},
      {OpKind::Cos,
       [] {
         unary(
             OpKind::Cos, [](double x) { return 1 - 2 * std::sin(x / 2) * std::sin(x / 2); }, kAll);
       }},
      {OpKind::Erf,
       [] {
         unary(OpKind::Erf, erf_series, {-2, -0.5, 0, 0.3, 1.5});
       }},
      {OpKind::Erfc,
       [] {
         unary(OpKind::Erfc, [](double x) { return 1 - erf_series(x); }, {-2, -0.5, 0, 0.3, 1.5});
       }},
      {OpKind::Custom,
       [] {
         unary(OpKind::Custom, erf_series, {-2, -0.5, 0, 1.5}, CustomAttrs{"e", "erf(x)", ""});
       }},
      {OpKind::Tanh,
       [] {
         unary(
             OpKind::Tanh, [](double x) { return (std::exp(2 * x) - 1) / (std::exp(2 * x) + 1); },
             kAll);
       }},
      {OpKind::Sigmoid,
       [] {
         unary(
             OpKind::Sigmoid, [](double x) { return std::exp(x) / (1 + std::exp(x)); }, kAll);
       }},
      {OpKind::Silu,
       [] {
         unary(
             OpKind::Silu, [](double x) { return x * std::exp(x) / (1 + std::exp(x)); }, kAll);
       }},
      {OpKind::Relu,
       [] {
         unary(
             OpKind::Relu, [](double x) { return x > 0 ? x : 0; }, kAll);
         unary(OpKind::Relu, [](double x) { return x; }, {NAN});
         unary_int(OpKind::Relu, [](int64_t x) { return x > 0 ? x : 0; });
       }},
      {OpKind::Gelu,
       [] {
         unary(OpKind::Gelu, [](double x) { return 0.5 * x * (1 + erf_series(x * M_SQRT1_2)); },
               {-2, -0.5, 0, 0.3, 1.5});
       }},
      {OpKind::GeluTanh,
       [] {
         unary(OpKind::GeluTanh,
               [](double x) {
                 return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
               },
               {-2, -0.5, 0, 0.3, 1.5});
       }},
      {OpKind::Pow,
       [] {
         for (Rational e : {Rational(0), Rational(1), Rational(2), Rational(3), Rational(7),
                            Rational(-1), Rational(-2), Rational::ratio(1, 2),
                            Rational::ratio(-3, 2), Rational::ratio(1, 3), Rational(100)}) {
           unary(
               OpKind::Pow, [&](double x) { return std::pow(x, e.to_double()); },
               {0.25, 0.5, 1, 1.7}, PowAttrs{e});
         }
         unary(
             OpKind::Pow, [](double x) { return x * x * x; }, kAll, PowAttrs{Rational(3)});
         unary_int(
             OpKind::Pow, [](int64_t x) { return x * x * x; }, PowAttrs{Rational(3)});
         unary_int(
             OpKind::Pow, [](int64_t) { return 1; }, PowAttrs{Rational(0)});
       }},
      {OpKind::Floor,
       [] {
         unary(
             OpKind::Floor, [](double x) { return -std::ceil(-x); }, kAll);
         unary(OpKind::Floor, [](double x) { return x; }, {NAN, INFINITY});
       }},
      {OpKind::Round,
       [] {
         NDArray x = NDArray::of(DType::F64, {7}, {-2.5, -1.5, -0.4, 0.5, 1.5, 2.51, 7});
         expect_near(run1(OpKind::Round, {x}).reals, {-2, -2, 0, 0, 2, 3, 7});
       }},
      {OpKind::Log1p,
       [] {
         unary(OpKind::Log1p, [](double x) { return 2 * std::atanh(x / (2 + x)); },
               {-0.9, -1e-9, 0, 1e-12, 0.3, 5, 50});
         unary(OpKind::Log1p, [](double) { return -INFINITY; }, {-1});
         unary(OpKind::Log1p, [](double) { return NAN; }, {-1.5});
       }},
      {OpKind::Expm1,
       [] {
         unary(OpKind::Expm1, [](double x) { return 2 * std::exp(x / 2) * std::sinh(x / 2); },
               {-20, -1, -1e-12, 0, 1e-9, 0.5, 3, 30});
       }},
      {OpKind::Power,
       [] {
         NDArray x = NDArray::of(DType::F64, {7}, {2, 2, 0.25, -2, -2, 0, 9});
         NDArray y = NDArray::of(DType::F64, {7}, {10, -1, 0.5, 3, 0.5, 0, 1.5});
         expect_near(run1(OpKind::Power, {x, y}).reals, {1024, 0.5, 0.5, -8, NAN, 1, 27});
       }},
      {OpKind::Mod,
       [] {
         binary(OpKind::Mod, [](double x, double y) { return x - y * std::floor(x / y); });
         // of the divisor's sign; of integers by zero nothing
         const D x = {7, -7, 7, -7, 0, 5};
         NDArray a = NDArray::of(DType::F64, {6}, x);
         NDArray b = NDArray::of(DType::F64, {6}, {3, 3, -3, -3, 4, INFINITY});
         expect_near(run1(OpKind::Mod, {a, b}).reals, {1, 2, -2, -1, 0, 5});
         NDArray i = NDArray::of(DType::I32, {6}, {7, -7, 7, -7, 5, 3});
         NDArray j = NDArray::of(DType::I32, {6}, {3, 3, -3, -3, 0, -1});
         EXPECT_EQ(run1(OpKind::Mod, {i, j}).ints, (std::vector<int64_t>{1, 2, -2, -1, 0, 0}));
       }},
      {OpKind::Atan2,
       [] {
         binary(OpKind::Atan2, [](double y, double x) {
           const double a = std::atan(y / x);
           return x > 0 ? a : y >= 0 ? a + M_PI : a - M_PI;
         });
       }},
      {OpKind::Not,
       [] {
         EXPECT_EQ(run1(OpKind::Not, {NDArray::of(DType::Bool, {2}, {0, 1})}).ints,
                   (std::vector<int64_t>{1, 0}));
       }},
      {OpKind::Cast,
       [] {
         const NDArray x = NDArray::of(DType::F64, {6}, {-1.9, -0.5, 0, 0.5, 300.7, 2});
         EXPECT_EQ(run1(OpKind::Cast, {x}, CastAttrs{DType::I32}).ints,
                   (std::vector<int64_t>{-1, 0, 0, 0, 300, 2}));
         EXPECT_EQ(run1(OpKind::Cast, {x}, CastAttrs{DType::Bool}).ints,
                   (std::vector<int64_t>{1, 1, 0, 1, 1, 1}));
         const NDArray odd = NDArray::of(DType::F64, {4}, {NAN, 0x1p31, -0x1p31 - 0.5, -0x1p63});
         EXPECT_EQ(run1(OpKind::Cast, {odd}, CastAttrs{DType::I32}).ints,
                   std::vector<int64_t>(4, INT32_MIN));
         EXPECT_EQ(run1(OpKind::Cast, {odd}, CastAttrs{DType::I64}).ints,
                   (std::vector<int64_t>{INT64_MIN, 1LL << 31, INT32_MIN, INT64_MIN}));
         const NDArray i = NDArray::of(DType::I32, {3}, {-1, 0, 300});
         expect_near(run1(OpKind::Cast, {i}, CastAttrs{DType::F64}).reals, {-1, 0, 300});
         EXPECT_EQ(run1(OpKind::Cast, {i}, CastAttrs{DType::U8}).ints,
                   (std::vector<int64_t>{255, 0, 44}));
         EXPECT_EQ(run1(OpKind::Cast, {i}, CastAttrs{DType::Bool}).ints,
                   (std::vector<int64_t>{1, 0, 1}));
         Graph g = one_op(OpKind::Cast, {x}, CastAttrs{DType::F16});
         EvalOptions native;
         native.precision = Precision::Native;
         expect_near(eval(g, {x}, native)[0].reals, {-1.900390625, -0.5, 0, 0.5, 300.75, 2});
       }},
      {OpKind::Add,
       [] {
         binary(OpKind::Add, [](double x, double y) { return x + y; });
         binary_int(OpKind::Add, [](int64_t x, int64_t y) { return x + y; });
       }},
      {OpKind::Sub,
       [] {
         binary(OpKind::Sub, [](double x, double y) { return x - y; });
         binary_int(OpKind::Sub, [](int64_t x, int64_t y) { return x - y; });
       }},
      {OpKind::Mul,
       [] {
         binary(OpKind::Mul, [](double x, double y) { return x * y; });
         binary_int(OpKind::Mul, [](int64_t x, int64_t y) { return x * y; });
       }},
      {OpKind::Div, [] { binary(OpKind::Div, [](double x, double y) { return x / y; }); }},
      {OpKind::Max,
       [] {
         binary(OpKind::Max, [](double x, double y) { return x > y ? x : y; });
         binary_int(OpKind::Max, [](int64_t x, int64_t y) { return x > y ? x : y; });
       }},
      {OpKind::Min,
       [] {
         binary(OpKind::Min, [](double x, double y) { return x < y ? x : y; });
         binary_int(OpKind::Min, [](int64_t x, int64_t y) { return x < y ? x : y; });
       }},
      {OpKind::And,
       [] {
         EXPECT_EQ(run1(OpKind::And, {NDArray::of(DType::Bool, {4}, {0, 0, 1, 1}),
                                      NDArray::of(DType::Bool, {4}, {0, 1, 0, 1})})
                       .ints,
                   (std::vector<int64_t>{0, 0, 0, 1}));
       }},
      {OpKind::Or,
       [] {
         EXPECT_EQ(run1(OpKind::Or, {NDArray::of(DType::Bool, {4}, {0, 0, 1, 1}),
                                     NDArray::of(DType::Bool, {4}, {0, 1, 0, 1})})
                       .ints,
                   (std::vector<int64_t>{0, 1, 1, 1}));
       }},
      {OpKind::Eq,
       [] {
         binary(
             OpKind::Eq, [](double x, double y) { return x == y; }, true);
         binary_int(
             OpKind::Eq, [](int64_t x, int64_t y) { return x == y; }, true);
       }},
      {OpKind::Ne,
       [] {
         binary(
             OpKind::Ne, [](double x, double y) { return x != y; }, true);
         binary_int(
             OpKind::Ne, [](int64_t x, int64_t y) { return x != y; }, true);
       }},
      {OpKind::Lt,
       [] {
         binary(
             OpKind::Lt, [](double x, double y) { return x < y; }, true);
         binary_int(
             OpKind::Lt, [](int64_t x, int64_t y) { return x < y; }, true);
       }},
      {OpKind::Le,
       [] {
         binary(
             OpKind::Le, [](double x, double y) { return x <= y; }, true);
         binary_int(
             OpKind::Le, [](int64_t x, int64_t y) { return x <= y; }, true);
       }},
      {OpKind::Gt,
       [] {
         binary(
             OpKind::Gt, [](double x, double y) { return x > y; }, true);
         binary_int(
             OpKind::Gt, [](int64_t x, int64_t y) { return x > y; }, true);
       }},
      {OpKind::Ge,
       [] {
         binary(
             OpKind::Ge, [](double x, double y) { return x >= y; }, true);
         binary_int(
             OpKind::Ge, [](int64_t x, int64_t y) { return x >= y; }, true);
       }},
      {OpKind::Where,
       [] {
         const NDArray c = NDArray::of(DType::Bool, {2, 1}, {1, 0});
         expect_near(run1(OpKind::Where, {c, NDArray::of(DType::F64, {3}, {1, 2, 3}),
                                          NDArray::of(DType::F64, {1}, {9})})
                         .reals,
                     {1, 2, 3, 9, 9, 9});
         EXPECT_EQ(run1(OpKind::Where,
                        {c, NDArray::of(DType::I8, {2}, {1, 2}), NDArray::of(DType::I8, {1}, {9})})
                       .ints,
                   (std::vector<int64_t>{1, 2, 9, 9}));
       }},
      {OpKind::Sum,
       [] {
         reduction(OpKind::Sum, total);
         EXPECT_EQ(run1(OpKind::Sum, {NDArray::of(DType::I8, {2, 3}, {100, 100, 1, -5, -6, 7})},
                        ReduceAttrs{{1}, false})
                       .ints,
                   (std::vector<int64_t>{-55, -4}));
       }},
      {OpKind::Mean,
       [] { reduction(OpKind::Mean, [](const D& v) { return total(v) / double(v.size()); }); }},
      {OpKind::ReduceMax,
       [] {
         reduction(OpKind::ReduceMax,
                   [](const D& v) { return *std::max_element(v.begin(), v.end()); });
         EXPECT_EQ(run1(OpKind::ReduceMax, {NDArray::of(DType::I8, {2, 2}, {-7, -9, 3, 4})},
                        ReduceAttrs{{1}, false})
                       .ints,
                   (std::vector<int64_t>{-7, 4}));
       }},
      {OpKind::ReduceMin,
       [] {
         reduction(OpKind::ReduceMin,
                   [](const D& v) { return *std::min_element(v.begin(), v.end()); });
         EXPECT_EQ(run1(OpKind::ReduceMin, {NDArray::of(DType::I8, {2, 2}, {-7, -9, 3, 4})},
                        ReduceAttrs{{0}, false})
                       .ints,
                   (std::vector<int64_t>{-7, -9}));
       }},
      {OpKind::Cumsum,
       [] {
         expect_near(run1(OpKind::Cumsum, {numbered({2, 3})}, AxisAttrs{1}).reals,
                     {1, 3, 6, 4, 9, 15});
         expect_near(run1(OpKind::Cumsum, {numbered({2, 3})}, AxisAttrs{0}).reals,
                     {1, 2, 3, 5, 7, 9});
       }},
      {OpKind::Matmul,
       [] {
         const NDArray a = random_array(DType::F64, {13, 37}, 5),
                       b = random_array(DType::F64, {37, 21}, 6);
         expect_near(run1(OpKind::Matmul, {a, b}).reals, naive_matmul(a, b, 13, 37, 21, 0, 0));
         const NDArray x = random_array(DType::F64, {3, 1, 4, 5}, 7),
                       y = random_array(DType::F64, {2, 5, 6}, 8);
         const NDArray z = run1(OpKind::Matmul, {x, y});
         ASSERT_EQ(z.shape, (std::vector<int64_t>{3, 2, 4, 6}));
         for (size_t i = 0; i < 6; ++i) {
           expect_near(D(z.reals.begin() + long(i * 24), z.reals.begin() + long(i * 24 + 24)),
                       naive_matmul(x, y, 4, 5, 6, i / 2 * 20, i % 2 * 30));
         }
         EXPECT_EQ(run1(OpKind::Matmul, {NDArray::of(DType::I8, {1, 2}, {100, 3}),
                                         NDArray::of(DType::I8, {2, 1}, {2, 5})})
                       .ints,
                   (std::vector<int64_t>{wrap_to(DType::I8, 215)}));
       }},
      {OpKind::ConcatMatmul,
       [] {
         const NDArray w = random_array(DType::F64, {3, 4}, 1),
                       x = random_array(DType::F64, {3, 5}, 2),
                       y = random_array(DType::F64, {4, 6}, 3),
                       z = random_array(DType::F64, {5, 6}, 4);
         D want = naive_matmul(w, y, 3, 4, 6, 0, 0), more = naive_matmul(x, z, 3, 5, 6, 0, 0);
         for (size_t i = 0; i < want.size(); ++i) want[i] += more[i];
         expect_near(run1(OpKind::ConcatMatmul, {w, x, y, z}).reals, want);
       }},
      {OpKind::Transpose,
       [] {
         const NDArray out = run1(OpKind::Transpose, {numbered({2, 3, 4})}, PermAttrs{{2, 0, 1}});
         ASSERT_EQ(out.shape, (std::vector<int64_t>{4, 2, 3}));
         for (size_t i = 0; i < 4; ++i) {
           for (size_t j = 0; j < 2; ++j) {
             for (size_t k = 0; k < 3; ++k)
               EXPECT_EQ(out.reals[(i * 2 + j) * 3 + k], double(j * 12 + k * 4 + i + 1));
           }
         }
       }},
      {OpKind::Reshape,
       [] {
         const NDArray x = numbered({2, 3, 4});
         EXPECT_EQ(run1(OpKind::Reshape, {x}, ShapeAttrs{{Dim(4), Dim(6)}}).reals, x.reals);
         // of a transposed tensor, which needs a copy
         Graph g = parse("graph t { X = input : f64[2,3]\n T = transpose X {perm=[1,0]}\n R = "
                         "reshape T {shape=[2,3]}\n return R }");
         expect_near(eval(g, {numbered({2, 3})})[0].reals, {1, 4, 2, 5, 3, 6});
       }},
      {OpKind::Broadcast,
       [] {
         expect_near(
             run1(OpKind::Broadcast, {numbered({2, 1})}, ShapeAttrs{{Dim(2), Dim(2), Dim(3)}})
                 .reals,
             {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2});
       }},
      {OpKind::Unsqueeze,
       [] {
         EXPECT_EQ(run1(OpKind::Unsqueeze, {numbered({2, 3})}, AxesAttrs{{0, 2}}).shape,
                   (std::vector<int64_t>{1, 2, 1, 3}));
       }},
      {OpKind::Squeeze,
       [] {
         EXPECT_EQ(run1(OpKind::Squeeze, {numbered({1, 2, 1, 3})}, AxesAttrs{{0, 2}}).shape,
                   (std::vector<int64_t>{2, 3}));
       }},
      {OpKind::Repeat,
       [] {
         expect_near(run1(OpKind::Repeat, {numbered({2, 2})}, RepeatAttrs{{2, 3}}).reals,
                     {1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4, 1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4});
       }},
      {OpKind::Concat,
       [] {
         expect_near(run1(OpKind::Concat, {numbered({2, 1}), numbered({2, 2})}, AxisAttrs{1}).reals,
                     {1, 1, 2, 2, 3, 4});
       }},
      {OpKind::Stack,
       [] {
         expect_near(run1(OpKind::Stack, {numbered({2}), numbered({2})}, AxisAttrs{1}).reals,
                     {1, 1, 2, 2});
       }},
      {OpKind::Slice,
       [] {
         expect_near(
             run1(OpKind::Slice, {numbered({4, 5})}, SliceAttrs{{1, 0}, {4, 5}, {2, 3}}).reals,
             {6, 9, 16, 19});
       }},
      {OpKind::Pad,
       [] {
         expect_near(
             run1(OpKind::Pad, {numbered({1, 2})}, PadAttrs{{1, 0}, {0, 2}, Rational::ratio(1, 2)})
                 .reals,
             {0.5, 0.5, 0.5, 0.5, 1, 2, 0.5, 0.5});
       }},
      {OpKind::Triu,
       [] {
         expect_near(run1(OpKind::Triu, {numbered({2, 3})}, DiagonalAttrs{0}).reals,
                     {1, 2, 3, 0, 5, 6});
         expect_near(run1(OpKind::Triu, {numbered({3, 2})}, DiagonalAttrs{-1}).reals,
                     {1, 2, 3, 4, 0, 6});
         expect_near(run1(OpKind::Triu, {numbered({2, 2})}, DiagonalAttrs{5}).reals, {0, 0, 0, 0});
       }},
      {OpKind::Tril,
       [] {
         expect_near(run1(OpKind::Tril, {numbered({2, 3})}, DiagonalAttrs{0}).reals,
                     {1, 0, 0, 4, 5, 0});
         expect_near(run1(OpKind::Tril, {numbered({2, 3})}, DiagonalAttrs{1}).reals,
                     {1, 2, 0, 4, 5, 6});
       }},
      {OpKind::Gather,
       [] {
         const NDArray i = NDArray::of(DType::I64, {2}, {2, -3});
         expect_near(run1(OpKind::Gather, {numbered({2, 3}), i}, AxisAttrs{1}).reals, {3, 1, 6, 4});
         EXPECT_EQ(run1(OpKind::Gather, {numbered({3, 2}), NDArray::of(DType::I32, {1, 2}, {1, 1})},
                        AxisAttrs{0})
                       .shape,
                   (std::vector<int64_t>{1, 2, 2}));
         EXPECT_THROW(run1(OpKind::Gather, {numbered({2, 3}), NDArray::of(DType::I64, {1}, {3})},
                           AxisAttrs{1}),
                      Error);
       }},
      {OpKind::Conv,
       [] {
         // stride 2, dilation 2, unequal padding; x padded is 0 1 2 3 4 5 0 0
         expect_near(run1(OpKind::Conv,
                          {numbered({1, 1, 5}), NDArray::of(DType::F64, {1, 1, 2}, {1, 10})},
                          ConvAttrs{{2}, {2}, {1}, {2}})
                         .reals,
                     {20, 42, 4});
         expect_windows(OpKind::Conv, {2, 4, 5, 6}, {6, 2, 3, 2},
                        ConvAttrs{{2, 1}, {1, 2}, {1, 0}, {2, 1}, 2});
         expect_windows(OpKind::Conv, {1, 2, 3, 4, 5}, {3, 2, 2, 3, 2},
                        ConvAttrs{{1, 2, 2}, {2, 1, 1}, {1, 1, 0}, {0, 1, 1}});
         const NDArray narrow = run1(
             OpKind::Conv,
             {NDArray::of(DType::I8, {1, 1, 1}, {100}), NDArray::of(DType::I8, {1, 1, 1}, {2})},
             ConvAttrs{});
         EXPECT_EQ(narrow.ints, (std::vector<int64_t>{-56}));
       }},
      {OpKind::ConvTranspose,
       [] {
         expect_near(run1(OpKind::ConvTranspose,
                          {numbered({1, 1, 2}), NDArray::of(DType::F64, {1, 1, 3}, {1, 10, 100})},
                          ConvAttrs{{2}, {1}, {0}, {0}})
                         .reals,
                     {1, 10, 102, 20, 200});
         expect_windows(OpKind::ConvTranspose, {2, 4, 3, 4}, {4, 3, 3, 2},
                        ConvAttrs{{2, 3}, {2, 1}, {1, 0}, {2, -1}, 2});
         expect_windows(OpKind::ConvTranspose, {1, 1, 4}, {1, 2, 2}, ConvAttrs{{1}, {1}, {2}, {0}});
       }},
      {OpKind::PoolSum,
       [] {
         expect_near(
             run1(OpKind::PoolSum, {numbered({2, 4})}, WindowAttrs{{3}, {2}, {1}, {1}, {1}}).reals,
             {3, 9, 11, 21});
       }},
      {OpKind::PoolMax,
       [] {
         expect_near(run1(OpKind::PoolMax, {numbered({3, 3})},
                          WindowAttrs{{2, 2}, {1, 1}, {2, 1}, {0, 1}, {0, 0}})
                         .reals,
                     {7, 8, 9});
         expect_near(
             run1(OpKind::PoolMax, {numbered({1})}, WindowAttrs{{1}, {1}, {1}, {1}, {1}}).reals,
             {-INFINITY, 1, -INFINITY});
         EXPECT_EQ(run1(OpKind::PoolMax, {NDArray::of(DType::I8, {1}, {-5})},
                        WindowAttrs{{1}, {1}, {1}, {1}, {0}})
                       .ints,
                   (std::vector<int64_t>{-128, -5}));
       }},
      {OpKind::Opaque,
       [] {
         Graph g;
         TensorId x = g.add_input({DType::F64, {Dim(2)}});
         OpaqueAttrs a{"f", "1", {{DType::F64, {Dim(2)}}}};
         g.add_output(g.add(OpKind::Opaque, {x}, a));
         const NDArray in = NDArray::of(DType::F64, {2}, {1, 2});
         EXPECT_THROW(eval(g, {in}), Error);
         EvalOptions options;
         options.opaque = [](const Op&, const std::vector<NDArray>& args) {
           NDArray r = args[0];
           for (double& v : r.reals) v += 10;
           return std::vector<NDArray>{r};
         };
         expect_near(eval(g, {in}, options)[0].reals, {11, 12});
       }},
      {OpKind::Kernel,
       [] {
         block_case(
             "x = iter X {imap={x:0}}\n y = neg x\n o = save y {omap={x:0}} : f64[5]\n return o",
             {-1, -2, -3, -4, -5});
       }},
      {OpKind::Iter,
       [] {
         block_case("x = iter X {imap={x:0}, fmap={i:0}}\n o = save x {omap={x:0}, fmap={i:0}} : "
                    "f64[5]\n return o",
                    {1, 2, 3, 4, 5});
       }},
      {OpKind::Accum,
       [] {
         block_case(
             "x = iter X {fmap={i:0}}\n s = sum x {axes=[0], keepdims=true}\n a = accum s\n c = "
             "broadcast a {shape=[3]}\n"
             "y = iter X {imap={x:0}}\n z = mul y, a\n o = save z {omap={x:0}} : f64[5]\n return o",
             {15, 30, 45, 60, 75});
       }},
      {OpKind::AccumRescale,
       [] {
         const double want =
             std::log(std::exp(1) + std::exp(2) + std::exp(3) + std::exp(4) + std::exp(5));
         block_case("x = iter X {fmap={i:0}}\n m = reduce_max x {axes=[0], keepdims=true}\n c = "
                    "sub x, m\n e = exp c\n"
                    "s = sum e {axes=[0], keepdims=true}\n a = accum_rescale s, m\n M = accum m "
                    "{kind=max}\n l = log a\n"
                    "z = add l, M\n y = iter X {imap={x:0}}\n w = sub y, z\n o = save w "
                    "{omap={x:0}} : f64[5]\n return o",
                    {1 - want, 2 - want, 3 - want, 4 - want, 5 - want});
       }},
      {OpKind::Save,
       [] {
         block_case("x = iter X {imap={x:0}}\n o = save x {omap={x:0}} : f64[5]\n return o",
                    {1, 2, 3, 4, 5});
       }},
      {OpKind::Thread,
       [] {
         block_case("x = iter X {imap={x:0}}\n y = thread x { a = input : f64[3]\n b = sqr a\n c = "
                    "add a, b\n return c }\n"
                    "o = save y {omap={x:0}} : f64[5]\n return o",
                    {2, 6, 12, 20, 30});
       }},
  };
  return table;
}

TEST(Ops, EveryOperatorHasACase) {
  for (OpKind kind : all_op_kinds())
    EXPECT_TRUE(cases().count(kind)) << name(kind) << " has no test";
}

class EveryOp : public ::testing::TestWithParam<OpKind> {};
TEST_P(EveryOp, MatchesItsFormula) {
  auto it = cases().find(GetParam());
  ASSERT_NE(it, cases().end());
  it->second();
}
INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, ::testing::ValuesIn(all_op_kinds()),
                         [](const auto& p) { return std::string(name(p.param)); });

TEST(Native, KernelTensorsRoundAndInnerValuesDoNot) {
  // 2048 + 1 is not an f16; a chain inside a kernel keeps f32.
  const NDArray x = NDArray::of(DType::F16, {1}, {2048}), one = NDArray::of(DType::F16, {1}, {1});
  EvalOptions native;
  native.precision = Precision::Native;
  Graph plain = parse("graph p { X = input : f16[1]\n Y = input : f16[1]\n s = add X, Y\n d = sub "
                      "s, X\n return d }");
  EXPECT_EQ(eval(plain, {x, one}, native)[0].reals[0], 0);
  EXPECT_EQ(eval(plain, {x, one})[0].reals[0], 1);
  Graph fused = parse("graph f { X = input : f16[1]\n Y = input : f16[1]\n O = kernel X, Y "
                      "grid[x=1] { X = input : f16[1]\n"
                      "Y = input : f16[1]\n x = iter X {imap={x:0}}\n y = iter Y {imap={x:0}}\n s "
                      "= add x, y\n d = sub s, x\n"
                      "o = save d {omap={x:0}} : f16[1]\n return o }\n return O }");
  EXPECT_EQ(eval(fused, {x, one}, native)[0].reals[0], 1);
  // f32 in f32, f64 in f64
  const double tiny = std::ldexp(1.0, -40);
  Graph f32 =
      parse("graph a { X = input : f32[1]\n Y = input : f32[1]\n s = add X, Y\n return s }");
  EXPECT_EQ(eval(f32, {NDArray::of(DType::F32, {1}, {1}), NDArray::of(DType::F32, {1}, {tiny})},
                 native)[0]
                .reals[0],
            1);
  Graph mixed = parse(
      "graph a { X = input : f32[1]\n Y = input : f32[1]\n s = add X, Y\n a = cast X {dtype=f64}\n"
      "b = cast Y {dtype=f64}\n t = add a, b\n return s, t }");
  auto out = eval(mixed, {NDArray::of(DType::F32, {1}, {1}), NDArray::of(DType::F32, {1}, {tiny})},
                  native);
  EXPECT_EQ(out[0].reals[0], 1);
  EXPECT_EQ(out[1].reals[0], 1 + tiny);
}

TEST(Rounding, MatchesTheFormats) {
  EXPECT_EQ(round_to(DType::F16, 65504), 65504);
  EXPECT_EQ(round_to(DType::F16, 65519.99), 65504);
  EXPECT_EQ(round_to(DType::F16, 65520), INFINITY);
  EXPECT_EQ(round_to(DType::F16, -70000), -INFINITY);
  EXPECT_EQ(round_to(DType::F16, std::ldexp(1, -24)), std::ldexp(1, -24));
  EXPECT_EQ(round_to(DType::F16, std::ldexp(1, -25)), 0);  // tie to even
  EXPECT_EQ(round_to(DType::F16, std::ldexp(1.5, -25)), std::ldexp(1, -24));
  EXPECT_EQ(round_to(DType::F16, 2049), 2048);
  EXPECT_EQ(round_to(DType::F16, 2051), 2052);
  EXPECT_EQ(round_to(DType::BF16, 257), 256);
  EXPECT_EQ(round_to(DType::BF16, 259), 260);
  // bf16 is the upper half of an f32
  for (int i = 0; i < 2000; ++i) {
    const double x = std::ldexp(CounterRng{3}.unit(size_t(i)) - 0.5, i % 250 - 120);
    const float f = float(x);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000u;
    float want;
    std::memcpy(&want, &bits, 4);
    EXPECT_EQ(round_to(DType::BF16, double(f)), double(want));
  }
  EXPECT_TRUE(std::isnan(round_to(DType::F16, NAN)));
  EXPECT_EQ(wrap_to(DType::I8, 200), -56);
  EXPECT_EQ(wrap_to(DType::U8, -1), 255);
}

TEST(Magnitude, IsTheSumOfTerms) {
  Graph g =
      parse("graph m { A = input : f32[2,3]\n B = input : f32[3,2]\n C = matmul A, B\n return C }");
  const NDArray a = random_array(DType::F32, {2, 3}, 1), b = random_array(DType::F32, {3, 2}, 2);
  const auto m = eval_with_magnitude(g, {a, b})[0];
  for (size_t i = 0; i < 2; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      double want = 0;
      for (size_t k = 0; k < 3; ++k) want += std::abs(a.reals[i * 3 + k] * b.reals[k * 2 + j]);
      EXPECT_NEAR(m.magnitude.reals[i * 2 + j], want, 1e-12);
    }
  }
}

// Products carry the magnitudes of one operand at a time, and take the larger sum.
TEST(Magnitude, OfProductsOfComputedOperands) {
  const Graph g = parse(R"(graph g {
  A = input : f32[3,4]
  B = input : f32[3,4]
  C = input : f32[4,2]
  D = input : f32[4,2]
  x = sub A, B
  y = sub C, D
  p = matmul x, C
  q = matmul A, y
  r = matmul x, y
  return p, q, r
}
)");
  const std::vector<NDArray> in = {
      random_array(DType::F32, {3, 4}, 1), random_array(DType::F32, {3, 4}, 2),
      random_array(DType::F32, {4, 2}, 3), random_array(DType::F32, {4, 2}, 4)};
  const auto at = [&](int k, size_t i) { return in[size_t(k)].reals[i]; };
  const auto m = eval_with_magnitude(g, in);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      double p = 0, q = 0, left = 0, right = 0;
      for (size_t k = 0; k < 4; ++k) {
        const double a = at(0, i * 4 + k), b = at(1, i * 4 + k), c = at(2, k * 2 + j),
                     d = at(3, k * 2 + j);
        const double x = std::abs(a) + std::abs(b), y = std::abs(c) + std::abs(d);
        p += x * std::abs(c);
        q += std::abs(a) * y;
        left += x * std::abs(c - d);
        right += std::abs(a - b) * y;
      }
      EXPECT_NEAR(m[0].magnitude.reals[i * 2 + j], p, 1e-12);
      EXPECT_NEAR(m[1].magnitude.reals[i * 2 + j], q, 1e-12);
      EXPECT_NEAR(m[2].magnitude.reals[i * 2 + j], std::max(left, right), 1e-12);
    }
  }
}

TEST(Magnitude, BoundsTheErrorOfNativeEvaluation) {
  const char* programs[] = {"graph a { X = input : f32[8,64]\n m = reduce_max X {axes=[1], "
                            "keepdims=true}\n c = sub X, m\n e = exp c\n"
                            "s = sum e {axes=[1], keepdims=true}\n p = div e, s\n return p }",
                            "graph b { X = input : f32[8,64]\n q = sqr X\n s = mean q {axes=[1], "
                            "keepdims=true}\n r = rsqrt s\n y = mul X, r\n"
                            "t = gelu y\n return t }",
                            "graph c { X = input : f32[8,64]\n a = sin X\n b = cos X\n c = mul a, "
                            "b\n d = cumsum c {axis=1}\n return d }"};
  EvalOptions native;
  native.precision = Precision::Native;
  for (const char* text : programs) {
    const Graph g = parse(text);
    for (double scale : {1.0, 30.0}) {
      const auto in = random_inputs(g, 5, -scale, scale);
      const auto got = eval(g, in, native);
      const auto exact = eval_with_magnitude(g, in);
      for (size_t i = 0; i < got[0].reals.size(); ++i) {
        EXPECT_LE(std::abs(got[0].reals[i] - exact[0].value.reals[i]),
                  8 * 6e-8 * std::sqrt(64) * exact[0].magnitude.reals[i]);
      }
    }
  }
}

// However often an element that was taken for another is copied, it stays that.
TEST(Eval, SubstitutesOnce) {
  const Graph g = parse("graph a { X = input : f64[4]\n y = neg X\n a = reshape y {shape=[2,2]}\n "
                        "b = reshape a {shape=[4]}\n return y, b }");
  NDArray x = NDArray::zeros(DType::F64, {4});
  x.reals = {1.25, -2.5, 7, 0.75};
  EvalOptions options;
  options.supposed = {{{1.25}, 2.5}, {{0.75, 2.5}, 7}, {{7}, 3}};
  const std::vector<NDArray> found = eval(g, {x}, options);
  EXPECT_EQ(found[0].reals, (std::vector<double>{-2.5, 2.5, -7, -7}));
  EXPECT_EQ(found[1].reals, found[0].reals);
  options.supposed = {{{1, 2, 3, 4, 5}, 100}, {{0.75 * (1 + 1e-12)}, NAN}};
  x.reals = {3 * (1 - 5e-12), 3 * (1 - 5e-11), -4, 0.75};
  const std::vector<double> others = eval(g, {x}, options)[1].reals;
  EXPECT_EQ(others[0], -100);
  EXPECT_EQ(others[1], -x.reals[1]);
  EXPECT_EQ(others[2], 100);
  EXPECT_TRUE(std::isnan(others[3]));
}

TEST(Eval, RejectsWrongInputs) {
  Graph g = parse("graph a { X = input : f32[2]\n y = neg X\n return y }");
  EXPECT_THROW(eval(g, {}), Error);
  EXPECT_THROW(eval(g, {NDArray::zeros(DType::F64, {2})}), Error);
  EXPECT_THROW(eval(g, {NDArray::zeros(DType::F32, {3})}), Error);
}

}  // namespace
}  // namespace tessera
