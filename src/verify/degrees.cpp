#include "verify/degrees.h"

#include "base/check.h"
#include "base/interruption.h"
#include "eval/pointwise.h"
#include "ir/axis_reads.h"
#include "ir/block_schedule.h"
#include "ir/window.h"
#include "verify/degree_algebra.h"

namespace tessera {
namespace {

using namespace degree_algebra;

// The loops that an accumulator goes over, as a mask, and how many iterations they have.
std::pair<unsigned, double> summed_loops(const Graph& g, const AccumAttrs& a) {
  unsigned mask = 0;
  double n = 1;
  for (int l : a.loops) {
    mask |= 1u << (8 + l);
    n *= double(g.loops()[size_t(l)]);
  }
  return {mask, n};
}

// One element as a domain of eval/pointwise.h: `mask` is what it depends on, see Use.
struct DegreeVec {
  Algebra* a = nullptr;
  Signs signs = Signs::Character;
  Value v;
  unsigned mask = 0;

  DegreeVec of(Value value, unsigned also = 0) const {
    return {a, signs, std::move(value), mask | also};
  }
  DegreeVec constant(const Rational& c) const { return {a, signs, Algebra::constant(c), 0}; }
  void assign_integers(const DegreeVec& x) { *this = x; }
};
using V = DegreeVec;

V operator-(const V& x) { return x; }
V operator+(const V& x, const V& y) { return x.of(x.a->add(x.v, y.v), y.mask); }
V operator-(const V& x, const V& y) { return x + y; }
V operator*(const V& x, const V& y) { return x.of(x.a->multiply(x.v, y.v), y.mask); }
V operator/(const V& x, const V& y) { return x.of(x.a->divide(x.v, y.v, y.mask), y.mask); }
// A function known by name only.
V named(const V& x) { return x.of(x.a->unknown(x.v, x.mask)); }
V log(const V& x) { return named(x); }
V sin(const V& x) { return named(x); }
V cos(const V& x) { return named(x); }
V erf(const V& x) { return named(x); }
V floor(const V& x) { return named(x); }
V round(const V& x) { return named(x); }
V truncate(const V& x, DType) { return named(x); }
V not_zero(const V& x) { return named(x); }
V log1p(const V& x) { return named(x + x.constant(1)); }
V exp(const V& x) { return x.of(x.a->exponential(x.v)); }
V expm1(const V& x) { return exp(x) + x.constant(1); }
V sqrt(const V& x) { return x.of(x.a->root(x.v, x.mask)); }
V logistic(const V& x) { return x.constant(1) / (x.constant(1) + exp(x)); }
V tanh(const V& x) { return logistic(x + x) + x.constant(1); }
V gelu(const V& x) {
  V e = x * (x.constant(1) + erf(x));
  x.a->add_root(e.v);
  return e;
}
V gelu_tanh(const V& x) {
  const V u = x.constant(Rational::from_double(0.7978845608028654)) *
              (x + x.constant(Rational::ratio(44715, 1000000)) * (x * (x * x)));
  return x * logistic(u + u);
}
// A test, or a function known by name.
V sign(const V& x) { return x.signs == Signs::Unknown ? named(x) : x.of(Algebra::test(x.v)); }
V abs(const V& x) { return x * sign(x); }
V relu(const V& x) { return x * sign(x); }
V power(const V& x, const Rational& e) {
  const bool half = e.den() == 2 && e.exp2() == 0;
  if (!(e.is_integer() || half) || e.num() > 64 || e.num() < -64) return named(x);
  const V base = half ? sqrt(x) : x;
  V r = x.of(Value());
  for (int64_t i = 0; i < std::abs(e.num()); i++) r = r * base;
  return e.negative() ? x.constant(1) / r : r;
}
V power(const V& x, const V& y) {  // e^(y log x) or, by the sign of x, a function of both
  const V r = exp(y * named(x)) + named(x + y);
  return r + r * sign(x);
}
V mod(const V& x, const V& y) { return x + y * named(x / y); }
V atan2(const V& x, const V& y) {
  const V angle = named(x / y);
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
      if (op.kind == OpKind::Input) {
        v[op.result().index] = arguments[next++];
        continue;
      }
      if (op.body.valid()) {
        std::vector<Value> in;
        for (TensorId t : op.inputs) in.push_back(v[t.index]);
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
      Value result = apply(g, op, v);
      for (uint32_t r = 0; r < op.num_results; r++) v[op.result(r).index] = result;
    }
    return v;
  }

 private:
  Value apply(const Graph& g, const Op& op, std::vector<Value>& v) {
    interruption_point();
    const int rank = g.type(op.result()).rank();
    auto in = [&](size_t i) {
      return aligned(v[op.inputs[i].index], g.type(op.inputs[i]).rank(),
                     std::max(rank, g.type(op.inputs[i]).rank()));
    };
    auto raw = [&](size_t i) -> const Value& { return v[op.inputs[i].index]; };
    auto mask = [&](size_t i) {
      const int r = g.type(op.inputs[i]).rank();
      const unsigned m = own_mask(g, op.inputs[i], raw(i));
      return (m & ~0xffu) | ((m & 0xffu) << (std::max(rank, r) - r));
    };
    auto reduced = [&](const std::vector<int>& axes, double& n) {
      unsigned gone = 0;
      n = 1;
      for (int a : axes) {
        gone |= 1u << a;
        n *= double(g.type(op.inputs[0]).shape[size_t(a)].extent);
      }
      return gone;
    };
    auto drop_axes = [&](Value x, const ReduceAttrs& a) {
      if (!a.keepdims)
        remap(
            x,
            [&](unsigned m) {
              unsigned out = 0;
              int at = 0;
              for (int d = 0; d < 8; d++)
                if (!std::ranges::binary_search(a.axes, d)) out |= ((m >> d) & 1u) << at++;
              return out;
            });
      return x;
    };
    auto matmul = [&](size_t i, size_t j) {
      // Contracted axis: last of x, last but one of y.
      Value x = raw(i), y = raw(j);
      const int rx = g.type(op.inputs[i]).rank(), ry = g.type(op.inputs[j]).rank();
      const double k = double(g.type(op.inputs[i]).shape[size_t(rx) - 1].extent);
      // Bit 12 stands for the contracted axis meanwhile.
      auto place = [&](Value& z, int r, int contracted, int kept, int to) {
        for (auto* uses : {&z.dens, &z.roots, &z.unknowns})
          for (auto& [id, use] : *uses) {
            unsigned m = use.mask & 0xf00u;
            for (int d = 0; d < r - 2; d++)
              if (use.mask >> d & 1u) m |= 1u << (d + rank - r);
            if (use.mask >> contracted & 1u) m |= 1u << 12;
            if (use.mask >> kept & 1u) m |= 1u << to;
            use.mask = m;
          }
      };
      place(x, rx, rx - 1, rx - 2, rank - 2);
      place(y, ry, ry - 2, ry - 1, rank - 1);
      return sum(multiply(x, y), 1u << 12, k);
    };
    auto all_axes = [](Value x) {  // movement too complex to follow: depends on everything
      remap(x, [](unsigned m) { return m ? 0xffu : 0u; });
      return x;
    };

    if (has(op.kind, algebra::Pointwise)) {
      const DType from = g.type(op.inputs[0]).dtype;
      if (op.kind == OpKind::Cast && !is_float(from)) return in(0);
      const bool maximum = fold_of(op.kind) == AccumKind::Max;
      if (tessera::is_extremum(op.kind) &&
          (is_extremum(g, op.inputs[0], maximum) || is_extremum(g, op.inputs[1], maximum))) {
        const Value d = add(in(0), in(1));
        return set_of(d, d, mask(0) | mask(1), 2);
      }
      std::vector<V> operands;
      for (size_t i = 0; i < op.inputs.size(); i++)
        operands.push_back({this, signs_, in(i), mask(i)});
      return apply_to_one(op, from, g.type(op.result()).dtype, operands).v;
    }
    if (is_reduction(op.kind)) {
      const auto& a = g.attrs<ReduceAttrs>(op);
      double n;
      const unsigned gone = reduced(a.axes, n);
      if (!is_sum(op.kind)) {
        // A function of the set of arguments; sums collect the figures of all of them.
        const unsigned left = own_mask(g, op.inputs[0], raw(0)) & ~gone;
        return drop_axes(set_of(sum(raw(0), gone, n), raw(0), left, n), a);
      }
      Value r = drop_axes(sum(raw(0), gone, n), a);
      if (op.kind == OpKind::Mean) r.log_scale += std::log2(n);
      return r;
    }
    switch (op.kind) {
    case OpKind::Const: return constant(*op.constant());
    case OpKind::Iota: {
      Value r;
      const Shape& s = g.type(op.result()).shape;
      r.log_size = std::log2(double(s[size_t(g.attrs<IotaAttrs>(op).axis)].extent));
      return r;
    }
    case OpKind::Cumsum: {
      const int axis = g.attrs<AxisAttrs>(op).axis;
      const double n = double(g.type(op.inputs[0]).shape[size_t(axis)].extent);
      Value r = sum(raw(0), 1u << axis, n);
      remap(r, [&](unsigned m) { return m | 1u << axis; });
      return r;
    }
    case OpKind::Matmul: return matmul(0, 1);
    case OpKind::ConcatMatmul: return add(matmul(0, 2), matmul(1, 3));
    case OpKind::Pad: return add(raw(0), constant(g.attrs<PadAttrs>(op).value));
    case OpKind::Gather: {
      Value r = all_axes(raw(0));
      r.sampled = r.sampled || raw(1).sampled;
      unite(r.unknowns, all_axes(raw(1)).unknowns);
      r.unknown_degree = std::max(r.unknown_degree, raw(1).unknown_degree);
      r.selected = r.selected || !raw(1).unknowns.empty();
      return r;
    }
    case OpKind::Conv:
    case OpKind::ConvTranspose:
      return sum(multiply(all_axes(raw(0)), all_axes(raw(1))), 0xffu, terms_of(g, op));
    case OpKind::PoolSum: return sum(all_axes(raw(0)), 0xffu, terms_of(g, op));
    case OpKind::PoolMax: {
      const double n = terms_of(g, op);
      const Value x = all_axes(raw(0));
      return set_of(sum(x, 0xffu, n), x, 0xffu, n);
    }
    case OpKind::Opaque: {
      Value all;
      for (size_t i = 0; i < op.inputs.size(); i++) {
        double n = double(num_elements(g.type(op.inputs[i]).shape));
        all = add(all, sum(all_axes(raw(i)), 0xffu, n));
      }
      return unknown(all, 0xfffu);
    }
    case OpKind::Iter: {
      const auto& a = g.attrs<IterAttrs>(op);
      Value r = raw(0);
      for (auto* uses : {&r.dens, &r.roots, &r.unknowns})
        for (auto& [id, use] : *uses)
          for (size_t l = 0; l < a.fmap.size(); l++)
            if (a.fmap[l] >= 0 && (use.mask >> a.fmap[l] & 1u)) use.mask |= 1u << (8 + l);
      for (size_t l = 0; l < a.fmap.size(); l++)
        if (a.fmap[l] >= 0) r.loops |= 1u << l;
      return r;
    }
    case OpKind::Accum: {
      const auto& a = g.attrs<AccumAttrs>(op);
      const auto [gone, n] = summed_loops(g, a);
      Value r = raw(0);
      r.loops &= ~(gone >> 8);
      switch (a.kind) {
      case AccumKind::Sum: return sum(r, gone, n);
      case AccumKind::Max:
      case AccumKind::Min:
        return set_of(sum(r, gone, n), r, own_mask(g, op.inputs[0], raw(0)) & ~gone, n);
      case AccumKind::Concat: return all_axes(r);
      }
      unreachable("AccumKind");
    }
    case OpKind::AccumRescale: {  // Σ v·exp(m − max m)
      const auto& a = g.attrs<AccumAttrs>(op);
      const auto [gone, n] = summed_loops(g, a);
      Value m = in(1), x = in(0);
      Value top = set_of(sum(m, gone, n), m, own_mask(g, op.inputs[1], m) & ~gone, n);
      Value r = sum(multiply(x, exponential(add(m, top))), gone, n);
      r.loops &= ~(gone >> 8);
      return r;
    }
    default: break;
    }
    if (op.kind == OpKind::Save || is_triangle(op.kind)) return raw(0);
    const int rank_of_x = g.type(op.inputs[0]).rank();
    if (const auto reads = axis_reads(op.kind, op.attrs, rank_of_x, rank)) {
      Value r = raw(0);
      remap(r, [&](unsigned m) {
        unsigned out = 0;
        for (size_t d = 0; d < reads->size(); d++)
          if ((m >> d & 1u) && (*reads)[d].axis >= 0) out |= 1u << (*reads)[d].axis;
        return out;
      });
      return r;
    }
    Value r = all_axes(raw(0));
    for (size_t i = 1; i < op.inputs.size(); i++) r = add(r, all_axes(raw(i)));
    return r;
  }

  Signs signs_;
};

}  // namespace

Degrees degrees(const Graph& graph, Signs signs) {
  Analysis analysis(signs);
  std::vector<Value> arguments;
  for (TensorId t : graph.inputs()) {
    Value v;
    const DType dtype = graph.type(t).dtype;
    v.degree = is_float(dtype) ? 1 : 0;
    v.sampled = is_integer(dtype);
    if (dtype == DType::Bool) v.signs = v.sign_degree = 1;  // a fair coin
    arguments.push_back(v);
  }
  std::vector<Value> values = analysis.run(graph, arguments);
  Degrees d;
  for (TensorId t : graph.outputs()) {
    const Value& v = values[t.index];
    auto most = [](double& a, double b) { a = std::max(a, b); };
    most(d.numerator, v.degree);
    most(d.denominator, analysis.den_degree(v));
    most(d.log_terms_num, v.log_terms);
    most(d.log_terms_den, analysis.den_terms(v));
    most(d.exponent_degree, v.exponent_degree);
    most(d.log_exponent_size,
         std::max(0.0, log_add(v.log_exponent_size, analysis.den_exponent_size(v))) +
             v.log_exponent_scale);
    d.has_exp = d.has_exp || v.has_exp;
    d.hard_exponent = d.hard_exponent || v.hard;
    double roots = 0;
    for (const auto& [id, use] : v.roots) roots += use.copies;
    most(d.roots, roots);
    most(d.sign_tests, v.signs);
    most(d.sign_degree, std::min(v.sign_degree, v.signs));
    double unknowns = 0;
    for (const auto& [id, use] : v.unknowns) unknowns += use.copies;
    most(d.unknowns, unknowns);
    most(d.unknown_degree, v.unknown_degree);
    d.sampled_integers = d.sampled_integers || v.sampled;
    d.selected = d.selected || v.selected;
  }
  return d;
}

}  // namespace tessera
