#include "verify/bound.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/check.h"
#include "ir/block_schedule.h"

namespace tessera {
namespace {

double log_add(double a, double b) {  // log2(2^a + 2^b)
  const double m = std::max(a, b);
  return m + std::log2(1 + std::exp2(std::min(a, b) - m));
}

// A denominator or a radicand that several values may share. `mask` says on which axes (bits 0–7)
// and loops (bits 8–11) it depends: a sum over one of those has a different copy in each term.
struct Use {
  double power = 1, copies = 1;
  unsigned mask = 0;
  double limit = INFINITY;  // how many copies there are in the whole program

  void multiply(double n) { copies = std::min(limit, copies * n); }
};
struct Atom {  // of a denominator
  double degree = 0, log_terms = 0, log_exponent_size = 0;
};

// One element of a tensor, at worst.
struct Value {
  double degree = 0;     // of the numerator
  double log_terms = 0;  // exponentials in the numerator
  double log_size = 0;   // log2 Σ|coefficients| of the numerator over a common denominator
  double log_scale = 0;  // log2 of that denominator of the coefficients
  double exponent_degree = 0, log_exponent_size = -1e9, log_exponent_scale = 0;
  bool has_exp = false, hard = false;
  std::map<int, Use> dens, roots;
  std::map<int, Use> unknowns;  // applications of functions known by name, and members of sets
  double unknown_degree = 0;
  double signs = 0, sign_degree = 0;
  bool sampled = false;
  unsigned loops = 0;  // which loops it varies with
};

class Analysis {
 public:
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

  double den_degree(const Value& x) const {
    double d = 0;
    for (const auto& [id, use] : x.dens) d += use.power * use.copies * atoms_[size_t(id)].degree;
    return d;
  }
  double den_terms(const Value& x) const {
    double d = 0;
    for (const auto& [id, use] : x.dens) d += use.power * use.copies * atoms_[size_t(id)].log_terms;
    return d;
  }
  double den_exponent_size(const Value& x) const {
    double d = -1e9;
    for (const auto& [id, use] : x.dens) {
      const Atom& a = atoms_[size_t(id)];
      if (a.log_terms > 0 || a.log_exponent_size > -1e8)
        d = log_add(d, a.log_exponent_size + std::log2(use.power * use.copies));
    }
    return d;
  }

 private:
  static unsigned own_mask(const Graph& g, TensorId t, const Value& v) {
    unsigned mask = v.loops << 8;
    const Shape& s = g.type(t).shape;
    for (size_t d = 0; d < s.size(); d++)
      if (!s[d].is_one()) mask |= 1u << d;
    return mask;
  }
  template <class F> static void remap(Value& v, F f) {
    for (auto* uses : {&v.dens, &v.roots, &v.unknowns})
      for (auto& [id, use] : *uses) use.mask = (use.mask & ~0xffu) | f(use.mask & 0xffu);
  }
  // Axes of an operand of rank `small` aligned to the right of a result of rank `rank`.
  static Value aligned(Value v, int small, int rank) {
    remap(v, [&](unsigned m) { return m << (rank - small); });
    return v;
  }
  static void merge_flags(Value& r, const Value& x, const Value& y) {
    r.has_exp = x.has_exp || y.has_exp;
    r.hard = x.hard || y.hard;
    r.sampled = x.sampled || y.sampled;
    r.signs = x.signs + y.signs;
    r.unknown_degree = std::max(x.unknown_degree, y.unknown_degree);
    r.exponent_degree = std::max(x.exponent_degree, y.exponent_degree);
    r.loops = x.loops | y.loops;
    r.roots = x.roots;
    r.unknowns = x.unknowns;
    unite(r.roots, y.roots);
    unite(r.unknowns, y.unknowns);
  }
  static void unite(std::map<int, Use>& into, const std::map<int, Use>& from) {
    for (const auto& [id, use] : from) {
      auto [it, fresh] = into.emplace(id, use);
      if (fresh) continue;
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
  }
  Value multiply(const Value& x, const Value& y) const {
    Value r;
    merge_flags(r, x, y);
    r.degree = x.degree + y.degree;
    r.log_terms = x.log_terms + y.log_terms;
    r.log_size = x.log_size + y.log_size;
    r.log_scale = x.log_scale + y.log_scale;
    r.log_exponent_scale = x.log_exponent_scale + y.log_exponent_scale;
    r.log_exponent_size = log_add(x.log_exponent_size + y.log_exponent_scale,
                                  y.log_exponent_size + x.log_exponent_scale);
    r.sign_degree = x.sign_degree + y.sign_degree;
    r.dens = x.dens;
    for (const auto& [id, use] : y.dens) {
      auto [it, fresh] = r.dens.emplace(id, use);
      if (fresh) continue;
      it->second.power += use.power;
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
    return r;
  }
  // Raises a numerator to the common denominator `dens`.
  void extend(Value& x, const std::map<int, Use>& dens) const {
    double degree = 0, terms = 0, size = -1e9;
    for (const auto& [id, use] : dens) {
      auto it = x.dens.find(id);
      const double have = it == x.dens.end() ? 0 : it->second.power * it->second.copies;
      const double more = std::max(0.0, use.power * use.copies - have);
      if (more == 0) continue;
      const Atom& a = atoms_[size_t(id)];
      degree += more * a.degree;
      terms += more * a.log_terms;
      if (a.log_exponent_size > -1e8) size = log_add(size, a.log_exponent_size + std::log2(more));
    }
    x.degree += degree;
    x.log_terms += terms;
    x.log_exponent_size = log_add(x.log_exponent_size, size);
  }
  Value add(Value x, Value y) const {
    std::map<int, Use> dens = x.dens;
    for (const auto& [id, use] : y.dens) {
      auto [it, fresh] = dens.emplace(id, use);
      if (fresh) continue;
      it->second.power = std::max(it->second.power, use.power);
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
    extend(x, dens);
    extend(y, dens);
    Value r;
    merge_flags(r, x, y);
    r.degree = std::max(x.degree, y.degree);
    r.log_terms = x.has_exp || y.has_exp ? log_add(x.log_terms, y.log_terms) : 0;
    r.log_scale = x.log_scale + y.log_scale;
    r.log_size = log_add(x.log_size + y.log_scale, y.log_size + x.log_scale);
    r.log_exponent_scale = x.log_exponent_scale + y.log_exponent_scale;
    r.log_exponent_size = std::max(x.log_exponent_size + y.log_exponent_scale,
                                   y.log_exponent_size + x.log_exponent_scale);
    r.sign_degree = std::max(x.sign_degree, y.sign_degree);
    r.dens = std::move(dens);
    return r;
  }
  // Σ of n elements; `gone` are the axes and loops summed over.
  Value sum(Value x, unsigned gone, double n) const {
    if (n <= 1) return x;
    std::map<int, Use> dens = x.dens;
    for (auto& [id, use] : dens)
      if (use.mask & gone) {
        use.copies *= n;
        use.mask &= ~gone;
      }
    for (auto* uses : {&x.roots, &x.unknowns})
      for (auto& [id, use] : *uses)
        if (use.mask & gone) {
          use.multiply(n);
          use.mask &= ~gone;
        }
    extend(x, dens);
    x.dens = std::move(dens);
    if (x.has_exp) x.log_terms += std::log2(n);
    x.log_size += std::log2(n);
    x.signs *= n;
    return x;
  }
  Value divide(const Value& x, const Value& y, unsigned mask_of_y) {
    Value inverse;
    inverse = y;
    inverse.degree = den_degree(y);
    inverse.log_terms = den_terms(y);
    inverse.log_size = 0;
    inverse.log_scale = 0;
    inverse.log_exponent_size = den_exponent_size(y);
    inverse.dens.clear();
    if (y.degree > 0 || y.log_terms > 0 || y.has_exp) {
      atoms_.push_back({y.degree, y.log_terms, y.log_exponent_size});
      inverse.dens[int(atoms_.size()) - 1] = {1, 1, mask_of_y};
    } else {  // division by a constant
      inverse.log_size = y.log_scale;
      inverse.log_scale = y.log_size;
    }
    return multiply(x, inverse);
  }
  Value root(const Value& x, unsigned mask) {
    Value r = x;
    // √(N/D) = √(N·D)/D as an atom of its own: a generator of degree (deg N + deg D)/2 over D.
    if (x.degree == 0 && !x.has_exp && x.dens.empty()) {
      r.roots[next_root_++] = {1, 1, mask & 0xf00u, here_};
      return r;
    }
    r.degree = std::max(1.0, (x.degree + den_degree(x)) / 2);
    r.log_terms = x.log_terms + den_terms(x);
    r.roots[next_root_++] = {1, 1, mask, here_};
    r.hard = r.hard || x.log_terms > 0;
    return r;
  }
  Value exponential(const Value& x) const {
    Value r;
    r.has_exp = true;
    r.hard = x.hard || x.has_exp || !x.dens.empty() || !x.roots.empty();
    r.exponent_degree = std::max(1.0, x.degree);
    r.log_exponent_size = x.log_size;
    r.log_exponent_scale = x.log_scale;
    r.signs = x.signs;
    r.sign_degree = x.signs > 0 ? x.signs : 0;
    r.roots = x.roots;
    r.unknowns = x.unknowns;
    r.unknown_degree = x.unknown_degree;
    r.sampled = x.sampled;
    r.loops = x.loops;
    return r;
  }
  // A sign test of x: a character of every pattern of the tests inside x.
  static Value test(const Value& x) {
    Value r;
    r.signs = x.signs + 1;
    r.sign_degree = x.signs + 1;
    r.roots = x.roots;
    r.has_exp = false;
    r.hard = x.hard || x.has_exp;
    r.unknowns = x.unknowns;
    r.unknown_degree = x.unknown_degree;
    r.sampled = x.sampled;
    r.loops = x.loops;
    return r;
  }
  // A function known by name only: a fresh variable for every different argument.
  Value unknown(const Value& x, unsigned mask) { return set_of(x, x, mask, 1); }
  // A function of a set of elements such as `one`, whose figures taken together are `x`.
  Value set_of(const Value& x, const Value& one, unsigned mask, double members) {
    Value r;
    r.degree = 1;
    r.unknowns = x.unknowns;
    r.unknowns[next_unknown_++] = {1, members, mask, here_ * members};
    r.unknown_degree = std::max(one.unknown_degree, one.degree + den_degree(one));
    r.signs = x.signs;
    r.sign_degree = x.signs;
    r.roots = x.roots;
    r.hard = x.hard;
    r.sampled = x.sampled;
    r.loops = x.loops;
    return r;
  }
  // Whether a tensor is a maximum (or minimum) of several elements: one more makes it a keyed
  // function of the larger set, not a sign test.
  static bool is_extremum(const Graph& g, TensorId t, bool maximum) {
    const Op& op = g.producer(t);
    if (has(op.kind, algebra::Movement)) return is_extremum(g, op.inputs[0], maximum);
    if (op.kind == OpKind::Accum) {
      const auto& a = g.attrs<AccumAttrs>(op);
      return a.kind == (maximum ? AccumKind::Max : AccumKind::Min) &&
             (is_extremum(g, op.inputs[0], maximum) || g.loops()[size_t(a.loops[0])] > 1);
    }
    if (op.kind == (maximum ? OpKind::ReduceMax : OpKind::ReduceMin))
      return num_elements(g.type(op.inputs[0]).shape) > num_elements(g.type(t).shape);
    return op.kind == (maximum ? OpKind::Max : OpKind::Min) &&
           (is_extremum(g, op.inputs[0], maximum) || is_extremum(g, op.inputs[1], maximum));
  }
  static Value constant(const Rational& c) {
    Value r;
    if (!c.finite() || c.is_zero()) return r;
    r.log_size = std::max(0.0, std::log2(std::fabs(double(c.num())))) + std::max(0, c.exp2());
    r.log_scale = std::log2(double(c.den())) + std::max(0, -c.exp2());
    return r;
  }

  Value select(const Value& c, const Value& x, const Value& y) const {
    Value r = add(x, y);
    r.signs += c.signs;
    r.sign_degree += c.sign_degree;
    r.sampled = r.sampled || c.sampled;
    return r;
  }
  Value logistic(const Value& x, unsigned mask) {  // 1 / (1 + e^-x)
    Value e = exponential(x);
    Value one;
    return divide(one, add(one, e), mask);
  }

  Value apply(const Graph& g, const Op& op, std::vector<Value>& v) {
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
        remap(x, [&](unsigned m) {
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
    case OpKind::Relu: return multiply(in(0), test(in(0)));
    case OpKind::Sign: return test(in(0));
    case OpKind::Sqr: return multiply(in(0), in(0));
    case OpKind::Sqrt: return root(in(0), mask(0));
    case OpKind::Rsqrt: return divide(Value(), root(in(0), mask(0)), mask(0));
    case OpKind::Exp: return exponential(in(0));
    case OpKind::Log:
    case OpKind::Sin:
    case OpKind::Cos:
    case OpKind::Erf: return unknown(in(0), mask(0));
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
    case OpKind::Max:
    case OpKind::Min: {
      Value d = add(in(0), in(1));
      const bool maximum = op.kind == OpKind::Max;
      if (is_extremum(g, op.inputs[0], maximum) || is_extremum(g, op.inputs[1], maximum))
        return set_of(d, d, mask(0) | mask(1), 2);
      return add(in(1), multiply(d, test(d)));
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
      return r;
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
      unsigned gone = 0;
      double n = 1;
      for (int l : a.loops) {
        gone |= 1u << (8 + l);
        n *= double(g.loops()[size_t(l)]);
      }
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
      unsigned gone = 0;
      double n = 1;
      for (int l : a.loops) {
        gone |= 1u << (8 + l);
        n *= double(g.loops()[size_t(l)]);
      }
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

  std::vector<Atom> atoms_;
  int next_root_ = 0, next_unknown_ = 0;
  double runs_ = 1;  // how often the graph at hand is run: blocks and iterations
  double here_ = 1;  // how many elements of the operator at hand there are in the whole program
};

std::string fixed(const char* format, double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, x);
  return buffer;
}

}  // namespace

Degrees degrees(const Graph& graph) {
  Analysis analysis;
  std::vector<Value> arguments;
  for (TensorId t : graph.inputs()) {
    Value v;
    v.degree = is_float(graph.type(t).dtype) ? 1 : 0;
    v.sampled = !is_float(graph.type(t).dtype);
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
  }
  return d;
}

DrawBound draw_bound(const Degrees& a, const Degrees& b, int bits) {
  DrawBound r;
  std::vector<std::string> granted;
  const double log_p = bits - 0.5, log_q = log_p - 1;  // primes a little below 2^bits, q half of p
  const double degree = std::max({a.numerator + b.denominator, b.numerator + a.denominator, 1.0});
  const double log_terms =
      log_add(a.log_terms_num + b.log_terms_den, b.log_terms_num + a.log_terms_den) - 1;
  const double roots = a.roots + b.roots;
  r.text = "degree " + fixed("%.4g", degree);

  // Roots: the product of all conjugates is a polynomial; arguments are conditioned on residues.
  double log_miss = std::log2(degree) - log_p;
  const double log_roots = roots <= 0 ? 0 : roots <= 16 ? 2 * roots : std::log2(roots) + 4;
  log_miss += log_roots;
  if (roots > 0) {
    r.text += ", roots " + fixed("%.4g", roots);
    if (roots > 16) {
      granted.push_back("many square roots behave as independent variables");
    }
  }
  if (const double m = a.unknowns + b.unknowns; m > 0) {
    const double d = 2 * std::max({a.unknown_degree, b.unknown_degree, 1.0});
    r.text += ", unknown functions " + fixed("%.4g", m);
    log_miss = log_add(log_miss, 2 * std::log2(m) + std::log2(d) - log_p + log_roots);
  }
  if (a.has_exp || b.has_exp) {
    const double k = std::max(1.0, log_terms + 1);
    const double d = std::max({a.exponent_degree, b.exponent_degree, 1.0});
    const double size = std::max(a.log_exponent_size, 0.0) + 1 + std::max(b.log_exponent_size, 0.0);
    r.text += ", exponentials 2^" + fixed("%.1f", k) + " of degree " + fixed("%.4g", d);
    const bool hard = a.hard_exponent || b.hard_exponent;
    double best = 0, best_bits = 0;
    if (!hard)
      for (double log_b = 3; log_b < log_q; log_b += 0.5) {
        const double miss = log_add(k + std::log2(d) - log_b, size + d * log_b + 2 - log_q);
        if (miss < best) best = miss, best_bits = log_b;
      }
    if (best < -4) {
      log_miss = log_add(log_miss, best);
      r.exponent_bound = uint64_t(std::exp2(std::floor(best_bits)));
      r.text += " drawn below 2^" + fixed("%.0f", std::floor(best_bits));
      log_miss += 0.5;  // the bound was optimised over half steps
    } else {
      log_miss = log_add(log_miss, std::min(-1.0, k + std::log2(d) - log_q));
      granted.push_back(
          "a sum of exponentials vanishes at random exponents with probability k·d/q");
    }
  }
  log_miss = std::min(log_miss, -0.5);
  // Sign tests: a pattern on which the programs differ must be hit.
  const double signs = a.sign_tests + b.sign_tests;
  const double depth = std::max(a.sign_degree, b.sign_degree);
  if (signs > 0) {
    const double used = std::min(depth, 2.0);
    r.text += ", sign tests " + fixed("%.4g", signs) + " of depth " + fixed("%.4g", depth);
    const double weil = signs <= 12 ? std::exp2(std::log2(signs * degree) - log_p / 2) : 0;
    const double hit = std::exp2(-used) * (1 - std::exp2(log_miss)) - weil;
    log_miss = hit <= 0 ? -0.01 : std::log2(1 - hit);
    if (signs > 12)
      granted.push_back("quadratic characters of different polynomials behave independently");
    if (depth > 2) granted.push_back("one draw in four meets a sign pattern that tells them apart");
  }
  if (a.sampled_integers || b.sampled_integers) granted.push_back("integer inputs were sampled");
  r.log2_miss = log_miss;
  r.proved = granted.empty();
  for (const std::string& s : granted) r.basis += (r.basis.empty() ? "assumes: " : "; ") + s;
  if (r.proved) r.basis = "proved";
  return r;
}

double count_work(const Graph& g) {
  double work = 0;
  for (const Op& op : g.ops()) {
    if (op.kind == OpKind::Kernel) {
      const Graph& body = g.body(op);
      const double iterations =
          double(body.num_blocks()) * total_iterations(body, block_schedule(body));
      work += iterations * count_work(body);
      continue;
    }
    if (op.body.valid()) {
      work += double(num_elements(g.type(op.result()).shape)) * double(g.body(op).ops().size());
      continue;
    }
    double n = 0;
    for (uint32_t r = 0; r < op.num_results; r++)
      n += double(num_elements(g.type(op.result(r)).shape));
    if (op.kind == OpKind::Matmul || op.kind == OpKind::ConcatMatmul)
      n *= double(g.type(op.inputs[0]).shape.back().extent) +
           (op.kind == OpKind::ConcatMatmul ? double(g.type(op.inputs[1]).shape.back().extent) : 0);
    else
      for (TensorId t : op.inputs) n = std::max(n, double(num_elements(g.type(t).shape)));
    if (op.kind == OpKind::Input || op.kind == OpKind::Save || op.kind == OpKind::Iter) continue;
    work += n;
  }
  return work;
}

double rounding_length(const Graph& g) {
  std::vector<double> length(g.tensors().size(), 1);
  for (const Op& op : g.ops()) {
    double most = 0;
    for (TensorId t : op.inputs) most = std::max(most, length[t.index]);
    double own = 1;
    if (op.body.valid()) {
      own = rounding_length(g.body(op));
    } else if (op.kind == OpKind::Matmul || op.kind == OpKind::ConcatMatmul) {
      own = double(g.type(op.inputs[0]).shape.back().extent);
    } else if (op.kind == OpKind::Sum || op.kind == OpKind::Mean) {
      for (int a : g.attrs<ReduceAttrs>(op).axes)
        own *= double(g.type(op.inputs[0]).shape[size_t(a)].extent);
    } else if (op.kind == OpKind::Cumsum) {
      own = double(g.type(op.inputs[0]).shape[size_t(g.attrs<AxisAttrs>(op).axis)].extent);
    } else if (op.kind == OpKind::Accum || op.kind == OpKind::AccumRescale) {
      for (int l : g.attrs<AccumAttrs>(op).loops) own *= double(g.loops()[size_t(l)]);
    }
    for (uint32_t r = 0; r < op.num_results; r++) length[op.result(r).index] = most + own;
  }
  double result = 1;
  for (TensorId t : g.outputs()) result = std::max(result, length[t.index]);
  return result;
}

double function_depth(const Graph& g) {
  std::vector<double> depth(g.tensors().size(), 0);
  for (const Op& op : g.ops()) {
    double most = 0;
    for (TensorId t : op.inputs) most = std::max(most, depth[t.index]);
    double own = 0;
    if (op.body.valid())
      own = function_depth(g.body(op));
    else if (has(op.kind, algebra::Pointwise) && !has(op.kind, algebra::Linear) &&
             !has(op.kind, algebra::Associative))
      own = 1;
    for (uint32_t r = 0; r < op.num_results; r++) depth[op.result(r).index] = most + own;
  }
  double result = 0;
  for (TensorId t : g.outputs()) result = std::max(result, depth[t.index]);
  return result;
}

}  // namespace tessera
