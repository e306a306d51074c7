#include "verify/bench/random_program.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"
#include "ir/validate.h"

namespace tessera {
namespace {

// What the generator knows about a value, to keep programs tame.
struct Facts {
  bool positive = false;  // bounded away from zero
  bool bounded = false;   // |x| of order 1
  int size = 1;           // rough log2 of |x| on ordinary inputs
  int exps = 0;           // nesting of exponentials
  int unknowns = 0;       // nesting of erf, log, sin, ...
  bool order = false;     // made by an extremum: order is only modelled in the field, so that
                          // extrema of extrema are left to the tests that are about them
  bool repeats = false;   // few different values: extrema meet many equal ones
};

class Generator {
 public:
  Generator(uint64_t seed, const RandomProgramOptions& options)
      : rng_(seed), windows_(mix64(seed)), o_(options), g_("random") {}

  Graph run() {
    for (int& d : dims_) d = int(rng_.between(2, o_.max_extent));
    const bool integral = o_.integers && rng_.chance(0.1);
    const int num_inputs = int(rng_.between(1, 4));
    for (int i = 0; i < num_inputs; i++) add_input(integral);
    const int ops = int(rng_.between(o_.min_ops, o_.max_ops));
    bool kernel = !integral && rng_.chance(o_.kernel_chance);
    int added = 0;
    for (int tries = 0; added < ops && tries < 40 * ops; tries++) {
      const size_t before = g_.ops().size();
      if (kernel && added >= ops / 3) {
        for (int k = 0; k < 8 && kernel; k++)
          if (attempt([&] { return fused_kernel(); })) kernel = false, added++;
        kernel = false;
      } else if (attempt([&] { return integral ? integer_step() : step(); })) {
        added++;
      }
      if (g_.ops().size() > before && size_of(last()) > 4096) break;
    }
    // Drawn apart, so that the other programs are what they are without them.
    if (!integral && windows_.chance(o_.window_chance))
      for (int tries = 0; tries < 8; tries++)
        if (attempt([&] { return window(); })) break;
    return finish();
  }

 private:
  // --- helpers
  template <class F> bool attempt(F f) {
    const Graph::Mark mark = g_.mark();
    const size_t facts = facts_.size(), pool = pool_.size();
    try {
      if (f()) return true;
    } catch (const Error&) {  // the random choice did not type-check
    }
    g_.rollback(mark);
    facts_.resize(facts);
    pool_.resize(pool);
    return false;
  }
  int64_t size_of(TensorId t) const { return num_elements(g_.type(t).shape); }
  const Shape& shape(TensorId t) const { return g_.type(t).shape; }
  int rank(TensorId t) const { return g_.type(t).rank(); }
  TensorId last() const { return pool_.back(); }
  Facts& fact(TensorId t) {
    if (facts_.size() <= t.index) facts_.resize(t.index + 1);
    return facts_[t.index];
  }
  int pick(int n) { return int(rng_.below(uint64_t(n))); }
  template <class T> T one_of(std::initializer_list<T> list) {
    return *(list.begin() + pick(int(list.size())));
  }

  TensorId emit(OpKind kind, std::vector<TensorId> in, Attrs attrs = NoAttrs{}) {
    TensorId t = g_.add(kind, in, std::move(attrs));
    Facts f;
    for (TensorId i : in) {
      f.size = std::max(f.size, fact(i).size);
      f.exps = std::max(f.exps, fact(i).exps);
      f.unknowns = std::max(f.unknowns, fact(i).unknowns);
      f.order = f.order || fact(i).order;
      f.repeats = f.repeats || fact(i).repeats;
    }
    f.order = f.order || kind == OpKind::ReduceMax || kind == OpKind::ReduceMin ||
              kind == OpKind::Max || kind == OpKind::Min;
    f.repeats = f.repeats || kind == OpKind::Sign || kind == OpKind::Relu || kind == OpKind::Cast ||
                kind == OpKind::Where || kind == OpKind::Pad || kind == OpKind::Triu ||
                kind == OpKind::Tril || kind == OpKind::Repeat || kind == OpKind::Broadcast;
    fact(t) = f;
    return t;
  }
  bool keep(TensorId t) {
    if (fact(t).size > 24 || size_of(t) > 2000) return false;
    pool_.push_back(t);
    return true;
  }
  TensorId constant(Rational value, DType dtype, Shape shape = {}) {
    TensorId t = g_.add_const(value, {dtype, std::move(shape)});
    fact(t).positive = !value.negative() && !value.is_zero();
    fact(t).bounded = true;
    return t;
  }
  // A tensor of the pool, recent ones preferred; -1 rank and any dtype class allowed by `ok`.
  template <class Ok> TensorId choose(Ok ok) {
    std::vector<TensorId> list;
    for (TensorId t : pool_)
      if (ok(t)) list.push_back(t);
    if (list.empty()) throw Error(ErrorKind::BadInput, "no operand fits");
    if (rng_.chance(0.5))
      return list[list.size() - 1 - rng_.below(std::min<size_t>(2, list.size()))];
    return list[rng_.below(list.size())];
  }
  bool is_real(TensorId t) const { return is_float(g_.type(t).dtype); }
  TensorId real() {
    return choose([&](TensorId t) { return is_real(t); });
  }
  TensorId real_of_rank(int low) {
    return choose([&](TensorId t) { return is_real(t) && rank(t) >= low; });
  }
  TensorId partner(TensorId x) {  // broadcasts with x
    return choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && broadcast(shape(t), shape(x)).has_value();
    });
  }
  TensorId bounded(TensorId x) {
    if (fact(x).bounded) return x;
    TensorId t = emit(one_of({OpKind::Tanh, OpKind::Sigmoid, OpKind::Tanh}), {x});
    fact(t).exps++;
    fact(t).bounded = true;
    fact(t).size = 1;
    return t;
  }
  TensorId positive(TensorId x) {
    if (fact(x).positive) return x;
    TensorId s = emit(OpKind::Sqr, {x});
    TensorId t =
        emit(OpKind::Add,
             {s, constant(one_of({Rational(1), Rational::ratio(1, 100000), Rational::ratio(1, 2)}),
                          g_.type(x).dtype)});
    fact(t).positive = true;
    fact(t).size = 2 * fact(x).size;
    return t;
  }

  void add_input(bool integral) {
    Shape s;
    const int r = rng_.chance(0.6) ? 2 : int(rng_.between(1, 3));
    for (int d = 0; d < r; d++) s.push_back(Dim(dims_[pick(3)]));
    if (r == 2 && rng_.chance(0.25)) s[1] = s[0];
    if (rng_.chance(0.1)) s[size_t(pick(r))] = Dim(1);
    DType dtype =
        integral ? one_of({DType::I64, DType::I32, DType::I8, DType::U8, DType::I32}) : o_.dtype;
    if (integral && !pool_.empty()) dtype = g_.type(pool_[0]).dtype;
    TensorId t = g_.add_input({dtype, s}, "x" + std::to_string(pool_.size()));
    fact(t);
    pool_.push_back(t);
  }

  // --- one random operator at kernel level
  bool step() {
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

  bool arithmetic() {
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
  bool division_or_extremum() {
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
  bool unary() {
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
  bool root_or_exp() {
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
  bool activation() {
    TensorId x = real();
    OpKind kind = one_of({OpKind::Sigmoid, OpKind::Tanh, OpKind::Silu, OpKind::GeluTanh,
                          OpKind::Gelu, OpKind::Erf, OpKind::Sin, OpKind::Cos, OpKind::Log});
    if (rng_.chance(0.4)) return named_function(x);
    const bool unknown = kind == OpKind::Gelu || kind == OpKind::Erf || kind == OpKind::Sin ||
                         kind == OpKind::Cos || kind == OpKind::Log;
    if (unknown ? fact(x).unknowns > 1 : fact(x).exps > 0) return false;
    TensorId t = emit(kind, {kind == OpKind::Log ? positive(x) : x});
    (unknown ? fact(t).unknowns : fact(t).exps)++;
    fact(t).bounded = kind == OpKind::Sigmoid || kind == OpKind::Tanh || kind == OpKind::Erf ||
                      kind == OpKind::Sin || kind == OpKind::Cos;
    fact(t).positive = kind == OpKind::Sigmoid;
    if (fact(t).bounded) fact(t).size = 1;
    return keep(t);
  }
  bool given(TensorId t) const {
    return g_.producer(t).kind == OpKind::Input || g_.producer(t).kind == OpKind::Const;
  }
  // The rarer functions. Those that jump take inputs only: on which side of a jump a computed
  // number is, is an accident of rounding.
  bool named_function(TensorId x) {
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
  TensorId condition() {
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
  bool selection() {
    TensorId c = condition();
    if (rng_.chance(0.2)) return keep(emit(OpKind::Cast, {c}, CastAttrs{o_.dtype}));
    TensorId x =
        choose([&](TensorId t) { return is_real(t) && broadcast(shape(t), shape(c)).has_value(); });
    TensorId y = partner(x);
    if (rng_.chance(0.4) || x == y)
      y = constant(one_of({Rational(0), Rational(1)}), g_.type(x).dtype);
    return keep(emit(OpKind::Where, {c, x, y}));
  }
  bool reduction() {
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
    OpKind kind = one_of({OpKind::Sum, OpKind::Mean, OpKind::Sum, OpKind::ReduceMax,
                          OpKind::ReduceMin, OpKind::Mean});
    if ((kind == OpKind::ReduceMax || kind == OpKind::ReduceMin) &&
        (fact(x).order || fact(x).repeats))
      return false;
    TensorId t = emit(kind, {x}, a);
    if (kind == OpKind::Sum) fact(t).size += 2;
    return keep(t);
  }
  bool product() {
    TensorId x = real_of_rank(2);
    TensorId y = choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && rank(t) >= 2 &&
             (shape(t)[shape(t).size() - 2] == shape(x).back() ||
              shape(t).back() == shape(x).back());
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
  TensorId transpose_last(TensorId x) {
    PermAttrs a;
    for (int d = 0; d < rank(x); d++) a.perm.push_back(d);
    std::swap(a.perm[a.perm.size() - 1], a.perm[a.perm.size() - 2]);
    return emit(OpKind::Transpose, {x}, a);
  }
  TensorId emit_movement(OpKind kind, TensorId x, Attrs attrs) {
    TensorId t = emit(kind, {x}, std::move(attrs));
    fact(t).positive = fact(x).positive;
    fact(t).bounded = fact(x).bounded;
    return t;
  }
  bool movement() {
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
        return is_real(t) && std::any_of(shape(t).begin(), shape(t).end(),
                                         [](const Dim& d) { return d.is_one(); });
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
  bool slice_or_pad() {
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
  bool join() {
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
  bool window() {
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
  bool mask() {
    TensorId x = real_of_rank(2);
    return keep(
        emit(one_of({OpKind::Triu, OpKind::Tril}), {x}, DiagonalAttrs{rng_.between(-1, 1)}));
  }
  bool gather() {
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
  bool constant_step() {
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
  bool softmax_like() {
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
  bool norm_like() {
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
  bool heads() {
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
  bool moments() {
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

  // --- integers: exact modulo 2^w
  bool integer_step() {
    auto any = [&] { return choose([&](TensorId t) { return is_integer(g_.type(t).dtype); }); };
    TensorId x = any();
    switch (pick(9)) {
    case 0:
    case 1:
    case 2: {
      TensorId y = partner(x);
      return keep(
          emit(one_of({OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Max, OpKind::Min}), {x, y}));
    }
    case 3: return keep(emit(one_of({OpKind::Neg, OpKind::Abs, OpKind::Sqr, OpKind::Relu}), {x}));
    case 4: {
      if (rank(x) < 1) return false;
      const ReduceAttrs a{{pick(rank(x))}, rng_.chance(0.5)};
      return keep(emit(one_of({OpKind::Sum, OpKind::ReduceMax, OpKind::Sum}), {x}, a));
    }
    case 5: {
      if (rank(x) != 2) return false;
      return keep(emit(OpKind::Transpose, {x}, PermAttrs{{1, 0}}));
    }
    case 6: {
      TensorId y = partner(x);
      TensorId c = emit(one_of({OpKind::Lt, OpKind::Le, OpKind::Eq, OpKind::Ge}), {x, y});
      return keep(emit(OpKind::Where, {c, x, y}));
    }
    case 7:
      return keep(emit(one_of({OpKind::Add, OpKind::Mul}),
                       {x, constant(Rational(rng_.between(1, 5)), g_.type(x).dtype)}));
    default: {
      if (rank(x) != 2) return false;
      TensorId y = choose([&](TensorId t) {
        return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
      });
      return keep(emit(OpKind::Matmul, {x, y}));
    }
    }
  }

  // --- fused kernels
  struct Arg {
    TensorId outer;
    IterAttrs iter;
  };
  // A loop count or grid size for an extent: often not a divisor, sometimes one too many.
  int64_t parts(int64_t extent) { return rng_.between(1, std::min<int64_t>(extent, 4)); }

  bool fused_kernel() {
    switch (pick(5)) {
    case 4: return two_pass_kernel();
    case 0: return pointwise_kernel();
    case 1: return reduce_kernel();
    case 2: return matmul_kernel();
    default: return online_softmax_kernel();
    }
  }
  TensorId tile(Graph& b, TensorId arg, GridMap imap, LoopMap fmap) {
    return b.add(OpKind::Iter, {arg}, IterAttrs{imap, fmap});
  }
  // A chain of pointwise operators inside the body.
  TensorId chain(Graph& b, TensorId x, int length) {
    const DType dtype = b.type(x).dtype;
    for (int i = 0; i < length; i++) switch (pick(7)) {
      case 0: x = b.add(OpKind::Sqr, {x}); break;
      case 1: x = b.add(OpKind::Relu, {x}); break;
      case 2:
        x = b.add(OpKind::Mul,
                  {x, b.add_const(one_of({Rational(2), Rational::ratio(1, 4), Rational(-3)}),
                                  {dtype, {}})});
        break;
      case 3:
        x = b.add(OpKind::Add,
                  {x, b.add_const(one_of({Rational(1), Rational::ratio(1, 2)}), {dtype, {}})});
        break;
      case 4: x = b.add(OpKind::Neg, {x}); break;
      case 5: x = b.add(OpKind::Mul, {x, x}); break;
      default: x = b.add(OpKind::Abs, {x}); break;
      }
    return x;
  }
  bool finish_kernel(std::vector<TensorId> args, Graph body) {
    Graph probe("probe");  // validate the kernel alone before it joins the program
    std::vector<TensorId> in;
    for (TensorId t : args) in.push_back(probe.add_input(g_.type(t)));
    OpId id = probe.add_graph_op(OpKind::Kernel, in, body);
    for (uint32_t r = 0; r < probe.op(id).num_results; r++)
      probe.add_output(probe.op(id).result(r));
    validate(probe);
    int size = 1, exps = 0;
    for (TensorId t : args) {
      size = std::max(size, fact(t).size);
      exps = std::max(exps, fact(t).exps);
    }
    OpId made = g_.add_graph_op(OpKind::Kernel, args, std::move(body));
    for (uint32_t r = 0; r < g_.op(made).num_results; r++) {
      TensorId t = g_.op(made).result(r);
      fact(t).size = 2 * size + 4;
      fact(t).exps = exps + 1;
      fact(t).order = true;  // bodies have extrema of their own
      pool_.push_back(t);
    }
    return true;
  }
  bool pointwise_kernel() {
    TensorId x = real_of_rank(2);
    if (rank(x) != 2 || fact(x).size > 6) return false;
    TensorId y = choose([&](TensorId t) { return g_.type(t) == g_.type(x); });
    const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
    const bool looped = rng_.chance(0.6);
    Graph b =
        looped ? Graph::block({parts(m)}, {parts(n)}) : Graph::block({parts(m), parts(n)}, {});
    GridMap imap = looped ? GridMap{0, -1, -1} : GridMap{0, 1, -1};
    LoopMap fmap = looped ? LoopMap{1, -1, -1, -1} : kNoLoops;
    TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
    TensorId tx = tile(b, bx, imap, fmap), ty = tile(b, by, imap, fmap);
    TensorId v = b.add(one_of({OpKind::Add, OpKind::Mul, OpKind::Sub, OpKind::Max}),
                       {chain(b, tx, pick(3)), chain(b, ty, pick(2))});
    v = chain(b, v, pick(2));
    b.add_output(b.add(OpKind::Save, {v}, SaveAttrs{imap, fmap, g_.type(x)}));
    return finish_kernel({x, y}, std::move(b));
  }
  bool reduce_kernel() {
    TensorId x = real_of_rank(2);
    if (rank(x) != 2 || fact(x).size > 6) return false;
    const DType dtype = g_.type(x).dtype;
    const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
    Graph b = Graph::block({parts(m)}, {parts(n)});
    TensorId bx = b.add_input(g_.type(x));
    TensorId t = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
    const bool use_max = rng_.chance(0.3);
    TensorId v = chain(b, t, pick(3));
    const ReduceAttrs a{{1}, true};
    TensorId r = b.add(use_max ? OpKind::ReduceMax : OpKind::Sum, {v}, a);
    TensorId acc =
        b.add(OpKind::Accum, {r}, AccumAttrs{use_max ? AccumKind::Max : AccumKind::Sum, {0}});
    if (rng_.chance(0.4)) {  // a second accumulator combined after the loop
      TensorId s = b.add(OpKind::Sum, {b.add(OpKind::Sqr, {t})}, a);
      TensorId acc2 = b.add(OpKind::Accum, {s}, AccumAttrs{AccumKind::Sum, {0}});
      TensorId d =
          b.add(OpKind::Sqrt, {b.add(OpKind::Add, {acc2, b.add_const(Rational(1), {dtype, {}})})});
      acc = b.add(OpKind::Div, {acc, d});
    }
    acc = chain(b, acc, pick(2));
    b.add_output(
        b.add(OpKind::Save, {acc}, SaveAttrs{{0, -1, -1}, kNoLoops, {dtype, {Dim(m), Dim(1)}}}));
    return finish_kernel({x}, std::move(b));
  }
  // Rows scaled by what a first loop over them has folded; sometimes a third loop comes between.
  bool two_pass_kernel() {
    TensorId x = real_of_rank(2);
    if (rank(x) != 2 || fact(x).size > 6) return false;
    const DType dtype = g_.type(x).dtype;
    const int64_t m = shape(x)[0].extent, n = shape(x)[1].extent;
    const bool three = rng_.chance(0.4);
    std::vector<int64_t> loops{parts(n), parts(n)};
    if (three) loops.push_back(parts(n));
    Graph b = Graph::block({parts(m)}, loops);
    TensorId bx = b.add_input(g_.type(x));
    auto over = [&](int loop) {
      LoopMap fmap = kNoLoops;
      fmap[size_t(loop)] = 1;
      return fmap;
    };
    auto folded = [&](TensorId v, int loop) {
      TensorId r = b.add(OpKind::Sum, {v}, ReduceAttrs{{1}, true});
      return b.add(OpKind::Accum, {r}, AccumAttrs{AccumKind::Sum, {loop}});
    };
    TensorId first = folded(chain(b, tile(b, bx, {0, -1, -1}, over(0)), pick(2)), 0);
    TensorId scale = b.add(OpKind::Mul, {first, b.add_const(Rational::ratio(1, n), {dtype, {}})});
    int last = 1;
    if (three) {
      TensorId c = b.add(OpKind::Sub, {tile(b, bx, {0, -1, -1}, over(1)), scale});
      TensorId v = folded(b.add(OpKind::Sqr, {c}), 1);
      scale = b.add(OpKind::Rsqrt,
                    {b.add(OpKind::Add, {v, b.add_const(Rational::ratio(1, 100), {dtype, {}})})});
      last = 2;
    }
    TensorId t = tile(b, bx, {0, -1, -1}, over(last));
    TensorId out = chain(b, b.add(one_of({OpKind::Sub, OpKind::Mul}), {t, scale}), pick(2));
    b.add_output(b.add(OpKind::Save, {out}, SaveAttrs{{0, -1, -1}, over(last), g_.type(x)}));
    return finish_kernel({x}, std::move(b));
  }
  bool matmul_kernel() {
    TensorId x = real_of_rank(2);
    if (rank(x) != 2 || fact(x).size > 6) return false;
    TensorId y = choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
    });
    if (fact(y).size > 6) return false;
    const DType dtype = g_.type(x).dtype;
    const int64_t m = shape(x)[0].extent, k = shape(x)[1].extent, n = shape(y)[1].extent;
    Graph b = Graph::block({parts(m), parts(n)}, {parts(k)});
    TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
    TensorId tx = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
    TensorId ty = tile(b, by, {-1, 1, -1}, {0, -1, -1, -1});
    TensorId p = b.add(OpKind::Matmul, {chain(b, tx, pick(2)), ty});
    TensorId acc = b.add(OpKind::Accum, {p}, AccumAttrs{AccumKind::Sum, {0}});
    if (rng_.chance(0.5)) {
      TensorId s = b.add(OpKind::Sum, {b.add(OpKind::Sqr, {tx})}, ReduceAttrs{{1}, true});
      TensorId acc2 = b.add(OpKind::Accum, {s}, AccumAttrs{AccumKind::Sum, {0}});
      TensorId mean = b.add(OpKind::Mul, {acc2, b.add_const(Rational::ratio(1, k), {dtype, {}})});
      TensorId d =
          b.add(OpKind::Sqrt,
                {b.add(OpKind::Add, {mean, b.add_const(Rational::ratio(1, 100), {dtype, {}})})});
      acc = b.add(OpKind::Div, {acc, d});
    }
    acc = chain(b, acc, pick(2));
    b.add_output(
        b.add(OpKind::Save, {acc}, SaveAttrs{{0, 1, -1}, kNoLoops, {dtype, {Dim(m), Dim(n)}}}));
    return finish_kernel({x, y}, std::move(b));
  }
  // softmax(x)·y in one pass: running maxima and rescaled sums.
  bool online_softmax_kernel() {
    TensorId x = real_of_rank(2);
    if (rank(x) != 2 || fact(x).exps > 0) return false;
    TensorId y = choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && rank(t) == 2 && shape(t)[0] == shape(x)[1];
    });
    const DType dtype = g_.type(x).dtype;
    const int64_t m = shape(x)[0].extent, k = shape(x)[1].extent, n = shape(y)[1].extent;
    Graph b = Graph::block({parts(m)}, {parts(k)});
    TensorId bx = b.add_input(g_.type(x)), by = b.add_input(g_.type(y));
    TensorId tx = tile(b, bx, {0, -1, -1}, {1, -1, -1, -1});
    TensorId ty = tile(b, by, {-1, -1, -1}, {0, -1, -1, -1});
    TensorId mx = b.add(OpKind::ReduceMax, {tx}, ReduceAttrs{{1}, true});
    TensorId e = b.add(OpKind::Exp, {b.add(OpKind::Sub, {tx, mx})});
    TensorId s = b.add(OpKind::Sum, {e}, ReduceAttrs{{1}, true});
    TensorId v = b.add(OpKind::Matmul, {e, ty});
    const AccumAttrs fold{AccumKind::Sum, {0}};
    TensorId out = b.add(OpKind::Div, {b.add(OpKind::AccumRescale, {v, mx}, fold),
                                       b.add(OpKind::AccumRescale, {s, mx}, fold)});
    b.add_output(
        b.add(OpKind::Save, {out}, SaveAttrs{{0, -1, -1}, kNoLoops, {dtype, {Dim(m), Dim(n)}}}));
    return finish_kernel({x, y}, std::move(b));
  }

  // The last value is an output, and so is what nothing else uses, up to three.
  Graph finish() {
    std::vector<int> uses = use_counts(g_);
    std::vector<TensorId> outputs{last()};
    for (size_t i = pool_.size() - 1; i-- > 0 && outputs.size() < 3;)
      if (uses[pool_[i].index] == 0 && g_.producer(pool_[i]).kind != OpKind::Input &&
          rng_.chance(0.6))
        outputs.push_back(pool_[i]);
    g_.set_outputs(outputs);
    // Drop inputs that nothing uses by rebuilding with dead code removed.
    Graph live = without_dead_code(g_);
    std::vector<int> live_uses = use_counts(live);
    Graph out(live.name());
    std::vector<TensorId> to(live.tensors().size());
    for (const Op& op : live.ops()) {
      std::vector<TensorId> in;
      for (TensorId t : op.inputs) in.push_back(to[t.index]);
      TensorId first(out.tensors().size());
      if (op.kind == OpKind::Input) {
        if (live_uses[op.result().index] == 0) continue;
        out.add_input(live.type(op.result()), live.tensor(op.result()).name);
      } else if (op.body.valid()) {
        out.add_graph_op(op.kind, in, live.body(op));
      } else {
        out.add_op(op.kind, in, op.attrs);
      }
      for (uint32_t r = 0; r < op.num_results; r++)
        to[op.result(r).index] = TensorId(first.index + r);
    }
    for (TensorId t : live.outputs()) out.add_output(to[t.index]);
    return out;
  }

  Rng rng_, windows_;
  RandomProgramOptions o_;
  Graph g_;
  int dims_[3] = {};
  std::vector<TensorId> pool_;
  std::vector<Facts> facts_;
};

// At least one operator that is not an input, and something to compute.
bool interesting(const Graph& g) {
  return !g.inputs().empty() && g.ops().size() >= g.inputs().size() + 2;
}

}  // namespace

Graph random_program(uint64_t seed, const RandomProgramOptions& options) {
  for (uint64_t i = 0;; i++) {
    Graph g = Generator(mix64(seed + i * 0x9e3779b97f4a7c15ull), options).run();
    if (!interesting(g)) continue;
    validate(g);
    return g;
  }
}

}  // namespace tessera
