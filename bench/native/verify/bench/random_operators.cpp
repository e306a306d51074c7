// Random operators at kernel level, tame ones.
#include "base/check.h"
#include "verify/bench/random_generator.h"

namespace tessera::random_programs {

bool Generator::step() {
  switch (pick(26)) {
  case 25: return heads();
  case 0:
  case 1:
  case 2: return arithmetic();
  case 3:
  case 4: return division_or_extremum();
  case 5:
  case 6:
  case 7: return unary();
  case 8: return root_or_exp();
  case 9: return activation();
  case 10: return selection();
  case 11:
  case 12: return reduction();
  case 13:
  case 14: return product();
  case 15: return movement();
  case 16: return movement();
  case 17: return slice_or_pad();
  case 18: return join();
  case 19: return mask();
  case 20: return gather();
  case 21: return constant_step();
  case 22: return softmax_like();
  case 23: return norm_like();
  case 24: return moments();
  }
  unreachable("step");
}

bool Generator::arithmetic() {
  TensorId x = real(), y = partner(x);
  OpKind kind = one_of({OpKind::Add, OpKind::Sub, OpKind::Mul});
  if (kind == OpKind::Sub && x == y) return false;
  TensorId t = emit(kind, {x, y});
  if (kind == OpKind::Mul)
    fact(t).size = fact(x).size + fact(y).size;
  else
    fact(t).size++;
  return keep(t);
}

bool Generator::division_or_extremum() {
  TensorId x = real(), y = partner(x);
  if (x == y) return false;
  if (rng_.chance(0.5)) {
    if (fact(x).order || fact(y).order) return false;
    return keep(emit(one_of({OpKind::Max, OpKind::Min}), {x, y}));
  }
  TensorId t = emit(OpKind::Div, {x, rng_.chance(0.7) ? positive(y) : y});
  fact(t).size += 2;
  return keep(t);
}

bool Generator::unary() {
  TensorId x = real();
  OpKind kind = one_of({OpKind::Neg, OpKind::Abs, OpKind::Sqr, OpKind::Relu, OpKind::Sign,
                        OpKind::Pow, OpKind::Relu, OpKind::Neg});
  if (fact(x).order && (kind == OpKind::Abs || kind == OpKind::Relu || kind == OpKind::Sign))
    return false;
  if (kind != OpKind::Pow) {
    TensorId t = emit(kind, {x});
    if (kind == OpKind::Sqr) fact(t).size *= 2;
    if (kind == OpKind::Sign) fact(t).bounded = true;
    return keep(t);
  }
  const Rational e = one_of({Rational(2), Rational(3), Rational(-1), Rational(4)});
  TensorId t = emit(kind, {x}, PowAttrs{e});
  fact(t).size = fact(x).size * 4;
  return keep(t);
}

bool Generator::root_or_exp() {
  TensorId x = real();
  switch (pick(4)) {
  case 0: return keep(emit(OpKind::Sqrt, {positive(x)}));
  case 1: {
    TensorId t = emit(OpKind::Rsqrt, {positive(x)});
    fact(t).positive = true;
    return keep(t);
  }
  case 2: {
    if (fact(x).exps > 1 || fact(x).size > 3) x = bounded(x);
    if (fact(x).exps > 1) return false;
    TensorId t = emit(OpKind::Exp, {x});
    fact(t).exps++;
    fact(t).positive = true;
    fact(t).size = 1 << std::min(4, fact(x).size);
    return keep(t);
  }
  default: {
    TensorId t = emit(
        OpKind::Pow, {positive(x)},
        PowAttrs{one_of({Rational::ratio(1, 2), Rational::ratio(-1, 2), Rational::ratio(3, 2)})});
    fact(t).size = 2 * fact(x).size;
    return keep(t);
  }
  }
}

bool Generator::activation() {
  TensorId x = real();
  OpKind kind = one_of({OpKind::Sigmoid, OpKind::Tanh, OpKind::Silu, OpKind::GeluTanh, OpKind::Gelu,
                        OpKind::Erf, OpKind::Erfc, OpKind::Sin, OpKind::Cos, OpKind::Log});
  if (rng_.chance(0.4)) return named_function(x);
  const bool unknown = kind == OpKind::Gelu || kind == OpKind::Erf || kind == OpKind::Erfc ||
                       kind == OpKind::Sin || kind == OpKind::Cos || kind == OpKind::Log;
  if (unknown ? fact(x).unknowns > 1 : fact(x).exps > 0) return false;
  // Every other one of those with a law is a user's, with the same law.
  const bool odd = kind == OpKind::Erf, stated = (odd || kind == OpKind::Cos) && x.index % 2 == 0;
  const CustomAttrs attrs{odd ? "odd" : "even", odd ? "x / (1 + x*x)" : "1 / (1 + x*x)",
                          odd ? "odd" : "even"};
  TensorId t = stated ? emit(OpKind::Custom, {x}, attrs)
                      : emit(kind, {kind == OpKind::Log ? positive(x) : x});
  (unknown ? fact(t).unknowns : fact(t).exps)++;
  fact(t).bounded = kind == OpKind::Sigmoid || kind == OpKind::Tanh || kind == OpKind::Erf ||
                    kind == OpKind::Erfc || kind == OpKind::Sin || kind == OpKind::Cos;
  fact(t).positive = kind == OpKind::Sigmoid;
  if (fact(t).bounded) fact(t).size = kind == OpKind::Erfc ? 2 : 1;
  return keep(t);
}

bool Generator::given(TensorId t) const {
  return g_.producer(t).kind == OpKind::Input || g_.producer(t).kind == OpKind::Const;
}

// The rarer functions. Those that jump take inputs only: on which side of a jump a computed
// number is, is an accident of rounding.
bool Generator::named_function(TensorId x) {
  switch (pick(6)) {
  case 0: {
    x = choose([&](TensorId t) { return is_real(t) && given(t); });
    return keep(emit(one_of({OpKind::Floor, OpKind::Round}), {x}));
  }
  case 1: {
    x = choose([&](TensorId t) { return is_real(t) && given(t); });
    TensorId y = partner(x);
    if (x == y || !given(y))
      y = constant(one_of({Rational(2), Rational(-1), Rational::ratio(3, 4)}), g_.type(x).dtype);
    return keep(emit(OpKind::Mod, {x, y}));
  }
  case 2: {
    if (fact(x).unknowns > 1) return false;
    TensorId t = emit(OpKind::Log1p, {positive(x)});
    fact(t).unknowns++;
    return keep(t);
  }
  case 3: {
    if (fact(x).exps > 0 || fact(x).size > 3) return false;
    TensorId t = emit(OpKind::Expm1, {x});
    fact(t).exps++;
    fact(t).size = 1 << std::min(4, fact(x).size);
    return keep(t);
  }
  case 4: {
    TensorId y = partner(x);
    if (fact(x).exps + fact(y).exps + fact(x).unknowns + fact(y).unknowns > 0) return false;
    const bool sure = rng_.chance(0.5);  // that the base is positive, from its form alone
    x = sure ? emit(OpKind::Exp, {bounded(x)}) : positive(x);
    TensorId t = emit(OpKind::Power, {x, bounded(y)});
    fact(t).exps += sure ? 2 : 1;
    fact(t).unknowns++;
    fact(t).size = 2 * fact(x).size;
    return keep(t);
  }
  default: {
    TensorId y = partner(x);
    if (x == y || fact(x).unknowns + fact(y).unknowns > 0) return false;
    TensorId t = emit(OpKind::Atan2, {x, positive(y)});
    fact(t).unknowns++;
    fact(t).bounded = true;
    fact(t).size = 1;
    return keep(t);
  }
  }
}

TensorId Generator::condition() {
  TensorId x = real(), y = partner(x);
  if (x == y || rng_.chance(0.3)) y = constant(Rational(0), g_.type(x).dtype);
  // Equality of computed reals is an accident of rounding; of inputs it is a question.
  OpKind kind = one_of({OpKind::Lt, OpKind::Le, OpKind::Gt, OpKind::Ge});
  if (given(x) && given(y) && rng_.chance(0.4)) kind = one_of({OpKind::Eq, OpKind::Ne});
  TensorId c = emit(kind, {x, y});
  switch (pick(6)) {
  case 0: return emit(OpKind::Not, {c});
  case 1: {
    TensorId d = emit(OpKind::Gt, {x, constant(Rational(1), g_.type(x).dtype)});
    return emit(one_of({OpKind::And, OpKind::Or}), {c, d});
  }
  default: return c;
  }
}

bool Generator::selection() {
  TensorId c = condition();
  if (rng_.chance(0.2)) return keep(emit(OpKind::Cast, {c}, CastAttrs{o_.dtype}));
  TensorId x =
      choose([&](TensorId t) { return is_real(t) && broadcast(shape(t), shape(c)).has_value(); });
  TensorId y = partner(x);
  if (rng_.chance(0.4) || x == y)
    y = constant(one_of({Rational(0), Rational(1)}), g_.type(x).dtype);
  return keep(emit(OpKind::Where, {c, x, y}));
}

bool Generator::reduction() {
  TensorId x = real_of_rank(1);
  if (rng_.chance(0.15)) {
    TensorId t = emit(OpKind::Cumsum, {x}, AxisAttrs{pick(rank(x))});
    fact(t).size += 2;
    return keep(t);
  }
  ReduceAttrs a;
  for (int d = 0; d < rank(x); d++)
    if (rng_.chance(0.5)) a.axes.push_back(d);
  if (a.axes.empty()) a.axes.push_back(pick(rank(x)));
  a.keepdims = rng_.chance(0.6);
  OpKind kind = one_of(
      {OpKind::Sum, OpKind::Mean, OpKind::Sum, OpKind::ReduceMax, OpKind::ReduceMin, OpKind::Mean});
  if ((kind == OpKind::ReduceMax || kind == OpKind::ReduceMin) &&
      (fact(x).order || fact(x).repeats))
    return false;
  TensorId t = emit(kind, {x}, a);
  if (kind == OpKind::Sum) fact(t).size += 2;
  return keep(t);
}

bool Generator::product() {
  TensorId x = real_of_rank(2);
  TensorId y = choose([&](TensorId t) {
    return g_.type(t).dtype == g_.type(x).dtype && rank(t) >= 2 &&
           (shape(t)[shape(t).size() - 2] == shape(x).back() || shape(t).back() == shape(x).back());
  });
  if (!(shape(y)[shape(y).size() - 2] == shape(x).back())) y = transpose_last(y);
  TensorId t = emit(OpKind::Matmul, {x, y});
  fact(t).size = fact(x).size + fact(y).size + 2;
  if (rng_.chance(0.12) && rank(x) == 2 && rank(y) == 2) {
    TensorId u = emit(OpKind::ConcatMatmul, {x, x, y, emit(OpKind::Sqr, {y})});
    fact(u).size = fact(x).size + 2 * fact(y).size + 3;
    return keep(u);
  }
  return keep(t);
}

TensorId Generator::transpose_last(TensorId x) {
  PermAttrs a;
  for (int d = 0; d < rank(x); d++) a.perm.push_back(d);
  std::swap(a.perm[a.perm.size() - 1], a.perm[a.perm.size() - 2]);
  return emit(OpKind::Transpose, {x}, a);
}

TensorId Generator::emit_movement(OpKind kind, TensorId x, Attrs attrs) {
  TensorId t = emit(kind, {x}, std::move(attrs));
  fact(t).positive = fact(x).positive;
  fact(t).bounded = fact(x).bounded;
  return t;
}

bool Generator::movement() {
  switch (pick(6)) {
  case 0: {
    TensorId x = real_of_rank(2);
    PermAttrs a;
    for (int d = 0; d < rank(x); d++) a.perm.push_back(d);
    std::shuffle(a.perm.begin(), a.perm.end(), rng_);
    return keep(emit_movement(OpKind::Transpose, x, a));
  }
  case 1: {  // merge two axes, or flatten
    TensorId x = real_of_rank(2);
    Shape s = shape(x);
    const size_t d = size_t(pick(rank(x) - 1));
    s[d] = Dim(s[d].extent * s[d + 1].extent);
    s.erase(s.begin() + long(d) + 1);
    return keep(emit_movement(OpKind::Reshape, x, ShapeAttrs{s}));
  }
  case 2: {
    TensorId x = real();
    return keep(emit_movement(OpKind::Unsqueeze, x, AxesAttrs{{pick(rank(x) + 1)}}));
  }
  case 3: {
    TensorId x = choose([&](TensorId t) {
      return is_real(t) &&
             std::any_of(shape(t).begin(), shape(t).end(), [](const Dim& d) { return d.is_one(); });
    });
    for (int d = 0; d < rank(x); d++)
      if (shape(x)[size_t(d)].is_one())
        return keep(emit_movement(OpKind::Squeeze, x, AxesAttrs{{d}}));
    return false;
  }
  case 4: {
    TensorId x = real();
    Shape s = shape(x);
    for (Dim& d : s)
      if (d.is_one()) d = Dim(dims_[pick(3)]);
    if (s.size() < 3) s.insert(s.begin(), Dim(dims_[pick(3)]));
    return keep(emit_movement(OpKind::Broadcast, x, ShapeAttrs{s}));
  }
  default: {
    TensorId x = real_of_rank(1);
    RepeatAttrs a;
    for (int d = 0; d < rank(x); d++) a.repeats.push_back(rng_.between(1, 2));
    return keep(emit_movement(OpKind::Repeat, x, a));
  }
  }
}

bool Generator::slice_or_pad() {
  TensorId x = real_of_rank(1);
  if (rng_.chance(0.6)) {
    SliceAttrs a;
    for (const Dim& d : shape(x)) {
      const int64_t start = rng_.between(0, std::max<int64_t>(0, d.extent - 2));
      a.starts.push_back(start);
      a.stops.push_back(rng_.between(start + 1, d.extent));
      a.steps.push_back(rng_.chance(0.2) ? 2 : 1);
    }
    return keep(emit_movement(OpKind::Slice, x, a));
  }
  PadAttrs a;
  for (int d = 0; d < rank(x); d++) {
    a.low.push_back(rng_.between(0, 2));
    a.high.push_back(rng_.between(0, 2));
  }
  a.value = one_of({Rational(0), Rational(0), Rational(1), Rational(-2)});
  return keep(emit(OpKind::Pad, {x}, a));
}

bool Generator::join() {
  TensorId x = real_of_rank(1);
  if (rng_.chance(0.4)) {
    TensorId y = choose([&](TensorId t) { return g_.type(t) == g_.type(x) && t != x; });
    return keep(emit(OpKind::Stack, {x, y}, AxisAttrs{pick(rank(x) + 1)}));
  }
  const int axis = pick(rank(x));
  TensorId y = choose([&](TensorId t) {
    if (g_.type(t).dtype != g_.type(x).dtype || rank(t) != rank(x) || t == x) return false;
    for (int d = 0; d < rank(x); d++)
      if (d != axis && !(shape(t)[size_t(d)] == shape(x)[size_t(d)])) return false;
    return true;
  });
  return keep(emit(OpKind::Concat, {x, y}, AxisAttrs{axis}));
}

// A convolution with weights of constants and rows of the operand, or pooling.
bool Generator::window() {
  TensorId x = real_of_rank(2);
  auto below = [&](int n) { return int64_t(windows_.below(uint64_t(n))); };
  const OpKind kind = std::array{OpKind::Conv, OpKind::ConvTranspose, OpKind::PoolSum,
                                 OpKind::PoolMax}[size_t(below(4))];
  const int64_t n = shape(x).back().extent, size = std::min<int64_t>(n, 1 + below(4));
  const int64_t low = below(2), high = below(2), stride = below(4) == 0 ? 2 : 1;
  if (kind == OpKind::PoolSum || kind == OpKind::PoolMax) {
    if (kind == OpKind::PoolMax && (fact(x).order || fact(x).repeats)) return false;
    WindowAttrs a{{size}, {stride}, {1}, {low}, {high}};
    TensorId t = emit(kind, {x}, a);
    if (kind == OpKind::PoolSum) fact(t).size += 2;
    fact(t).order = fact(t).order || kind == OpKind::PoolMax;
    return keep(t);
  }
  // [rows, columns] as one batch of `rows` channels
  const int64_t rows = shape(x)[shape(x).size() - 2].extent;
  if (rank(x) != 2) return false;
  TensorId image = emit(OpKind::Reshape, {x}, ShapeAttrs{{1, rows, n}});
  const int64_t groups = rows % 2 == 0 && windows_.chance(0.4) ? 2 : 1;
  const int64_t filters = 1 + below(3);
  // weights that differ: 1, 1/2, 1/3 … in order
  const Shape w = kind == OpKind::Conv ? Shape{groups * filters, rows / groups, size}
                                       : Shape{rows, filters, size};
  TensorId count =
      g_.add(OpKind::Iota, {}, IotaAttrs{0, {g_.type(x).dtype, {Dim(num_elements(w))}}});
  fact(count);
  TensorId more = emit(OpKind::Add, {count, constant(Rational(1), g_.type(x).dtype)});
  TensorId weights =
      emit(OpKind::Reshape, {emit(OpKind::Pow, {more}, PowAttrs{Rational(-1)})}, ShapeAttrs{w});
  TensorId t =
      emit(kind, {image, weights}, ConvAttrs{{stride}, {1 + below(2)}, {low}, {high}, groups});
  fact(t).size = fact(x).size + 2;
  return keep(t);
}

// A convolution of images with weights, both inputs: over one or two axes, in groups, strided,
// dilated, of all or some sides padded. Beside padding, x + 1 is not x.
bool Generator::convolution() {
  auto upto = [&](int64_t n) { return 1 + int64_t(windows_.below(uint64_t(n))); };
  const int64_t groups = windows_.chance(0.5) ? 1 : upto(3);
  const int64_t filters = groups * upto(3), channels = groups * upto(4);
  Shape image{Dim(upto(2)), Dim(channels)}, weights{Dim(filters), Dim(channels / groups)};
  ConvAttrs a;
  a.groups = groups;
  for (int64_t axes = upto(2); axes > 0; axes--) {
    image.push_back(Dim(2 + upto(4)));
    weights.push_back(Dim(upto(3)));
    a.strides.push_back(upto(2));
    a.dilations.push_back(upto(2));
    a.low.push_back(upto(3) - 1);
    a.high.push_back(upto(3) - 1);
  }
  TensorId x = g_.add_input({o_.dtype, image}, "image"), w = g_.add_input({o_.dtype, weights}, "w");
  fact(w);
  if (windows_.chance(0.5)) x = emit(OpKind::Add, {x, constant(Rational(1), o_.dtype)});
  TensorId t = emit(OpKind::Conv, {x, w}, a);
  fact(t).size += 4;
  if (windows_.chance(0.3)) t = emit(OpKind::Sum, {t}, ReduceAttrs{{1}, false});
  return keep(t);
}

bool Generator::mask() {
  TensorId x = real_of_rank(2);
  return keep(emit(one_of({OpKind::Triu, OpKind::Tril}), {x}, DiagonalAttrs{rng_.between(-1, 1)}));
}

bool Generator::gather() {
  TensorId x = real_of_rank(1);
  const int axis = pick(rank(x));
  const int64_t n = shape(x)[size_t(axis)].extent;
  // Constant indices start + i, in range for every i.
  const int64_t count = rng_.between(1, n), start = rng_.between(0, n - count);
  TensorId index = g_.add(OpKind::Iota, {}, IotaAttrs{0, {DType::I64, {Dim(count)}}});
  fact(index);
  if (start > 0) index = emit(OpKind::Add, {index, constant(Rational(start), DType::I64)});
  return keep(emit(OpKind::Gather, {x, index}, AxisAttrs{axis}));
}

bool Generator::constant_step() {
  TensorId x = real();
  if (rng_.chance(0.15) && rank(x) >= 1) {
    TensorId i = g_.add(OpKind::Iota, {}, IotaAttrs{pick(rank(x)), g_.type(x)});
    fact(i).size = 3;
    return keep(emit(one_of({OpKind::Add, OpKind::Mul}), {x, i}));
  }
  const Rational c =
      one_of({Rational(2), Rational(3), Rational::ratio(1, 2), Rational::ratio(-1, 4),
              Rational::ratio(1, 8), Rational::ratio(1, 10), Rational(-1), Rational(5)});
  TensorId t = emit(one_of({OpKind::Mul, OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div}),
                    {x, constant(c, g_.type(x).dtype)});
  fact(t).size += 2;
  return keep(t);
}

bool Generator::softmax_like() {
  TensorId x = real_of_rank(1);
  if (fact(x).exps > 0 || fact(x).order) return false;
  const ReduceAttrs a{{pick(rank(x))}, true};
  TensorId m = emit(OpKind::ReduceMax, {x}, a);
  TensorId e = emit(OpKind::Exp, {emit(OpKind::Sub, {x, m})});
  TensorId t = emit(OpKind::Div, {e, emit(OpKind::Sum, {e}, a)});
  fact(t).exps = 1;
  fact(t).size = 1;
  fact(t).bounded = true;
  return keep(t);
}

bool Generator::norm_like() {
  TensorId x = real_of_rank(1);
  const DType dtype = g_.type(x).dtype;
  const ReduceAttrs a{{rank(x) - 1}, true};
  TensorId c = rng_.chance(0.5) ? x : emit(OpKind::Sub, {x, emit(OpKind::Mean, {x}, a)});
  TensorId v = emit(OpKind::Mean, {emit(OpKind::Sqr, {c})}, a);
  TensorId s = emit(OpKind::Add, {v, constant(Rational::ratio(1, 100), dtype)});
  TensorId t = rng_.chance(0.5) ? emit(OpKind::Div, {c, emit(OpKind::Sqrt, {s})})
                                : emit(OpKind::Mul, {c, emit(OpKind::Rsqrt, {s})});
  fact(t).bounded = true;
  fact(t).size = 1;
  return keep(t);
}

// The last axis cut into heads, something done to each of them, and merged again.
bool Generator::heads() {
  TensorId x = real_of_rank(2);
  const DType dtype = g_.type(x).dtype;
  Shape whole = shape(x), apart = whole;
  int64_t n = 2;
  while (n < 5 && whole.back().extent % n != 0) n++;
  if (fact(x).size > 6 || whole.back().extent % n != 0 || rank(x) > 3) return false;
  apart.back() = Dim(n);
  apart.push_back(Dim(whole.back().extent / n));
  TensorId h = emit_movement(OpKind::Reshape, x, ShapeAttrs{apart});
  TensorId s = emit(OpKind::Sum, {emit(OpKind::Sqr, {h})}, ReduceAttrs{{rank(x)}, true});
  TensorId one = constant(Rational(1), dtype);
  TensorId y = emit(OpKind::Div, {h, emit(OpKind::Add, {s, one})});
  if (rng_.chance(0.3)) return keep(y);
  TensorId t = emit_movement(OpKind::Reshape, y, ShapeAttrs{whole});
  fact(t).bounded = true;
  return keep(t);
}

// Mean, variance or covariance over some axes, of values far from zero.
bool Generator::moments() {
  TensorId x = real_of_rank(1);
  const DType dtype = g_.type(x).dtype;
  if (fact(x).size > 6) return false;
  if (rng_.chance(0.5)) x = emit(OpKind::Add, {x, constant(Rational(100), dtype)});
  ReduceAttrs a;
  a.keepdims = true;
  for (int d = 0; d < rank(x); d++)
    if (rng_.chance(0.5)) a.axes.push_back(d);
  if (a.axes.empty()) a.axes.push_back(pick(rank(x)));
  auto centred = [&](TensorId y) { return emit(OpKind::Sub, {y, emit(OpKind::Mean, {y}, a)}); };
  const TensorId c = centred(x);
  TensorId other = c;
  if (rng_.chance(0.3)) {
    const TensorId y =
        choose([&](TensorId t) { return g_.type(t) == g_.type(x) && fact(t).size <= 6; });
    other = rng_.chance(0.5) ? y : centred(y);
  }
  TensorId t = emit(OpKind::Mean, {emit(OpKind::Mul, {c, other})}, a);
  fact(t).size = 14;
  if (rng_.chance(0.3)) t = emit(OpKind::Add, {t, emit(OpKind::Mean, {x}, a)});
  return keep(t);
}

}  // namespace tessera::random_programs
