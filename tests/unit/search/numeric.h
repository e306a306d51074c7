// Tests only: numbers for normal forms and hypergraph edges, by direct summation over axes.
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "search/mugraph/saturate.h"

namespace tessera::mugraph {

// A dense array over the axes in `axes`, ascending, the last one fastest.
struct Array {
  AxisMask axes = 0;
  std::vector<double> data{0.0};
};

class Numbers {
 public:
  Numbers(const Region& region, const NormalForms& nf, const RegionForms& rf, uint64_t seed)
      : region_(region), nf_(nf), rf_(rf), extents_(axis_extents(region)), rng_(seed) {
    std::uniform_real_distribution<double> u(-1.5, 1.5);
    for (size_t a = 0; a < region.part.size(); ++a) {  // two equal parts
      if (region.part[a] < 0) continue;
      extents_[a] /= 2;
      extents_[size_t(region.part[a])] = 2;
    }
    for (const View& v : region.views) {
      // One tensor has one set of numbers, whatever names its dimensions carry.
      size_t n = 1;
      for (int a : v.dims) n *= a < 0 ? 1 : size_t(region.axes[size_t(a)].extent);
      std::vector<double>& data = tensors_[v.tensor.index];
      if (data.empty()) {
        for (size_t i = 0; i < n; ++i) data.push_back(u(rng_));
      }
      Array a = zeros(region.mask(v.dims));
      each(a.axes, [&](const std::vector<int64_t>& at) {
        size_t flat = 0;
        for (int d : v.dims) {
          if (d < 0) continue;
          size_t i = size_t(at[size_t(d)]);
          if (int p = region.part_of(d); p >= 0)
            i += size_t(at[size_t(p)]) * size_t(extents_[size_t(d)]);
          flat = flat * size_t(region.axes[size_t(d)].extent) + i;
        }
        a.data[offset(a.axes, at)] = data[flat];
      });
      views_.push_back(std::move(a));
    }
  }

  Array zeros(AxisMask axes) const {
    Array a;
    a.axes = axes;
    size_t n = 1;
    for (AxisMask m = axes; m; m &= m - 1) n *= size_t(extents_[size_t(lowest(m))]);
    a.data.assign(n, 0.0);
    return a;
  }
  size_t offset(AxisMask axes, const std::vector<int64_t>& at) const {
    size_t i = 0;
    for (AxisMask m = axes; m; m &= m - 1) {
      size_t d = size_t(lowest(m));
      i = i * size_t(extents_[d]) + size_t(at[d]);
    }
    return i;
  }
  void each(AxisMask axes, const std::function<void(const std::vector<int64_t>&)>& f) const {
    std::vector<int64_t> at(extents_.size(), 0);
    for (;;) {
      f(at);
      AxisMask m = axes;
      for (; m; m &= m - 1) {
        size_t d = size_t(lowest(m));
        if (++at[d] < extents_[d]) break;
        at[d] = 0;
      }
      if (!m) return;
    }
  }
  Array map(const std::vector<Array>& in,
            const std::function<double(const std::vector<double>&)>& f) const {
    AxisMask axes = 0;
    for (const Array& a : in) axes |= a.axes;
    Array out = zeros(axes);
    std::vector<double> x(in.size());
    each(axes, [&](const std::vector<int64_t>& at) {
      for (size_t i = 0; i < in.size(); ++i) x[i] = in[i].data[offset(in[i].axes, at)];
      out.data[offset(axes, at)] = f(x);
    });
    return out;
  }
  Array reduce(const Array& in, AxisMask bits, bool max) const {
    Array out = zeros(in.axes & ~bits);
    if (max) out.data.assign(out.data.size(), -1e300);
    each(in.axes, [&](const std::vector<int64_t>& at) {
      double v = in.data[offset(in.axes, at)];
      double& o = out.data[offset(out.axes, at)];
      o = max ? std::max(o, v) : o + v;
    });
    return out;
  }

  double call(const FunctionInfo& f, const std::vector<double>& x) const {
    double v = x.empty() ? 0 : x[0];
    switch (int(f.kind)) {
    case int(OpKind::Exp): return std::exp(v);
    case int(OpKind::Log): return std::log(v);
    case int(OpKind::Silu): return v / (1 + std::exp(-v));
    case int(OpKind::Sigmoid): return 1 / (1 + std::exp(-v));
    case int(OpKind::Relu): return v > 0 ? v : 0;
    case int(OpKind::Tanh): return std::tanh(v);
    case int(OpKind::Gelu): return v * (1 + std::erf(v / std::sqrt(2.0))) / 2;
    case int(OpKind::Abs): return std::fabs(v);
    case int(OpKind::Max): return std::max(v, x[1]);
    case int(OpKind::Gt): return v > x[1] ? 1 : 0;
    case int(OpKind::Where): return v != 0 ? x[1] : x[2];
    case int(OpKind::Sqrt): return std::sqrt(v);
    default: return std::cos(v + 0.5 * double(x.size()));  // some function of its operands
    }
  }

  Array form(PolyId p) {
    auto it = memo_.find(p);
    if (it != memo_.end()) return it->second;
    Array out = zeros(nf_.poly(p).axes);
    for (const Term& t : nf_.poly(p).terms) {
      out = map({out, mono(t.mono)}, [&](const auto& x) { return x[0] + t.coef.value() * x[1]; });
    }
    memo_[p] = out;
    return out;
  }
  Array mono(MonoId m) {
    Array out = zeros(0);
    out.data[0] = 1;
    for (const Factor& f : nf_.mono(m).factors) {
      const double e = f.exponent.value();
      const Atom& a = nf_.atom(f.atom);
      Array base;
      switch (a.kind) {
      case AtomKind::Input: base = views_[a.ref]; break;
      case AtomKind::Sum: base = reduce(mono(a.ref), a.bound, false); break;
      case AtomKind::Poly: base = form(a.ref); break;
      case AtomKind::Exp:
        base = map({mono(a.ref)}, [&](const auto& x) { return std::exp(e * x[0]); });
        break;
      case AtomKind::Fn: {
        if (a.bound) {
          base = reduce(form(a.args[0]), a.bound, true);
        } else {
          std::vector<Array> args;
          for (PolyId p : a.args) args.push_back(form(p));
          base = map(args, [&](const auto& x) { return call(rf_.functions[a.ref], x); });
        }
      }
      }
      bool exp = a.kind == AtomKind::Exp;
      out = map({out, base}, [&](const auto& x) {
        return x[0] * (exp                    ? x[1]
                       : f.exponent.integer() ? integer_power(x[1], f.exponent.num)
                                              : std::pow(x[1], e));
      });
    }
    return out;
  }
  static double integer_power(double x, int64_t n) {
    double r = 1;
    for (int64_t i = 0; i < std::llabs(n); ++i) r *= x;
    return n < 0 ? 1 / r : r;
  }

  // op(mult·in), to be compared with scale·out.
  Array edge(const Edge& e, const Hypergraph& g) {
    std::vector<Array> in;
    for (int i = 0; i < e.arity; ++i) {
      Array a = form(g.values[e.in[size_t(i)]].form);
      for (double& v : a.data) v *= e.mult[size_t(i)].value();
      in.push_back(std::move(a));
    }
    switch (e.op) {
    case EdgeOp::Mul: return map(in, [](const auto& x) { return x[0] * x[1]; });
    case EdgeOp::Div: return map(in, [](const auto& x) { return x[0] / x[1]; });
    case EdgeOp::Add: return map(in, [](const auto& x) { return x[0] + x[1]; });
    case EdgeOp::Sqr: return map(in, [](const auto& x) { return x[0] * x[0]; });
    case EdgeOp::Sqrt: return map(in, [](const auto& x) { return std::sqrt(x[0]); });
    case EdgeOp::Rsqrt: return map(in, [](const auto& x) { return 1 / std::sqrt(x[0]); });
    case EdgeOp::Exp: return map(in, [](const auto& x) { return std::exp(x[0]); });
    case EdgeOp::Log: return map(in, [](const auto& x) { return std::log(x[0]); });
    case EdgeOp::Fn:
      if (e.bits) return reduce(in[0], e.bits, true);
      return map(in, [&](const auto& x) { return call(rf_.functions[e.fn], x); });
    case EdgeOp::Sum: return reduce(in[0], e.bits, false);
    case EdgeOp::Matmul:
      return reduce(map(in, [](const auto& x) { return x[0] * x[1]; }), e.bits, false);
    }
    return {};
  }

 private:
  const Region& region_;
  const NormalForms& nf_;
  const RegionForms& rf_;
  std::vector<int64_t> extents_;
  std::mt19937_64 rng_;
  std::map<uint32_t, std::vector<double>> tensors_;
  std::vector<Array> views_;
  std::map<PolyId, Array> memo_;
};

}  // namespace tessera::mugraph
