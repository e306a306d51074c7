#include "verify/degrees.h"

#include "base/interruption.h"
#include "eval/pointwise.h"
#include "ir/axis_reads.h"
#include "ir/block_schedule.h"
#include "ir/window.h"
#include "verify/degree_algebra.h"

namespace tessera {
namespace degree_algebra {
namespace {

// One element as a domain of eval/pointwise.h: `mask` is what it depends on, see Use.
struct DegreeVec {
  Algebra* a = nullptr;
  Signs signs = Signs::Character;
  Value v;
  unsigned mask = 0;

  DegreeVec of(Value value, unsigned also = 0) const {
    return {a, signs, std::move(value), mask | also};
  }
  // A function known by name only.
  DegreeVec unknown() const { return of(a->unknown(v, mask), mask); }
  DegreeVec constant(const Rational& c) const { return {a, signs, Algebra::constant(c), 0}; }
  void assign_integers(const DegreeVec& x) { *this = x; }
};
using V = DegreeVec;

V operator-(const V& x) { return x; }
V operator+(const V& x, const V& y) { return x.of(x.a->add(x.v, y.v), y.mask); }
V operator-(const V& x, const V& y) { return x + y; }
V operator*(const V& x, const V& y) { return x.of(x.a->multiply(x.v, y.v), y.mask); }
V operator/(const V& x, const V& y) { return x.of(x.a->divide(x.v, y.v, y.mask), y.mask); }
V log1p(const V& x) { return (x + x.constant(1)).unknown(); }
V exp(const V& x) { return x.of(x.a->exponential(x.v)); }
V expm1(const V& x) { return exp(x) + x.constant(1); }
V sqrt(const V& x) { return x.of(x.a->root(x.v)); }
V logistic(const V& x) { return x.constant(1) / (x.constant(1) + exp(x)); }
V tanh(const V& x) { return logistic(x + x) + x.constant(1); }
V gelu(const V& x) { return sqrt(x.constant(2)) * x * (x.constant(1) + erf(x)); }
V gelu_tanh(const V& x) {
  const V u = x.constant(Rational::from_double(0.7978845608028654)) *
              (x + x.constant(Rational::ratio(44715, 1000000)) * (x * (x * x)));
  return x * logistic(u + u);
}
// A test, or a function known by name.
V sign(const V& x) { return x.signs == Signs::Unknown ? x.unknown() : x.of(Algebra::test(x.v)); }
V abs(const V& x) { return x * sign(x); }
V relu(const V& x) { return x * sign(x); }
V power(const V& x, const Rational& e) {
  const bool half = e.den() == 2 && e.exp2() == 0;
  if (!(e.is_integer() || half) || e.num() > 64 || e.num() < -64) return x.unknown();
  const V base = half ? sqrt(x) : x;
  V r = x.of(Value());
  for (int64_t i = 0; i < std::abs(e.num()); i++) r = r * base;
  return e.negative() ? x.constant(1) / r : r;
}
V power(const V& x, const V& y) {  // e^(y log x) or, by the sign of x, a function of both
  const V r = exp(y * x.unknown()) + (x + y).unknown();
  return r + r * sign(x);
}
V mod(const V& x, const V& y) { return x + y * (x / y).unknown(); }
V atan2(const V& x, const V& y) {
  const V angle = (x / y).unknown();
  return angle + angle * sign(y);
}
V max(const V& x, const V& y) { return y + (x + y) * sign(x + y); }
V min(const V& x, const V& y) { return max(x, y); }
V logical_not(const V& x) { return x; }
V logical_or(const V& x, const V& y) { return x * y; }
V compare(const V& x, const V& y, Order) { return x.of(Algebra::test((x + y).v), y.mask); }
V select(const V& c, const V& x, const V& y) {
  return c.of(c.a->select(c.v, x.v, y.v), x.mask | y.mask);
}

class Analysis : public Algebra {
 public:
  explicit Analysis(Signs signs) : signs_(signs) {}
  std::vector<Value> run(const Graph& g, const std::vector<Value>& arguments) {
    std::vector<Value> v(g.tensors().size());
    size_t next = 0;
    for (const Op& op : g.ops()) {
      if (is_input(op.kind)) {
        v[op.result().index] = arguments[next++];
        continue;
      }
      if (op.body.valid()) {
        std::vector<Value> in = mapped(op.inputs, [&](TensorId t) { return v[t.index]; });
        const Graph& body = g.body(op);
        const double outside = runs_;
        if (body.level() == Level::Block) {
          runs_ *= double(body.num_blocks());
          runs_ *= total_iterations(body, block_schedule(body));
        }
        std::vector<Value> inner = run(body, in);
        runs_ = outside;
        for (uint32_t r = 0; r < op.num_results; r++)
          v[op.result(r).index] = inner[body.outputs()[r].index];
        continue;
      }
      here_ = 1;
      for (TensorId t : op.inputs)
        here_ = std::max(here_, runs_ * double(num_elements(g.type(t).shape)));
      here_ = std::max(here_, runs_ * double(num_elements(g.type(op.result()).shape)));
      const Value result = apply({g, op, v});
      for (uint32_t r = 0; r < op.num_results; r++) v[op.result(r).index] = result;
    }
    return v;
  }

 private:
  // One operator and its operands.
  struct Applied {
    const Graph& g;
    const Op& op;
    const std::vector<Value>& v;

    int rank() const { return g.type(op.result()).rank(); }
    int rank(size_t i) const { return g.type(op.inputs[i]).rank(); }
    int shift(size_t i) const { return std::max(rank(), rank(i)) - rank(i); }
    const Value& raw(size_t i) const { return v[op.inputs[i].index]; }
    unsigned own(size_t i) const { return own_mask(g, op.inputs[i], raw(i)); }
    // With its axes aligned to those of the result.
    Value in(size_t i) const { return aligned(raw(i), rank(i), rank(i) + shift(i)); }
    unsigned mask(size_t i) const { return (own(i) & ~0xffu) | ((own(i) & 0xffu) << shift(i)); }
  };

  Value all_axes(Value x) {  // movement too complex to follow: depends on everything
    rename(x, 0xffu);
    remap(x, [](unsigned m) { return m ? 0xffu : 0u; });
    return x;
  }
  // The sum of n elements, or a function of the set of them, for which sums collect the figures;
  // `gone` are the axes and loops gone over, `left` those that a set still depends on.
  Value folded(const Value& x, unsigned gone, unsigned left, double n, bool ordered) {
    Value all = sum(x, gone, n);
    return ordered ? set_of(all, x, left, n) : all;
  }

  Value pointwise(const Applied& x) {
    const Op& op = x.op;
    const DType from = x.g.type(op.inputs[0]).dtype;
    if (op.kind == OpKind::Cast && !is_float(from)) return x.in(0);
    const bool maximum = fold_of(op.kind) == AccumKind::Max;
    if (tessera::is_extremum(op.kind) &&
        (is_extremum(x.g, op.inputs[0], maximum) || is_extremum(x.g, op.inputs[1], maximum))) {
      const Value d = add(x.in(0), x.in(1));
      return set_of(d, d, x.mask(0) | x.mask(1), 2);
    }
    std::vector<V> operands;
    for (size_t i = 0; i < op.inputs.size(); i++)
      operands.push_back({this, signs_, x.in(i), x.mask(i)});
    return apply_to_one(op, from, x.g.type(op.result()).dtype, operands).v;
  }

  Value reduction(const Applied& x) {
    const auto& a = x.g.attrs<ReduceAttrs>(x.op);
    unsigned gone = 0;
    for (int axis : a.axes) gone |= 1u << axis;
    const double n = terms_of(x.g, x.op);
    Value r = folded(x.raw(0), gone, x.own(0) & ~gone, n, !is_sum(x.op.kind));
    if (!a.keepdims && gone != 0) {
      rename(r, (1u << a.axes.back()) - 1);
      remap(r, [&](unsigned m) {
        unsigned out = 0;
        int at = 0;
        for (int d = 0; d < 8; d++)
          if (!(gone >> d & 1u)) out |= ((m >> d) & 1u) << at++;
        return out;
      });
    }
    if (x.op.kind == OpKind::Mean) r.log_scale += std::log2(n);
    return r;
  }

  Value matmul(const Applied& x, size_t i, size_t j) {
    constexpr unsigned kContracted = 1u << 12;  // stands for the contracted axis meanwhile
    const int rank = x.rank();
    const auto placed = [&](size_t operand, int contracted, int kept, int to) {
      Value z = x.raw(operand);
      const int r = x.rank(operand);
      rename(z, 1u << (r - contracted));
      for (auto* uses : {&z.dens, &z.unknowns})
        for (auto& [id, use] : *uses) {
          unsigned m = use.mask & 0xf00u;
          for (int d = 0; d < r - 2; d++)
            if (use.mask >> d & 1u) m |= 1u << (d + rank - r);
          if (use.mask >> (r - contracted) & 1u) m |= kContracted;
          if (use.mask >> (r - kept) & 1u) m |= 1u << (rank - to);
          use.mask = m;
        }
      return z;
    };
    const double depth = double(x.g.type(x.op.inputs[i]).shape.back().extent);
    return sum(multiply(placed(i, 1, 2, 2), placed(j, 2, 1, 1)), kContracted, depth);
  }

  Value windows(const Applied& x) {
    Value seen = all_axes(x.raw(0));
    if (is_convolution(x.op.kind)) seen = multiply(seen, all_axes(x.raw(1)));
    return folded(seen, 0xffu, 0xffu, terms_of(x.g, x.op), decides(x.op));
  }

  Value cumulative(const Applied& x) const {
    const unsigned axis = 1u << x.g.attrs<AxisAttrs>(x.op).axis;
    Value r = sum(x.raw(0), axis, terms_of(x.g, x.op));
    remap(r, [&](unsigned m) { return m | axis; });
    return r;
  }

  Value gather(const Applied& x) {
    Value r = all_axes(x.raw(0));
    const Value& index = x.raw(1);
    r.sampled = r.sampled || index.sampled || !index.unknowns.empty();
    return r;
  }

  // What depends on a cut axis varies with the loops that cut it.
  Value loaded(const Applied& x) {
    const auto& a = x.g.attrs<IterAttrs>(x.op);
    Value r = x.raw(0);
    rename(r, 0xffu);
    for (size_t l = 0; l < a.fmap.size(); l++) {
      if (a.fmap[l] < 0) continue;
      for (auto* uses : {&r.dens, &r.unknowns})
        for (auto& [id, use] : *uses)
          if (use.mask >> a.fmap[l] & 1u) use.mask |= 1u << (8 + l);
      r.loops |= 1u << l;
    }
    return r;
  }

  Value accumulated(const Applied& x) {
    const auto& a = x.g.attrs<AccumAttrs>(x.op);
    const double n = terms_of(x.g, x.op);
    unsigned gone = 0;
    for (int l : a.loops) gone |= 1u << (8 + l);
    Value r = x.in(0);
    if (x.op.inputs.size() == 2) {  // Σ v·exp(m − max m)
      const Value m = x.in(1);
      const Value top = folded(m, gone, own_mask(x.g, x.op.inputs[1], m) & ~gone, n, true);
      r = sum(multiply(r, exponential(add(m, top))), gone, n);
    } else if (a.kind == AccumKind::Concat) {
      r = all_axes(r);
    } else {
      r = folded(r, gone, x.own(0) & ~gone, n, decides(x.op));
    }
    r.loops &= ~(gone >> 8);
    return r;
  }

  Value moved(const Applied& x, const std::vector<AxisRead>& reads) {
    Value r = x.raw(0);
    for (size_t d = 0; d < reads.size(); d++) {
      const AxisRead& at = reads[d];
      const bool stays =
          at.axis - x.rank() == int(d) - x.rank(0) && at.start == 0 && at.step == 1 && !at.wraps;
      if (!stays) rename(r, 1u << d);
    }
    remap(r, [&](unsigned m) {
      unsigned out = 0;
      for (size_t d = 0; d < reads.size(); d++)
        if ((m >> d & 1u) && reads[d].axis >= 0) out |= 1u << reads[d].axis;
      return out;
    });
    return r;
  }

  Value apply(const Applied& x) {
    interruption_point();
    const Op& op = x.op;
    if (op.constant()) return constant(*op.constant());
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs)) {
      Value r;
      r.log_size = std::log2(double(a->type.shape[size_t(a->axis)].extent));
      return r;
    }
    if (has(op.kind, algebra::Pointwise)) return pointwise(x);
    if (is_reduction(op.kind)) return reduction(x);
    if (is_windowed(op.kind)) return windows(x);
    if (is_scan(op.kind)) return cumulative(x);
    if (is_product(op.kind)) {
      const size_t n = op.inputs.size() / 2;
      return n == 1 ? matmul(x, 0, 1) : add(matmul(x, 0, n), matmul(x, 1, 1 + n));
    }
    if (op.kind == OpKind::Gather) return gather(x);
    if (is_load(op.kind)) return loaded(x);
    if (is_accumulator(op.kind)) return accumulated(x);
    if (const auto* a = std::get_if<PadAttrs>(&op.attrs)) {
      Value r = x.raw(0);
      rename(r, 0xffu);
      return add(std::move(r), constant(a->value));
    }
    if (is_store(op.kind) || is_triangle(op.kind)) return x.raw(0);
    if (const auto reads = axis_reads(op.kind, op.attrs, x.rank(0), x.rank()))
      return moved(x, *reads);
    Value r = all_axes(x.raw(0));
    for (size_t i = 1; i < op.inputs.size(); i++) r = add(r, all_axes(x.raw(i)));
    return r;
  }

  Signs signs_;
};

}  // namespace
}  // namespace degree_algebra

Degrees degrees(const Graph& graph, Signs signs) {
  degree_algebra::Analysis analysis(signs);
  std::vector<degree_algebra::Value> arguments;
  for (TensorId t : graph.inputs()) {
    degree_algebra::Value v;
    const DType dtype = graph.type(t).dtype;
    v.degree = is_float(dtype) ? 1 : 0;
    v.sampled = is_integer(dtype);
    arguments.push_back(v);
  }
  std::vector<degree_algebra::Value> values = analysis.run(graph, arguments);
  Degrees d;
  for (TensorId t : graph.outputs()) {
    const degree_algebra::Value& v = values[t.index];
    auto most = [](double& a, double b) { a = std::max(a, b); };
    most(d.numerator, v.degree);
    most(d.denominator, analysis.den_degree(v));
    most(d.log_terms_num, v.log_terms);
    most(d.log_terms_den, analysis.den_terms(v));
    most(d.exponent_degree, v.exponent_degree);
    most(
        d.log_exponent_size,
        std::max(0.0, degree_algebra::log_add(v.log_exponent_size, analysis.den_exponent_size(v))) +
            v.log_exponent_scale);
    d.has_exp = d.has_exp || v.has_exp;
    d.hard_exponent = d.hard_exponent || v.hard;
    double unknowns = 0;
    for (const auto& [id, use] : v.unknowns) unknowns += use.copies;
    most(d.unknowns, unknowns);
    most(d.unknown_degree, v.unknown_degree);
    d.sampled_integers = d.sampled_integers || v.sampled;
  }
  return d;
}

}  // namespace tessera
