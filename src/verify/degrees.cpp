#include "verify/degrees.h"

#include "base/check.h"
#include "base/interruption.h"
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
    auto reduced = [&](const std::vector<int>& axes, bool keepdims, size_t i, double& n) {
      unsigned gone = 0;
      n = 1;
      for (int a : axes) {
        gone |= 1u << a;
        n *= double(g.type(op.inputs[i]).shape[size_t(a)].extent);
      }
      (void)keepdims;
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
                if (!std::binary_search(a.axes.begin(), a.axes.end(), d))
                  out |= ((m >> d) & 1u) << at++;
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

    // The sign of x: a test, or a function known by name.
    auto sign = [&](const Value& x, unsigned m) {
      return signs_ == Signs::Unknown ? unknown(x, m) : test(x);
    };

    switch (op.kind) {
    case OpKind::Input: unreachable("handled by run");
    case OpKind::Const: return constant(g.attrs<ConstAttrs>(op).value);
    case OpKind::Iota: {
      Value r;
      const Shape& s = g.type(op.result()).shape;
      r.log_size = std::log2(double(s[size_t(g.attrs<IotaAttrs>(op).axis)].extent));
      return r;
    }
    case OpKind::Neg: return in(0);
    case OpKind::Abs:
    case OpKind::Relu: return multiply(in(0), sign(in(0), mask(0)));
    case OpKind::Sign: return sign(in(0), mask(0));
    case OpKind::Sqr: return multiply(in(0), in(0));
    case OpKind::Sqrt: return root(in(0), mask(0));
    case OpKind::Rsqrt: return divide(Value(), root(in(0), mask(0)), mask(0));
    case OpKind::Exp: return exponential(in(0));
    case OpKind::Log1p: return unknown(add(in(0), Value()), mask(0));
    case OpKind::Expm1: return add(exponential(in(0)), Value());
    case OpKind::Log:
    case OpKind::Sin:
    case OpKind::Cos:
    case OpKind::Erf:
    case OpKind::Floor:
    case OpKind::Round: return unknown(in(0), mask(0));
    case OpKind::Tanh: {
      Value s = logistic(add(in(0), in(0)), mask(0));
      return add(s, Value());
    }
    case OpKind::Sigmoid: return logistic(in(0), mask(0));
    case OpKind::Silu: return multiply(in(0), logistic(in(0), mask(0)));
    case OpKind::Gelu: {
      Value e = multiply(in(0), add(Value(), unknown(in(0), mask(0))));
      e.roots[next_root_++] = {1, 1, 0};
      return e;
    }
    case OpKind::GeluTanh: {
      Value x = in(0);
      Value u = multiply(
          constant(Rational::from_double(0.7978845608028654)),
          add(x, multiply(constant(Rational::ratio(44715, 1000000)), multiply(x, multiply(x, x)))));
      return multiply(x, logistic(add(u, u), mask(0)));
    }
    case OpKind::Pow: {
      const Rational& e = g.attrs<PowAttrs>(op).exponent;
      const bool half = e.den() == 2 && e.exp2() == 0;
      if (!(e.is_integer() || half) || e.num() > 64 || e.num() < -64)
        return unknown(in(0), mask(0));
      Value base = half ? root(in(0), mask(0)) : in(0), r;
      for (int64_t i = 0; i < std::abs(e.num()); i++) r = multiply(r, base);
      return e.negative() ? divide(Value(), r, mask(0)) : r;
    }
    case OpKind::Not: return in(0);
    case OpKind::Cast: {
      const DType to = g.type(op.result()).dtype;
      const bool from_float = is_float(g.type(op.inputs[0]).dtype);
      if (from_float && !is_float(to)) return unknown(in(0), mask(0));
      return in(0);
    }
    case OpKind::Add:
    case OpKind::Sub: return add(in(0), in(1));
    case OpKind::Mul: return multiply(in(0), in(1));
    case OpKind::Div: return divide(in(0), in(1), mask(1));
    case OpKind::Power: {  // e^(y log x) or, by the sign of x, a function of both
      Value r = add(exponential(multiply(in(1), unknown(in(0), mask(0)))),
                    unknown(add(in(0), in(1)), mask(0) | mask(1)));
      return add(r, multiply(r, sign(in(0), mask(0))));
    }
    case OpKind::Mod: {
      Value quotient = unknown(divide(in(0), in(1), mask(1)), mask(0) | mask(1));
      return add(in(0), multiply(in(1), quotient));
    }
    case OpKind::Atan2: {
      Value angle = unknown(divide(in(0), in(1), mask(1)), mask(0) | mask(1));
      return add(angle, multiply(angle, sign(in(1), mask(1))));
    }
    case OpKind::Max:
    case OpKind::Min: {
      Value d = add(in(0), in(1));
      const bool maximum = op.kind == OpKind::Max;
      if (is_extremum(g, op.inputs[0], maximum) || is_extremum(g, op.inputs[1], maximum))
        return set_of(d, d, mask(0) | mask(1), 2);
      return add(in(1), multiply(d, sign(d, mask(0) | mask(1))));
    }
    case OpKind::And:
    case OpKind::Or: return multiply(in(0), in(1));
    case OpKind::Eq:
    case OpKind::Ne:
    case OpKind::Lt:
    case OpKind::Le:
    case OpKind::Gt:
    case OpKind::Ge: return test(add(in(0), in(1)));
    case OpKind::Where: return select(in(0), in(1), in(2));
    case OpKind::Sum:
    case OpKind::Mean: {
      const auto& a = g.attrs<ReduceAttrs>(op);
      double n;
      const unsigned gone = reduced(a.axes, a.keepdims, 0, n);
      Value r = drop_axes(sum(raw(0), gone, n), a);
      if (op.kind == OpKind::Mean) r.log_scale += std::log2(n);
      return r;
    }
    case OpKind::ReduceMax:
    case OpKind::ReduceMin: {
      const auto& a = g.attrs<ReduceAttrs>(op);
      double n;
      const unsigned gone = reduced(a.axes, a.keepdims, 0, n);
      // A function of the set of arguments; sums collect the figures of all of them.
      const unsigned left = own_mask(g, op.inputs[0], raw(0)) & ~gone;
      return drop_axes(set_of(sum(raw(0), gone, n), raw(0), left, n), a);
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
    case OpKind::Transpose: {
      const auto& perm = g.attrs<PermAttrs>(op).perm;
      Value r = raw(0);
      remap(r, [&](unsigned m) {
        unsigned out = 0;
        for (size_t d = 0; d < perm.size(); d++) out |= ((m >> perm[d]) & 1u) << d;
        return out;
      });
      return r;
    }
    case OpKind::Broadcast: return in(0);
    case OpKind::Slice:
    case OpKind::Triu:
    case OpKind::Tril:
    case OpKind::Repeat: return raw(0);
    case OpKind::Pad: return add(raw(0), constant(g.attrs<PadAttrs>(op).value));
    case OpKind::Unsqueeze: {
      Value r = raw(0);
      remap(r, [&](unsigned m) {
        for (int a : g.attrs<AxesAttrs>(op).axes) {
          const unsigned low = m & ((1u << a) - 1);
          m = low | (m & ~((1u << a) - 1)) << 1;
        }
        return m & 0xffu;
      });
      return r;
    }
    case OpKind::Squeeze: {
      Value r = raw(0);
      const auto& axes = g.attrs<AxesAttrs>(op).axes;
      remap(r, [&](unsigned m) {
        for (size_t i = axes.size(); i-- > 0;) {
          const unsigned low = m & ((1u << axes[i]) - 1);
          m = low | (m >> (axes[i] + 1)) << axes[i];
        }
        return m;
      });
      return r;
    }
    case OpKind::Reshape: return all_axes(raw(0));
    case OpKind::Concat:
    case OpKind::Stack: {
      Value r = all_axes(raw(0));
      for (size_t i = 1; i < op.inputs.size(); i++) r = add(r, all_axes(raw(i)));
      return r;
    }
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
    case OpKind::Kernel:
    case OpKind::Thread: unreachable("handled by run");
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
    case OpKind::Save: return raw(0);
    }
    unreachable("OpKind");
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
