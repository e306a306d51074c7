// Normal forms of a region's nodes.
#include <algorithm>

#include "ir/custom.h"
#include "search/mugraph/region.h"

// An operator that is not named here is an opaque function (pointwise) or has no form: both are
// sound, so the switch below has a default.

namespace tessera::mugraph {

namespace {

class Builder {
 public:
  Builder(const Region& region, NormalForms& nf) : region_(region), nf_(nf) {}

  RegionForms run() {
    // The form's own exponential and logarithm come first.
    function(OpKind::Exp, NoAttrs{}, DType::F32, true);
    function(OpKind::Log, NoAttrs{}, DType::F32, true);
    for (const Node& n : region_.nodes) {
      std::vector<PolyId> x = mapped(n.operands, [&](uint32_t o) { return out_.of_node[o]; });
      PolyId f = algebraic(n, x);
      const bool pointwise = has(n.kind, algebra::Pointwise);
      // Where factors cancel so that a whole axis disappears, the operator stays a function:
      // nothing would compute its value on the axes that are left.
      if (f != kNone && pointwise && nf_.poly(f).axes != 0) {
        AxisMask axes = 0;
        for (PolyId p : x) axes |= p == kNone ? 0 : nf_.poly(p).axes;
        if (axes != nf_.poly(f).axes) f = kNone;
      }
      if (f == kNone && (pointwise || n.kind == OpKind::Const)) {
        const bool same =
            n.kind != OpKind::Cast && n.dtype != DType::Bool && n.kind != OpKind::Where;
        const uint32_t fn = function(n.kind, n.attrs, n.dtype, same);
        if (has(n.kind, algebra::Commutative) || law(n) == Law::Commutative) std::ranges::sort(x);
        f = nf_.fn(fn, std::move(x));
      }
      out_.of_node.push_back(f);
    }
    for (uint32_t t : region_.targets)
      if (out_.of_node[t] == kNone) return {{}, std::move(out_.functions)};
    return std::move(out_);
  }

 private:
  // `same`: the result has the operands' element type.
  uint32_t function(OpKind kind, const Attrs& attrs, DType result, bool same) {
    std::string key = tessera::name(kind);
    if (const auto* p = std::get_if<PowAttrs>(&attrs)) key += " " + p->exponent.str();
    if (const auto* c = std::get_if<CustomAttrs>(&attrs))
      key += " " + std::to_string(custom_function(*c).key());
    if (const auto* c = std::get_if<CastAttrs>(&attrs)) key += std::string(" ") + name(c->dtype);
    if (const auto* c = std::get_if<ConstAttrs>(&attrs)) key += " " + c->value.str();
    const bool nonneg = has(kind, algebra::Positive) || has(kind, algebra::NotNegative);
    const uint32_t f = nf_.function({key, nonneg, kind == OpKind::ReduceMax});
    if (f == out_.functions.size()) out_.functions.push_back({kind, attrs, result, same});
    return f;
  }

  static Law law(const Node& n) {
    const auto* c = std::get_if<CustomAttrs>(&n.attrs);
    return c == nullptr ? Law::None : custom_function(*c).law();
  }

  // The form that an operator of the algebra makes of its operands'; kNone of others.
  PolyId algebraic(const Node& n, const std::vector<PolyId>& x) {
    const AxisMask all = region_.mask(n.reduced);
    auto contraction = [&](size_t i, PolyId a, PolyId b) {
      const AxisMask over = n.reduced[i] < 0 ? AxisMask(0) : region_.bits(n.reduced[i]);
      return nf_.sum(nf_.mul(a, b), over);
    };
    switch (n.kind) {
    case OpKind::Input:
      return nf_.input(uint32_t(n.view), region_.mask(region_.views[size_t(n.view)].dims),
                       "t" + std::to_string(n.tensor.index));
    case OpKind::Const: return nf_.constant(Q::from(std::get<ConstAttrs>(n.attrs).value));
    case OpKind::Neg: return nf_.scale(x[0], -1);
    case OpKind::Sqr: return nf_.mul(x[0], x[0]);
    case OpKind::Sqrt: return nf_.pow(x[0], Q::ratio(1, 2));
    case OpKind::Rsqrt: return nf_.pow(x[0], Q::ratio(-1, 2));
    case OpKind::Exp: return nf_.exp(x[0]);
    case OpKind::Log: return nf_.log(x[0]);
    case OpKind::Pow: {
      Q e = Q::from(std::get<PowAttrs>(n.attrs).exponent);
      const bool rational = !e.bad() && e.den <= 2 && e.num >= -8 && e.num <= 8;
      return rational ? nf_.pow(x[0], e) : kNone;
    }
    case OpKind::Add: return nf_.add(x[0], x[1]);
    case OpKind::Sub: return nf_.add(x[0], nf_.scale(x[1], -1));
    case OpKind::Mul: return nf_.mul(x[0], x[1]);
    case OpKind::Div: return nf_.div(x[0], x[1]);
    case OpKind::Sum: return nf_.sum(x[0], all);
    case OpKind::Mean: {
      int64_t count = 1;
      for (int a : n.reduced) count *= region_.axes[size_t(a)].extent;
      return nf_.scale(nf_.sum(x[0], all), Q::ratio(1, count));
    }
    case OpKind::Matmul: return contraction(0, x[0], x[1]);
    case OpKind::ConcatMatmul:
      return nf_.add(contraction(0, x[0], x[2]), contraction(1, x[1], x[3]));
    case OpKind::ReduceMax:
    case OpKind::ReduceMin: {
      if (x[0] == kNone) return kNone;
      NormalForms::Primitive p = nf_.primitive(x[0]);
      if (p.coef.q.num < 0) p = {x[0], 1};  // only positive scales commute with max
      const uint32_t fn = function(n.kind, n.attrs, n.dtype, true);
      const AxisMask on = all & nf_.poly(p.form).axes;
      return on ? nf_.scale(nf_.fn(fn, {p.form}, on), p.coef) : x[0];
    }
    case OpKind::Custom: {
      const bool odd = law(n) == Law::Odd, even = law(n) == Law::Even;
      if (!(odd || even) || x[0] == kNone || nf_.primitive(x[0]).coef.q.num >= 0) return kNone;
      const uint32_t fn = function(n.kind, n.attrs, n.dtype, true);
      return nf_.scale(nf_.fn(fn, {nf_.scale(x[0], -1)}), odd ? -1 : 1);
    }
    default: return arranges(n.kind) ? x[0] : kNone;
    }
  }

  const Region& region_;
  NormalForms& nf_;
  RegionForms out_;
};

}  // namespace

RegionForms build_forms(const Region& region, NormalForms& nf) { return Builder(region, nf).run(); }

}  // namespace tessera::mugraph
