#include "verify/decisions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/interruption.h"
#include "eval/ndarray.h"
#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Functions that are known by name only. A power with an exponent that no program has is such a
// function in every field; programs with denominators as large are refused.
constexpr int64_t kNames = 1'000'003;
enum class Name : int64_t { Key = 0, Pair, Wrap, Truncate = Wrap + 16, Absolute = Truncate + 16 };

struct Interval {
  double low = -kInf, high = kInf;
  bool within(const Interval& o) const { return low >= o.low && high <= o.high; }
  bool binary() const { return low >= 0 && high <= 1; }
};
Interval range_of(DType dtype) {
  switch (dtype) {
  case DType::Bool: return {0, 1};
  case DType::I8: return {-128, 127};
  case DType::U8: return {0, 255};
  case DType::I32: return {-2147483648.0, 2147483647.0};
  // Below 2^53 doubles count exactly; beyond, what might wrap is taken to wrap.
  case DType::I64: return {-9007199254740992.0, 9007199254740992.0};
  case DType::F64:
  case DType::F32:
  case DType::F16:
  case DType::BF16: break;
  }
  return {};
}

// Of a value that has not wrapped, whatever it is.
Interval values_of(DType dtype) { return dtype == DType::I64 ? Interval{} : range_of(dtype); }

// A tensor of the original as it is known in the abstraction.
struct Number {
  TensorId real{};   // over f64
  TensorId as_is{};  // integers or bools that depend on no input
  bool has_real = false, fixed = false;
  bool positive = false;  // of floats, by their form
  Interval range;         // of integers: of the value before wrapping
  bool exact = true;      // that value is the actual one
};

class Abstraction {
 public:
  Abstraction(const Graph& g, Graph out) : g_(g), out_(std::move(out)), v_(g.tensors().size()) {}

  void run(const std::vector<Number>& arguments) {
    size_t next = 0;
    for (const Op& op : g_.ops()) {
      if (op.kind == OpKind::Input) {
        const Type& type = g_.type(op.result());
        Number n = arguments.empty() ? Number{} : arguments[next];
        const bool fixed = n.fixed;
        const TensorId t = out_.add_input(fixed ? type : real(type), g_.tensor(op.result()).name,
                                          g_.level() == Level::Kernel && g_.is_weight(op.result()));
        if (arguments.empty() && !is_float(type.dtype)) {
          // Inputs of 64 bits may be anything, but as inputs they have not wrapped.
          n.range = values_of(type.dtype);
        }
        (fixed ? n.as_is : n.real) = t;
        n.has_real = !fixed;
        v_[op.result().index] = n;
        next++;
        continue;
      }
      if (op.body.valid()) {
        body(op);
        continue;
      }
      v_[op.result().index] = stays_fixed(op) ? keep(op) : apply(op);
      v_[op.result().index].positive = is_positive(op);
      if (op.num_results > 1) several(op);
    }
  }
  Graph finish() {
    for (TensorId t : g_.outputs()) out_.add_output(to_real(t));
    return std::move(out_);
  }

 private:
  static Type real(Type t) {
    t.dtype = DType::F64;
    return t;
  }
  [[noreturn]] static void refuse(const std::string& why) { throw NotAbstracted{why}; }

  // --- operands
  Number& at(TensorId t) { return v_[t.index]; }
  DType dtype(TensorId t) const { return g_.type(t).dtype; }
  bool integral(TensorId t) const { return !is_float(dtype(t)); }
  TensorId to_real(TensorId t) {
    Number& n = at(t);
    if (!n.has_real) {
      n.real = build::cast(out_, n.as_is, {DType::F64});
      n.has_real = true;
    }
    return n.real;
  }
  std::vector<TensorId> reals(const Op& op) {
    std::vector<TensorId> in;
    for (TensorId t : op.inputs) in.push_back(to_real(t));
    return in;
  }
  std::optional<Rational> constant(TensorId t) const {
    const Op* op = &g_.producer(t);
    std::vector<DType> through;
    while (op->kind == OpKind::Broadcast || op->kind == OpKind::Reshape ||
           op->kind == OpKind::Unsqueeze || op->kind == OpKind::Cast) {
      if (op->kind == OpKind::Cast) through.push_back(g_.type(op->result()).dtype);
      op = &g_.producer(op->inputs[0]);
    }
    if (!op->constant()) return std::nullopt;
    const Rational& value = *op->constant();
    if (through.empty()) return value;
    through.push_back(g_.type(op->result()).dtype);  // all of which keep it as it is
    const double x = value.to_double();
    for (DType d : through)
      if (is_float(d) ? round_to(d, x) != x || value.den() > (1 << 24) : !holds(d, value))
        return std::nullopt;
    return value;
  }
  bool same(TensorId a, TensorId b) const {
    if (a == b) return true;
    const auto x = constant(a), y = constant(b);
    return x && y && *x == *y;
  }

  bool is_positive(const Op& op) {
    interruption_point();
    if (!is_float(g_.type(op.result()).dtype)) return false;
    if (has(op.kind, algebra::Positive)) return true;
    if (const Rational* c = op.constant()) return !c->negative() && !c->is_zero();
    const bool keeps = (only_moves(op.kind) && op.kind != OpKind::Gather) || is_tile(op.kind) ||
                       is_sum(op.kind) || is_extremum(op.kind) ||
                       is_one_of(op.kind, OpKind::Add, OpKind::Mul, OpKind::Div, OpKind::Sqrt,
                                 OpKind::Rsqrt, OpKind::Sqr);
    return keeps && std::ranges::all_of(op.inputs, [&](TensorId t) { return at(t).positive; });
  }

  // --- arithmetic of the abstraction
  TensorId number(const Rational& value) { return out_.add_const(value, Type{DType::F64, {}}); }
  TensorId add(TensorId a, TensorId b) { return out_.add(OpKind::Add, {a, b}); }
  TensorId sub(TensorId a, TensorId b) { return out_.add(OpKind::Sub, {a, b}); }
  TensorId mul(TensorId a, TensorId b) { return out_.add(OpKind::Mul, {a, b}); }
  TensorId half(TensorId a) { return mul(a, number(Rational::ratio(1, 2))); }
  TensorId complement(TensorId c) { return sub(number(1), c); }
  TensorId sign(TensorId r) { return out_.add(OpKind::Sign, {r}); }
  TensorId unknown(TensorId x, Name name, int64_t label = 0) {
    return out_.add(OpKind::Pow, {x},
                    PowAttrs{Rational::ratio(1, kNames + 2 * (int64_t(name) + label))});
  }
  // An unknown function of two numbers.
  TensorId unknown_pair(TensorId a, TensorId b) {
    return unknown(add(a, unknown(b, Name::Key)), Name::Pair);
  }
  TensorId blend(TensorId c, TensorId x, TensorId y) { return add(y, mul(c, sub(x, y))); }

  // An odd sign of the order of a and b: −1, 0 or 1 as a is less, equal or greater.
  TensorId order(TensorId a, TensorId b) { return sign(sub(held(a), held(b))); }
  // The number that the type holds: an unknown function of one that may wrap.
  TensorId held(TensorId t) {
    const TensorId x = to_real(t);
    return at(t).exact ? x : unknown(x, Name::Wrap, int64_t(dtype(t)));
  }

  // --- results
  Number result(const Op& op, TensorId t, Interval range, bool exact) const {
    Number n;
    n.real = t;
    n.has_real = true;
    if (is_float(g_.type(op.result()).dtype)) return n;
    const DType d = g_.type(op.result()).dtype;
    n.range = range;
    n.exact = exact && range.within(range_of(d));
    return n;
  }
  // One of its operands, which has not wrapped if they have not.
  Number chosen(const Op& op, TensorId t, Interval range, bool exact) const {
    Number n = result(op, t, range, exact);
    n.exact = is_float(g_.type(op.result()).dtype) || exact;
    return n;
  }
  Number result(const Op& op, TensorId t) const {  // integers: anything of its dtype
    return chosen(op, t, values_of(g_.type(op.result()).dtype), true);
  }
  Number copy(const Op& op, Attrs attrs) {
    Number n = at(op.inputs.empty() ? op.result() : op.inputs[0]);
    for (TensorId t : op.inputs) {
      n.range = {std::min(n.range.low, at(t).range.low), std::max(n.range.high, at(t).range.high)};
      n.exact = n.exact && at(t).exact;
    }
    n.real = out_.add(op.kind, reals(op), std::move(attrs));
    n.has_real = true;
    n.fixed = false;
    return n;
  }

  // --- what depends on no input
  bool stays_fixed(const Op& op) const {
    if (op.num_results != 1 || is_float(g_.type(op.result()).dtype)) return false;
    if (op.kind == OpKind::Opaque || op.kind == OpKind::Save || op.kind == OpKind::Accum)
      return false;
    return std::ranges::all_of(op.inputs, [&](TensorId t) { return v_[t.index].fixed; });
  }
  static void refuse_unless_held(DType dtype, const Rational& value) {
    if (!is_float(dtype) && !holds(dtype, value)) refuse("a constant that its type does not hold");
  }
  Number keep(const Op& op) {
    std::vector<TensorId> in;
    for (TensorId t : op.inputs) in.push_back(at(t).as_is);
    Number n;
    n.as_is = out_.add(op.kind, in, op.attrs);
    n.fixed = true;
    const DType d = g_.type(op.result()).dtype;
    n.range = values_of(d);
    if (op.kind == OpKind::Pad) refuse_unless_held(d, g_.attrs<PadAttrs>(op).value);
    if (op.constant()) {
      refuse_unless_held(d, *op.constant());
      const double c = op.constant()->to_double();
      n.range = {c, c};
    } else if (op.kind == OpKind::Iota) {
      const Shape& s = g_.type(op.result()).shape;
      const auto axis = size_t(g_.attrs<IotaAttrs>(op).axis);
      const Interval counted{0, double(std::max<int64_t>(0, s[axis].extent - 1))};
      if (counted.within(n.range)) n.range = counted;
    } else if (has(op.kind, algebra::Movement) && op.kind != OpKind::Pad && !op.inputs.empty()) {
      n.range = at(op.inputs[0]).range;
      for (TensorId t : op.inputs) {
        if (op.kind == OpKind::Gather) break;
        n.range.low = std::min(n.range.low, at(t).range.low);
        n.range.high = std::max(n.range.high, at(t).range.high);
      }
      if (is_triangle(op.kind)) n.range = {std::min(0.0, n.range.low), std::max(0.0, n.range.high)};
    }
    return n;
  }

  void several(const Op& op) {
    for (uint32_t r = 1; r < op.num_results; r++) {
      Number n = v_[op.result().index];
      n.real = TensorId(n.real.index + r);
      n.range = values_of(g_.type(op.result(r)).dtype);
      v_[op.result(r).index] = n;
    }
  }

  void body(const Op& op) {
    const Graph& inner = g_.body(op);
    std::vector<Number> arguments;
    std::vector<TensorId> in;
    for (TensorId t : op.inputs) {
      Number n = at(t);
      in.push_back(n.fixed ? n.as_is : n.real);
      n.has_real = !n.fixed;
      arguments.push_back(n);
    }
    Abstraction a(inner, inner.level() == Level::Block ? Graph::block(inner.grid(), inner.loops())
                                                       : Graph::thread());
    a.run(arguments);
    std::vector<Number> results;
    for (TensorId t : inner.outputs()) {
      a.to_real(t);
      results.push_back(a.at(t));
    }
    std::vector<TensorId> saved;
    for (const Number& n : results) saved.push_back(n.real);
    Graph body = std::move(a.out_);
    body.set_outputs(saved);
    const Op made = out_.op(out_.add_graph_op(op.kind, in, std::move(body)));
    for (uint32_t r = 0; r < op.num_results; r++) {
      Number n = results[r];
      n.real = made.result(r);
      n.has_real = true;
      n.fixed = false;
      v_[op.result(r).index] = n;
    }
  }

  // --- decisions
  TensorId truth(const Rational& at_zero, const Rational& at_one, TensorId x) {
    const bool zero = !at_zero.is_zero(), one = !at_one.is_zero();
    if (zero == one) return add(mul(x, number(0)), number(zero ? 1 : 0));
    return one ? x : complement(x);
  }
  static bool ordered(OpKind kind, double a, double b) {
    if (kind == OpKind::Eq || kind == OpKind::Ne) return (a == b) == (kind == OpKind::Eq);
    if (kind == OpKind::Lt || kind == OpKind::Ge) return (a < b) == (kind == OpKind::Lt);
    return (a > b) == (kind == OpKind::Gt);
  }
  static OpKind swapped(OpKind kind) {
    const OpKind pairs[][2] = {{OpKind::Lt, OpKind::Gt}, {OpKind::Le, OpKind::Ge}};
    for (const auto& [less, greater] : pairs) {
      if (kind == less) return greater;
      if (kind == greater) return less;
    }
    return kind;
  }
  // c when the operands are known well enough to say so, broadcast to the comparison's shape.
  std::optional<bool> decided(const Op& op) {
    const TensorId x = op.inputs[0], y = op.inputs[1];
    if (integral(x)) {
      const Number &a = at(x), &b = at(y);
      if (!a.exact || !b.exact) return std::nullopt;
      if (a.range.low > b.range.high) return ordered(op.kind, 1, 0);
      if (a.range.high < b.range.low) return ordered(op.kind, 0, 1);
      return std::nullopt;
    }
    const auto a = constant(x), b = constant(y);
    if (!a || !b || !a->finite() || !b->finite()) return std::nullopt;
    // Their dtype rounds them: only those that it keeps apart, and equal ones, are decided here.
    const double p = a->to_double(), q = b->to_double();
    const double least = std::min(std::fabs(p), std::fabs(q)),
                 most = std::max(std::fabs(p), std::fabs(q));
    if (*a == *b) return ordered(op.kind, 0, 0);
    if (most > 6e4 || (least != 0 && least < 1e-4) || most < 1e-4) return std::nullopt;
    if (std::fabs(p - q) < most / 64) return std::nullopt;
    return ordered(op.kind, p, q);
  }
  TensorId constant_bool(const Op& op, bool value) {
    return out_.add_const(value ? 1 : 0, real(g_.type(op.result())));
  }
  TensorId comparison(const Op& op) {
    if (const auto known = decided(op)) return constant_bool(op, *known);
    const TensorId x = op.inputs[0], y = op.inputs[1];
    const TensorId p = to_real(x), q = to_real(y);
    const Number &a = at(x), &b = at(y);
    if (integral(x) && a.exact && b.exact) {
      // 0/1 against a constant, or each other.
      for (const bool swap : {false, true}) {
        const auto c = constant(swap ? x : y);
        const Number& n = swap ? b : a;
        if (!c || !n.range.binary() || constant(swap ? y : x)) continue;
        const OpKind kind = swap ? swapped(op.kind) : op.kind;
        const double value = c->to_double();
        return shaped(op, truth(ordered(kind, 0, value), ordered(kind, 1, value), n.real));
      }
      if (a.range.binary() && b.range.binary()) {
        const TensorId both = mul(p, q);
        const TensorId equal = add(sub(complement(p), q), add(both, both));
        return by_order(op.kind, mul(p, complement(q)), equal, mul(complement(p), q));
      }
      // Whole numbers: a > b by a − b − 1/2, a ≥ b by a − b + 1/2; nothing ties.
      const TensorId r = sub(p, q);
      const auto positive = [&](int sign_of_half) {
        const TensorId s = sign(add(r, number(Rational::ratio(sign_of_half, 2))));
        return half(add(s, number(1)));
      };
      const TensorId greater = positive(-1), at_least = positive(1);
      return by_order(op.kind, greater, sub(at_least, greater), complement(at_least));
    }
    const TensorId s = order(x, y), s2 = out_.add(OpKind::Sqr, {s});
    return by_order(op.kind, half(add(s2, s)), complement(s2), half(sub(s2, s)));
  }
  // The outcome of a comparison, of which a > b, a = b and a < b are given.
  TensorId by_order(OpKind kind, TensorId greater, TensorId equal, TensorId less) {
    if (kind == OpKind::Gt) return greater;
    if (kind == OpKind::Lt) return less;
    if (kind == OpKind::Eq) return equal;
    return complement(kind == OpKind::Le ? greater : kind == OpKind::Ge ? less : equal);
  }
  // Results of expansions have the original's shape: a constant operand may be smaller.
  TensorId shaped(const Op& op, TensorId t) {
    const Shape& shape = g_.type(op.result()).shape;
    if (out_.type(t).shape == shape) return t;
    return add(t, out_.add_const(0, real(g_.type(op.result()))));
  }

  // where(a > b, a, b) and its like are maxima and minima, whatever holds at ties.
  std::optional<OpKind> extremum(const Op& op) const {
    const Op& c = g_.producer(op.inputs[0]);
    const bool greater = c.kind == OpKind::Gt || c.kind == OpKind::Ge;
    if (!greater && c.kind != OpKind::Lt && c.kind != OpKind::Le) return std::nullopt;
    if (v_[op.inputs[0].index].fixed) return std::nullopt;
    const TensorId a = c.inputs[0], b = c.inputs[1], x = op.inputs[1], y = op.inputs[2];
    if (dtype(a) != dtype(x)) return std::nullopt;
    if (same(a, x) && same(b, y)) return greater ? OpKind::Max : OpKind::Min;
    if (same(a, y) && same(b, x)) return greater ? OpKind::Min : OpKind::Max;
    return std::nullopt;
  }
  Number where(const Op& op) {
    if (const auto kind = extremum(op)) return larger(op, *kind, op.inputs[1], op.inputs[2]);
    const Number &x = at(op.inputs[1]), &y = at(op.inputs[2]);
    const Interval range{std::min(x.range.low, y.range.low), std::max(x.range.high, y.range.high)};
    const bool exact = x.exact && y.exact;
    const TensorId a = to_real(op.inputs[1]), b = to_real(op.inputs[2]);
    const Number& c = at(op.inputs[0]);
    if (c.fixed) return chosen(op, out_.add(OpKind::Where, {c.as_is, a, b}), range, exact);
    return chosen(op, shaped(op, blend(to_real(op.inputs[0]), a, b)), range, exact);
  }
  Number larger(const Op& op, OpKind kind, TensorId x, TensorId y) {
    const bool maximum = kind == OpKind::Max;
    const TensorId p = to_real(x), q = to_real(y);
    const Number &a = at(x), &b = at(y);
    if (!integral(x)) return result(op, out_.add(kind, {p, q}));
    const auto pick = [&](double s, double t) { return maximum ? std::max(s, t) : std::min(s, t); };
    const Interval range{pick(a.range.low, b.range.low), pick(a.range.high, b.range.high)};
    if (!a.exact || !b.exact) {
      const TensorId s = order(x, y), d = mul(s, sub(held(x), held(y)));
      const TensorId both = add(held(x), held(y));
      return result(op, half(maximum ? add(both, d) : sub(both, d)));
    }
    if (a.range.low >= b.range.high) return chosen(op, shaped(op, maximum ? p : q), range, true);
    if (b.range.low >= a.range.high) return chosen(op, shaped(op, maximum ? q : p), range, true);
    if (a.range.binary() && b.range.binary()) {
      const TensorId both = mul(p, q);
      return result(op, maximum ? sub(add(p, q), both) : both, range, true);
    }
    return chosen(op, out_.add(kind, {p, q}), range, true);
  }
  Number reduced_extremum(const Op& op, bool maximum) {
    const TensorId x = op.inputs[0];
    const TensorId p = to_real(x);
    const Number& a = at(x);
    if (integral(x) && !a.exact) refuse("an extremum of integers that may wrap");
    if (integral(x) && a.range.binary() && !maximum && op.kind == OpKind::ReduceMin)  // ∀ is ¬∃¬
      return result(op, complement(out_.add(OpKind::ReduceMax, {complement(p)}, op.attrs)), a.range,
                    true);
    return chosen(op, out_.add(op.kind, {p}, op.attrs), a.range, true);
  }

  Number cast(const Op& op) {
    const DType from = dtype(op.inputs[0]), to = g_.type(op.result()).dtype;
    const TensorId p = to_real(op.inputs[0]);
    const Number x = at(op.inputs[0]);
    if (is_float(from) && is_float(to)) return result(op, p);
    if (to == DType::Bool) {
      if (is_float(from)) return result(op, out_.add(OpKind::Sqr, {sign(p)}));
      if (x.exact && x.range.binary()) return result(op, p);
      return result(op, out_.add(OpKind::Sqr, {sign(held(op.inputs[0]))}));
    }
    if (is_float(from)) return result(op, unknown(p, Name::Truncate, int64_t(to)));
    const auto bits = [](DType d) { return d == DType::Bool ? 1 : 8 * size_in_bytes(d); };
    if (is_float(to) || bits(to) > bits(from)) {
      return x.exact ? chosen(op, p, x.range, true)
                     : chosen(op, held(op.inputs[0]), values_of(from), true);
    }
    return result(op, p, x.range, x.exact);  // modulo 2^w of what is known modulo more
  }

  Number gather(const Op& op) {
    const TensorId table = to_real(op.inputs[0]);
    const Number& index = at(op.inputs[1]);
    const Number& x = at(op.inputs[0]);
    if (index.fixed)
      return chosen(op, out_.add(OpKind::Gather, {table, index.as_is}, op.attrs), x.range, x.exact);
    const int axis = g_.attrs<AxisAttrs>(op).axis;
    if (!alike(op.inputs[0], axis))
      refuse("an index computed from inputs into a table whose positions are computed differently");
    const Dim& extent = g_.type(op.inputs[0]).shape[size_t(axis)];
    TensorId position = build::cast(out_, held(op.inputs[1]), {DType::I64});
    position =
        out_.add(OpKind::Mod, {position, out_.add_const(extent.extent, Type{DType::I64, {}})});
    return chosen(op, out_.add(OpKind::Gather, {table, position}, op.attrs), x.range, x.exact);
  }
  // Whether all positions along an axis are the same function of the inputs at theirs.
  bool alike(TensorId t, int axis) const {
    const Op& op = g_.producer(t);
    if (op.kind == OpKind::Input) return g_.level() == Level::Kernel;
    if (op.constant()) return true;
    if (op.kind == OpKind::Iota) return g_.attrs<IotaAttrs>(op).axis != axis;
    if (op.kind == OpKind::Transpose)
      return alike(op.inputs[0], g_.attrs<PermAttrs>(op).perm[size_t(axis)]);
    if (!has(op.kind, algebra::Pointwise) && op.kind != OpKind::Broadcast) return false;
    const int rank = g_.type(t).rank();
    return std::ranges::all_of(op.inputs, [&](TensorId x) {
      const int mine = axis - (rank - g_.type(x).rank());
      if (mine < 0 || g_.type(x).shape[size_t(mine)].is_one()) return true;
      return alike(x, mine);
    });
  }

  // --- sums and products
  Interval times(const Interval& x, double n) const {
    return {std::min(x.low * n, x.low), std::max(x.high * n, x.high)};
  }
  // Windows may see padding only.
  static Interval or_zero(const Interval& x) {
    return {std::min(x.low, 0.0), std::max(x.high, 0.0)};
  }
  static double product(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }
  static Interval product(const Interval& x, const Interval& y) {
    const double all[] = {product(x.low, y.low), product(x.low, y.high), product(x.high, y.low),
                          product(x.high, y.high)};
    return {*std::min_element(all, all + 4), *std::max_element(all, all + 4)};
  }
  double terms(const Op& op) const {
    const Shape& x = g_.type(op.inputs[0]).shape;
    double n = 1;
    if (op.kind == OpKind::Sum) {
      for (int a : g_.attrs<ReduceAttrs>(op).axes) n *= double(x[size_t(a)].extent);
      return n;
    }
    if (op.kind == OpKind::Accum) {
      for (int l : g_.attrs<AccumAttrs>(op).loops) n *= double(g_.loops()[size_t(l)]);
      return n;
    }
    if (op.kind == OpKind::Cumsum) return double(x[size_t(g_.attrs<AxisAttrs>(op).axis)].extent);
    return op.kind == OpKind::Matmul ? double(x.back().extent) : terms_of(g_, op);
  }
  bool all_exact(const Op& op) {
    return std::ranges::all_of(
        op.inputs, [&](TensorId t) { return at(t).exact; });
  }

  Number apply(const Op& op) {
    interruption_point();
    const auto r = [&](size_t i) -> const Interval& { return at(op.inputs[i]).range; };
    const auto ring = [&](Interval range) {
      const bool exact = all_exact(op);
      return result(op, out_.add(op.kind, reals(op), op.attrs), range, exact);
    };
    const bool whole = !op.inputs.empty() && integral(op.inputs[0]);
    switch (op.kind) {
    case OpKind::Const: {
      ConstAttrs a = g_.attrs<ConstAttrs>(op);
      a.type = real(a.type);
      return result(op, out_.add(op.kind, {}, a));
    }
    case OpKind::Iota: {
      IotaAttrs a = g_.attrs<IotaAttrs>(op);
      a.type = real(a.type);
      return result(op, out_.add(op.kind, {}, a));
    }
    case OpKind::Neg: return ring({-r(0).high, -r(0).low});
    case OpKind::Add: return ring({r(0).low + r(1).low, r(0).high + r(1).high});
    case OpKind::Sub: return ring({r(0).low - r(1).high, r(0).high - r(1).low});
    case OpKind::Mul: return ring(product(r(0), r(1)));
    case OpKind::Sqr: return ring(product(r(0), r(0)));
    case OpKind::Sum:
    case OpKind::Cumsum: return ring(times(r(0), terms(op)));
    case OpKind::Matmul: return ring(times(product(r(0), r(1)), terms(op)));
    case OpKind::PoolSum: return ring(or_zero(times(r(0), terms(op))));
    case OpKind::Conv:
    case OpKind::ConvTranspose: return ring(or_zero(times(product(r(0), r(1)), terms(op))));
    case OpKind::ConcatMatmul: return ring({});
    case OpKind::Abs:
    case OpKind::Relu:
    case OpKind::Sign:
      if (!whole) return ring({});
      if (!at(op.inputs[0]).exact)
        return result(op, unknown(to_real(op.inputs[0]), Name::Absolute,
                                  int64_t(op.kind) * 16 + int64_t(dtype(op.inputs[0]))));
      if (op.kind == OpKind::Sign) {
        const TensorId x = to_real(op.inputs[0]);
        const TensorId above = sign(sub(x, number(Rational::ratio(1, 2)))),
                       below = sign(add(x, number(Rational::ratio(1, 2))));
        return result(op, half(add(above, below)), {-1, 1}, true);
      }
      if (op.kind == OpKind::Abs)
        return ring({0, std::max(std::fabs(r(0).low), std::fabs(r(0).high))});
      return chosen(op, out_.add(op.kind, reals(op)),
                    {std::max(0.0, r(0).low), std::max(0.0, r(0).high)}, true);
    case OpKind::Pow: {
      if (g_.attrs<PowAttrs>(op).exponent.den() >= kNames) refuse("an exponent that is no number");
      const double e = g_.attrs<PowAttrs>(op).exponent.to_double();
      Interval range = whole ? r(0) : Interval{};
      for (int i = 1; whole && i < e && i < 64; i++) range = product(range, r(0));
      if (e == 0) range = {1, 1};
      return ring(range);
    }
    case OpKind::Power: {  // of what is positive no decision is asked
      const std::vector<TensorId> in = reals(op);
      if (!at(op.inputs[0]).positive) return ring({});
      return result(op, out_.add(OpKind::Exp, {mul(in[1], out_.add(OpKind::Log, {in[0]}))}));
    }
    case OpKind::Mod: {
      if (!whole) return ring({});
      // By a positive constant it stays below it.
      const auto by = constant(op.inputs[1]);
      const Interval range = by && !by->negative() && !by->is_zero()
                                 ? Interval{0, by->to_double() - 1}
                                 : values_of(dtype(op.inputs[0]));
      return chosen(op, unknown_pair(held(op.inputs[0]), held(op.inputs[1])), range, true);
    }
    case OpKind::Not: return result(op, complement(to_real(op.inputs[0])));
    case OpKind::And: {
      const std::vector<TensorId> in = reals(op);
      return result(op, mul(in[0], in[1]));
    }
    case OpKind::Or: {
      const std::vector<TensorId> in = reals(op);
      return result(op, sub(add(in[0], in[1]), mul(in[0], in[1])));
    }
    case OpKind::Where: return where(op);
    case OpKind::Max:
    case OpKind::Min: return larger(op, op.kind, op.inputs[0], op.inputs[1]);
    case OpKind::ReduceMax: return reduced_extremum(op, true);
    case OpKind::ReduceMin: return reduced_extremum(op, false);
    case OpKind::PoolMax: {
      if (whole)
        for (const WindowAxis& a : window_axes(g_, op))
          if (a.low != 0 || a.high != 0) refuse("a maximum of integers over windows with padding");
      return reduced_extremum(op, true);
    }
    case OpKind::Accum: {
      const AccumKind kind = g_.attrs<AccumAttrs>(op).kind;
      if (kind == AccumKind::Sum) return ring(times(r(0), terms(op)));
      if (kind == AccumKind::Concat) return copy(op, op.attrs);
      return reduced_extremum(op, kind == AccumKind::Max);
    }
    case OpKind::Cast: return cast(op);
    case OpKind::Gather: return gather(op);
    case OpKind::Pad: {
      refuse_unless_held(g_.type(op.result()).dtype, g_.attrs<PadAttrs>(op).value);
      Number n = copy(op, op.attrs);
      const double c = g_.attrs<PadAttrs>(op).value.to_double();
      n.range = {std::min(n.range.low, c), std::max(n.range.high, c)};
      return n;
    }
    case OpKind::Triu:
    case OpKind::Tril: {
      Number n = copy(op, op.attrs);
      n.range = or_zero(n.range);
      return n;
    }
    case OpKind::Save: {
      SaveAttrs a = g_.attrs<SaveAttrs>(op);
      a.type = real(a.type);
      return copy(op, a);
    }
    case OpKind::Iter: return copy(op, op.attrs);
    case OpKind::Opaque: {
      OpaqueAttrs a = g_.attrs<OpaqueAttrs>(op);
      for (Type& t : a.results) t = real(t);
      return result(op, out_.op(out_.add_op(op.kind, reals(op), a)).result());
    }
    default: break;
    }
    if (is_comparison(op.kind)) return result(op, shaped(op, comparison(op)));
    if (has(op.kind, algebra::Movement)) return copy(op, op.attrs);
    if (!has(op.kind, algebra::Floats)) refuse(std::string("the operator ") + name(op.kind));
    return ring({});
  }

  const Graph& g_;
  Graph out_;
  std::vector<Number> v_;
};

}  // namespace

bool holds(DType dtype, const Rational& value) {
  if (!value.finite() || value.den() != 1 || value.exp2() < 0) return false;
  const double x = value.to_double();
  if (dtype == DType::I64) return x >= -0x1p63 && x < 0x1p63;
  return x >= range_of(dtype).low && x <= range_of(dtype).high;
}

bool jumps(const Graph& g, const Op& op) {
  const bool of_reals = !op.inputs.empty() && is_float(g.type(op.inputs[0]).dtype);
  return has(op.kind, algebra::Jumps) ||
         (op.kind == OpKind::Cast && of_reals && !is_float(g.type(op.result()).dtype)) ||
         (op.body.valid() && has_jumps(g.body(op)));
}
bool has_jumps(const Graph& g) {
  return std::ranges::any_of(
      g.ops(), [&](const Op& op) { return jumps(g, op); });
}

bool has_decisions(const Graph& g) {
  for (const Tensor& t : g.tensors())
    if (!is_float(t.type.dtype)) return true;
  return std::ranges::any_of(g.ops(), decides) || std::ranges::any_of(g.bodies(), has_decisions);
}

std::variant<Graph, NotAbstracted> abstract_decisions(const Graph& graph) {
  try {
    Abstraction a(graph, Graph(graph.name()));
    a.run({});
    return a.finish();
  } catch (const NotAbstracted& why) {
    return why;
  }
}

}  // namespace tessera
