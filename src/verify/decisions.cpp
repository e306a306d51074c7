#include "verify/decisions.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/interruption.h"
#include "eval/ndarray.h"
#include "ir/build.h"
#include "ir/walk.h"
#include "ir/window.h"
#include "verify/bounds.h"
#include "verify/gathers.h"
#include "verify/signs.h"

namespace tessera {
namespace {

// Functions that are known by name only. A power with an exponent that no program has is such a
// function in every field; programs with denominators as large are refused.
constexpr int64_t kNames = 1'000'003;
enum class Name : int64_t {
  Key = 0,
  Pair,
  Element,  // by axes
  Wrap = Element + 8,
  Truncate = Wrap + 16,
  Absolute = Truncate + 16
};

// What an integer type is trusted to count in: beyond 2^53, where constants are no longer exact as
// doubles, what might wrap is taken to wrap.
Bounds counted_in(DType dtype) {
  constexpr int64_t kExact = int64_t{1} << 53;
  return dtype == DType::I64 ? Bounds{-kExact, kExact} : bounds_of(dtype);
}

// What a tensor is made of, of inputs by number modulo 64: bools that are 0 or 1, decisions by sign
// (of what is made of these), and both of the denominators on the way that are not positive by
// form.
struct Sources {
  uint64_t inputs = 0, bools = 0, signs = 0, poles_of_bools = 0, poles_of_signs = 0;
  void join(const Sources& m) {
    inputs |= m.inputs, bools |= m.bools, signs |= m.signs;
    poles_of_bools |= m.poles_of_bools, poles_of_signs |= m.poles_of_signs;
  }
  void divide_by(const Sources& m) { poles_of_bools |= m.bools, poles_of_signs |= m.signs; }
};

// A tensor of the original as it is known in the abstraction.
struct Number {
  TensorId real{};   // over f64
  TensorId as_is{};  // integers or bools that depend on no input
  bool has_real = false, fixed = false;
  Bounds range;       // of integers: of the value before wrapping
  bool exact = true;  // that value is the actual one
  Sources made;
};

// Which values may be made infinite by a constant that is; `arguments`: of a body.
std::vector<bool> infinite_values(const Graph& g, const std::vector<bool>& arguments) {
  std::vector<bool> infinite(g.tensors().size());
  for (size_t i = 0; i < arguments.size(); i++) infinite[g.inputs()[i].index] = arguments[i];
  const auto makes = [](const Graph& at, const Op& op) {
    const auto* pad = std::get_if<PadAttrs>(&op.attrs);
    return (op.constant() && !op.constant()->finite()) || (pad && !pad->value.finite()) ||
           is_infinite_in_padding(at, op);
  };
  for (const Op& op : g.ops()) {
    if (is_input(op.kind) || has(op.kind, algebra::Exponential)) continue;
    const bool is = makes(g, op) || (op.body.valid() && any_op(g.body(op), makes)) ||
                    std::ranges::any_of(op.inputs, [&](TensorId t) { return infinite[t.index]; });
    for (uint32_t r = 0; r < op.num_results; r++) infinite[op.result(r).index] = is;
  }
  return infinite;
}

class Abstraction {
 public:
  Abstraction(const Graph& g, Graph out, const std::vector<Sign>& arguments = {},
              const std::vector<bool>& infinite = {})
      : g_(g), out_(std::move(out)), v_(g.tensors().size()), signs_(signs_of(g, arguments)),
        infinite_(infinite_values(g, infinite)) {}

  void run(const std::vector<Number>& arguments) {
    size_t next = 0;
    for (const Op& op : g_.ops()) {
      if (is_input(op.kind)) {
        const Type& type = g_.type(op.result());
        Number n = arguments.empty() ? Number{} : arguments[next];
        const bool fixed = n.fixed;
        const TensorId t = out_.add_input(fixed ? type : real(type), g_.tensor(op.result()).name,
                                          g_.level() == Level::Kernel && g_.is_weight(op.result()));
        if (arguments.empty() && !is_float(type.dtype)) {
          // Inputs of 64 bits may be anything, but as inputs they have not wrapped.
          n.range = bounds_of(type.dtype);
        }
        (fixed ? n.as_is : n.real) = t;
        n.has_real = !fixed;
        if (arguments.empty()) {
          n.made.inputs = uint64_t(1) << next % 64;
          if (!is_float(type.dtype)) n.made.bools = n.made.inputs;
        }
        v_[op.result().index] = n;
        next++;
        continue;
      }
      if (op.body.valid()) {
        body(op);
        continue;
      }
      Number n = stays_fixed(op) ? keep(op) : apply(op);
      n.made = made_by(op);
      v_[op.result().index] = n;
      if (op.num_results > 1) several(op);
    }
  }
  Sources made_by(const Op& op) const {
    Sources made;
    bool binary = false, of_floats = false;
    for (TensorId t : op.inputs) {
      made.join(v_[t.index].made);
      binary = binary || (integral(t) && v_[t.index].range.binary());
      of_floats = of_floats || !integral(t);
    }
    // The outcome is a sign of its own, whatever decided about what is compared.
    if (is_comparison(op.kind) && !binary) made.bools = made.signs = 0;
    if (is_comparison(op.kind) || is_extremum(op.kind) || decides(op) ||
        (op.kind == OpKind::Cast && of_floats && integral(op.result())))
      made.signs |= made.inputs;
    const auto* pow = std::get_if<PowAttrs>(&op.attrs);
    const bool negative = op.kind == OpKind::Rsqrt || (pow && pow->exponent.negative());
    if (op.kind == OpKind::Div || op.kind == OpKind::Mod || negative) {
      const TensorId by = op.inputs[negative ? 0 : 1];
      if (signs_[by.index] != Sign::Positive) made.divide_by(v_[by.index].made);
    }
    return made;
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
    return mapped(
        op.inputs, [&](TensorId t) { return to_real(t); });
  }
  std::optional<Rational> constant(TensorId t) const {
    const Op* op = &g_.producer(t);
    std::vector<DType> through;
    while (arranges(op->kind) || op->kind == OpKind::Cast) {
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
  TensorId unknown_pair(TensorId a, TensorId b, Name name = Name::Pair, int64_t label = 0) {
    return unknown(add(a, unknown(b, Name::Key)), name, label);
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
  Number result(const Op& op, TensorId t, Bounds range, bool exact) const {
    Number n;
    n.real = t;
    n.has_real = true;
    if (is_float(g_.type(op.result()).dtype)) return n;
    n.range = range;
    n.exact = exact && range.within(counted_in(g_.type(op.result()).dtype));
    return n;
  }
  // One of its operands, which has not wrapped if they have not.
  Number chosen(const Op& op, TensorId t, Bounds range, bool exact) const {
    Number n = result(op, t, range, exact);
    n.exact = is_float(g_.type(op.result()).dtype) || exact;
    return n;
  }
  Number result(const Op& op, TensorId t) const {  // integers: anything of its dtype
    return chosen(op, t, bounds_of(g_.type(op.result()).dtype), true);
  }
  // The operator itself, of real numbers.
  TensorId again(const Op& op) {
    Attrs attrs = op.attrs;
    std::visit(
        [](auto& a) {
          if constexpr (requires { a.type; }) a.type = real(a.type);
          if constexpr (requires { a.results; })
            for (Type& t : a.results) t = real(t);
        },
        attrs);
    return out_.op(out_.add_op(op.kind, reals(op), std::move(attrs))).result();
  }
  Bounds range(const Op& op) const {
    std::vector<Bounds> in = mapped(op.inputs, [&](TensorId t) { return v_[t.index].range; });
    return computed(g_, op, in);
  }
  Number copy(const Op& op) { return chosen(op, again(op), range(op), all_exact(op)); }
  Number computed_again(const Op& op) { return result(op, again(op), range(op), all_exact(op)); }
  bool all_exact(const Op& op) const {
    return std::ranges::all_of(
        op.inputs, [&](TensorId t) { return v_[t.index].exact; });
  }

  // --- what depends on no input
  bool stays_fixed(const Op& op) const {
    if (op.num_results != 1 || is_float(g_.type(op.result()).dtype)) return false;
    if (is_store(op.kind) || is_accumulator(op.kind)) return false;
    return std::ranges::all_of(op.inputs, [&](TensorId t) { return v_[t.index].fixed; });
  }
  static void refuse_unless_held(DType dtype, const Rational& value) {
    if (!is_float(dtype) && !holds(dtype, value)) refuse("a constant that its type does not hold");
  }
  Number keep(const Op& op) {
    std::vector<TensorId> in = mapped(op.inputs, [&](TensorId t) { return at(t).as_is; });
    Number n;
    n.as_is = out_.add(op.kind, in, op.attrs);
    n.fixed = true;
    const DType d = g_.type(op.result()).dtype;
    if (const auto* a = std::get_if<PadAttrs>(&op.attrs)) refuse_unless_held(d, a->value);
    if (op.constant()) refuse_unless_held(d, *op.constant());
    n.range = range(op);
    if (!n.range.within(bounds_of(d))) n.range = bounds_of(d);
    return n;
  }

  void several(const Op& op) {
    for (uint32_t r = 1; r < op.num_results; r++) {
      Number n = v_[op.result().index];
      n.real = TensorId(n.real.index + r);
      n.range = bounds_of(g_.type(op.result(r)).dtype);
      v_[op.result(r).index] = n;
    }
  }

  void body(const Op& op) {
    const Graph& inner = g_.body(op);
    std::vector<Number> arguments;
    std::vector<TensorId> in;
    std::vector<Sign> signs;
    std::vector<bool> infinite;
    for (TensorId t : op.inputs) {
      Number n = at(t);
      signs.push_back(signs_[t.index]);
      infinite.push_back(infinite_[t.index]);
      in.push_back(n.fixed ? n.as_is : n.real);
      n.has_real = !n.fixed;
      arguments.push_back(n);
    }
    Abstraction a(inner,
                  inner.level() == Level::Block ? Graph::block(inner.grid(), inner.loops())
                                                : Graph::thread(),
                  signs, infinite);
    a.run(arguments);
    std::vector<Number> results;
    for (TensorId t : inner.outputs()) {
      a.to_real(t);
      results.push_back(a.at(t));
    }
    std::vector<TensorId> saved = mapped(results, &Number::real);
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
  // c when the operands are known well enough to say so, broadcast to the comparison's shape.
  std::optional<bool> decided(const Op& op) {
    const TensorId x = op.inputs[0], y = op.inputs[1];
    if (integral(x)) {
      const Number &a = at(x), &b = at(y);
      if (!a.exact || !b.exact) return std::nullopt;
      if (a.range.low > b.range.high) return outcomes(op.kind).of(1, 0);
      if (a.range.high < b.range.low) return outcomes(op.kind).of(0, 1);
      return std::nullopt;
    }
    const auto a = constant(x), b = constant(y);
    if (!a || !b || !a->finite() || !b->finite()) return std::nullopt;
    // Their dtype rounds them: only those that it keeps apart, and equal ones, are decided here.
    const double p = a->to_double(), q = b->to_double();
    const double least = std::min(std::fabs(p), std::fabs(q)),
                 most = std::max(std::fabs(p), std::fabs(q));
    if (*a == *b) return outcomes(op.kind).of(0, 0);
    if (most > 6e4 || (least != 0 && least < 1e-4) || most < 1e-4) return std::nullopt;
    if (std::fabs(p - q) < most / 64) return std::nullopt;
    return outcomes(op.kind).of(p, q);
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
        const double value = c->to_double();
        const auto holds = [&](double x) {
          return swap ? outcomes(op.kind).of(value, x) : outcomes(op.kind).of(x, value);
        };
        return shaped(op, truth(holds(0), holds(1), n.real));
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
    const Outcomes holds = outcomes(kind);
    const auto the = [&](bool one) {  // outcome that holds, or that does not
      return holds.less == one ? less : holds.equal == one ? equal : greater;
    };
    return holds.less + holds.equal + holds.greater == 1 ? the(true) : complement(the(false));
  }
  // Results of expansions have the original's shape: a constant operand may be smaller.
  TensorId shaped(const Op& op, TensorId t) {
    const Shape& shape = g_.type(op.result()).shape;
    if (out_.type(t).shape == shape) return t;
    return add(t, out_.add_const(0, real(g_.type(op.result()))));
  }

  // where(a > b, a, b) and its like are maxima and minima, whatever holds at ties.
  std::optional<AccumKind> extremum(const Op& op) const {
    const Op& c = g_.producer(op.inputs[0]);
    if (!is_comparison(c.kind) || outcomes(c.kind).less == outcomes(c.kind).greater)
      return std::nullopt;
    const bool greater = outcomes(c.kind).greater;
    if (v_[op.inputs[0].index].fixed) return std::nullopt;
    const TensorId a = c.inputs[0], b = c.inputs[1], x = op.inputs[1], y = op.inputs[2];
    if (dtype(a) != dtype(x)) return std::nullopt;
    if (same(a, x) && same(b, y)) return greater ? AccumKind::Max : AccumKind::Min;
    if (same(a, y) && same(b, x)) return greater ? AccumKind::Min : AccumKind::Max;
    return std::nullopt;
  }
  Number where(const Op& op) {
    if (const auto fold = extremum(op)) return larger(op, *fold, op.inputs[1], op.inputs[2]);
    const bool exact = at(op.inputs[1]).exact && at(op.inputs[2]).exact;
    const TensorId a = to_real(op.inputs[1]), b = to_real(op.inputs[2]);
    const Number& c = at(op.inputs[0]);
    if (c.fixed) return chosen(op, out_.add(op.kind, {c.as_is, a, b}), range(op), exact);
    if (infinite_[op.inputs[1].index] || infinite_[op.inputs[2].index])
      refuse("an infinity where a decision says so");  // which no polynomial takes back
    Sources arms = at(op.inputs[1]).made;
    arms.join(at(op.inputs[2]).made);
    if ((arms.poles_of_bools & c.made.bools) != 0 || (arms.poles_of_signs & c.made.signs) != 0)
      refuse("a quotient by what may be 0 where a decision does not look at it");
    return chosen(op, shaped(op, blend(to_real(op.inputs[0]), a, b)), range(op), exact);
  }
  Number larger(const Op& op, AccumKind fold, TensorId x, TensorId y) {
    const bool maximum = fold == AccumKind::Max;
    const TensorId p = to_real(x), q = to_real(y);
    const Number &a = at(x), &b = at(y);
    if (!integral(x)) return result(op, out_.add(step_by(fold), {p, q}));
    const auto pick = [&](int64_t s, int64_t t) {
      return maximum ? std::max(s, t) : std::min(s, t);
    };
    const Bounds range{pick(a.range.low, b.range.low), pick(a.range.high, b.range.high)};
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
    return chosen(op, out_.add(step_by(fold), {p, q}), range, true);
  }
  // Over axes, windows or iterations.
  Number reduced_extremum(const Op& op) {
    const TensorId x = op.inputs[0];
    const TensorId p = to_real(x);
    const Number& a = at(x);
    if (integral(x) && !a.exact) refuse("an extremum of integers that may wrap");
    if (integral(x) && is_windowed(op.kind))
      for (const WindowAxis& w : window_axes(g_, op))
        if (w.low != 0 || w.high != 0) refuse("a maximum of integers over windows with padding");
    if (integral(x) && a.range.binary() && fold_of(op.kind) == AccumKind::Min)  // ∀ is ¬∃¬
      return result(op,
                    complement(out_.add(reduction_by(AccumKind::Max), {complement(p)}, op.attrs)),
                    a.range, true);
    return chosen(op, again(op), a.range, true);
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
                     : chosen(op, held(op.inputs[0]), bounds_of(from), true);
    }
    return result(op, p, x.range, x.exact);  // modulo 2^w of what is known modulo more
  }

  Number gather(const Op& op) {
    const TensorId table = to_real(op.inputs[0]);
    const Number& index = at(op.inputs[1]);
    const Number& x = at(op.inputs[0]);
    if (index.fixed)
      return chosen(op, out_.add(OpKind::Gather, {table, index.as_is}, op.attrs), x.range, x.exact);
    const Shape& shape = g_.type(op.inputs[0]).shape;
    const int axis = g_.attrs<AxisAttrs>(op).axis;
    if (!is_input(g_.producer(op.inputs[0]).kind) || g_.level() != Level::Kernel ||
        shape[size_t(axis)].extent == 0)
      refuse("an index computed from inputs into a table whose positions are computed differently");
    return chosen(op, element_of(table, shape, axis, op.inputs[1]), x.range, x.exact);
  }
  // An element of an input at a position that may be any: a function, known by name only, of the
  // axis, of the position and of the first element there, whose number no other element has.
  TensorId element_of(TensorId table, const Shape& shape, int axis, TensorId index) {
    SliceAttrs first;
    for (size_t d = 0; d < shape.size(); d++) {
      first.starts.push_back(0), first.steps.push_back(1);
      first.stops.push_back(int(d) == axis ? 1 : shape[d].extent);
    }
    const Shape& positions = g_.type(index).shape;
    Shape of_first(shape.begin(), shape.begin() + axis), of_index = positions;
    of_first.resize(of_first.size() + positions.size(), Dim(1));
    of_first.insert(of_first.end(), shape.begin() + axis + 1, shape.end());
    of_index.resize(of_index.size() + shape.size() - size_t(axis) - 1, Dim(1));
    return unknown_pair(
        build::reshape(out_, build::slice(out_, table, std::move(first)), {std::move(of_first)}),
        build::reshape(out_, held(index), {std::move(of_index)}), Name::Element, axis);
  }

  // --- functions of one number
  // Of an integer whose number is not known an unknown function, else by order.
  Number by_sign(const Op& op) {
    const TensorId x = op.inputs[0];
    if (!integral(x)) return result(op, again(op));
    if (!at(x).exact)
      return result(op,
                    unknown(to_real(x), Name::Absolute, int64_t(op.kind) * 16 + int64_t(dtype(x))));
    if (!has(op.kind, algebra::Jumps))  // 0 or the operand, or the negative of it, which may wrap
      return range(op).known() && range(op).within(hull(at(x).range, {0, 0})) ? copy(op)
                                                                              : computed_again(op);
    const TensorId above = sign(sub(to_real(x), number(Rational::ratio(1, 2)))),
                   below = sign(add(to_real(x), number(Rational::ratio(1, 2))));
    return result(op, half(add(above, below)), range(op), true);
  }
  Number power(const Op& op) {
    if (const auto* a = std::get_if<PowAttrs>(&op.attrs)) {
      if (a->exponent.den() >= kNames) refuse("an exponent that is no number");
      return computed_again(op);
    }
    // Of what is positive no decision is asked.
    if (signs_[op.inputs[0].index] != Sign::Positive) return result(op, again(op));
    const std::vector<TensorId> in = reals(op);
    return result(op, out_.add(OpKind::Exp, {mul(in[1], out_.add(OpKind::Log, {in[0]}))}));
  }
  Number modulo(const Op& op) {
    const TensorId x = op.inputs[0], y = op.inputs[1];
    if (!integral(x)) return result(op, again(op));
    const Bounds all = bounds_of(dtype(x)), below = range(op);  // a positive divisor
    const Bounds r = at(y).exact && below.within(all) ? below : all;
    return chosen(op, unknown_pair(held(x), held(y)), r, true);
  }

  Number apply(const Op& op) {
    interruption_point();
    switch (op.kind) {
    case OpKind::Not: return result(op, complement(to_real(op.inputs[0])));
    case OpKind::And: {
      const std::vector<TensorId> in = reals(op);
      return result(op, mul(in[0], in[1]));
    }
    case OpKind::Or: {
      const std::vector<TensorId> in = reals(op);
      return result(op, sub(add(in[0], in[1]), mul(in[0], in[1])));
    }
    case OpKind::Mod: return modulo(op);
    case OpKind::Pow:
    case OpKind::Power: return power(op);
    case OpKind::Where: return where(op);
    case OpKind::Cast: return cast(op);
    case OpKind::Gather: return gather(op);
    default: break;
    }
    if (is_literal(op.kind)) return result(op, again(op));
    if (is_comparison(op.kind)) return result(op, shaped(op, comparison(op)));
    if (is_extremum(op.kind)) return larger(op, *fold_of(op.kind), op.inputs[0], op.inputs[1]);
    if (decides_by_sign(op.kind)) return by_sign(op);
    if (const auto* a = std::get_if<PadAttrs>(&op.attrs))
      refuse_unless_held(g_.type(op.result()).dtype, a->value);
    const auto* a = std::get_if<AccumAttrs>(&op.attrs);
    const bool joins = a != nullptr && a->kind == AccumKind::Concat;
    if (joins || is_tile(op.kind) || has(op.kind, algebra::Movement)) return copy(op);
    const bool floats = has(op.kind, algebra::Floats);
    if (!floats && decides(op)) return reduced_extremum(op);
    if (!floats && !has(op.kind, algebra::Ring) && a == nullptr)
      refuse(std::string("the operator ") + name(op.kind));
    return computed_again(op);
  }

  const Graph& g_;
  Graph out_;
  std::vector<Number> v_;
  const std::vector<Sign> signs_;
  const std::vector<bool> infinite_;
};

// Whether something in the graph multiplies an infinity by what is not positive by form.
bool turns_infinities(const Graph& g, const std::vector<Sign>& arguments,
                      const std::vector<bool>& infinite_arguments) {
  const std::vector<Sign> signs = signs_of(g, arguments);
  const std::vector<bool> infinite = infinite_values(g, infinite_arguments);
  return std::ranges::any_of(g.ops(), [&](const Op& op) {
    const auto at = [&](size_t i) { return infinite[op.inputs[i].index]; };
    const auto positive = [&](size_t i) { return signs[op.inputs[i].index] == Sign::Positive; };
    if (op.body.valid()) {
      std::vector<Sign> inner;
      std::vector<bool> inner_infinite;
      for (TensorId t : op.inputs) {
        inner.push_back(signs[t.index]);
        inner_infinite.push_back(infinite[t.index]);
      }
      return turns_infinities(g.body(op), inner, inner_infinite);
    }
    if (op.kind == OpKind::Mul) return (at(0) && !positive(1)) || (at(1) && !positive(0));
    if (op.kind == OpKind::Div) return at(0) && !positive(1);
    return is_bilinear(op.kind) &&
           std::ranges::any_of(op.inputs, [&](TensorId t) { return bool(infinite[t.index]); });
  });
}

}  // namespace

bool turns_infinities(const Graph& g) { return turns_infinities(g, {}, {}); }

bool is_infinite_in_padding(const Graph& g, const Op& op) {
  if (op.kind != OpKind::PoolMax) return false;
  return std::ranges::any_of(window_axes(g, op), [](const WindowAxis& a) {
    return a.low >= a.taps || a.high >= a.taps || a.dilation > 1;
  });
}

bool holds(DType dtype, const Rational& value) {
  if (!value.finite() || value.den() != 1 || value.exp2() < 0) return false;
  const double x = value.to_double();
  if (dtype == DType::I64) return x >= -0x1p63 && x < 0x1p63;
  return x >= double(bounds_of(dtype).low) && x <= double(bounds_of(dtype).high);
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
  return any_op(
      g,
      [](const Graph& at, const Op& op) {
        for (uint32_t r = 0; r < op.num_results; r++)
          if (!is_float(at.type(op.result(r)).dtype)) return true;
        return decides(op);
      });
}

std::variant<Graph, NotAbstracted> abstract_decisions(const Graph& graph) {
  try {
    const Graph moved = with_gathers_of_inputs(graph);
    Abstraction a(moved, Graph(graph.name()));
    a.run({});
    return a.finish();
  } catch (const NotAbstracted& why) {
    return why;
  }
}

}  // namespace tessera
