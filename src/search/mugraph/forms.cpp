// Normal forms of a region's nodes.
#include <algorithm>

#include "search/mugraph/region.h"

// An operator that is not named here is an opaque function (pointwise) or has no form: both are
// sound, so the switch below has a default.

namespace tessera::mugraph {

RegionForms build_forms(const Region& region, NormalForms& nf) {
  RegionForms out;
  auto function = [&](OpKind kind, const Attrs& attrs, DType result, bool same, bool nonneg,
                      bool is_max) {
    std::string key = tessera::name(kind);
    if (const auto* p = std::get_if<PowAttrs>(&attrs)) key += " " + p->exponent.str();
    if (const auto* c = std::get_if<CastAttrs>(&attrs)) key += std::string(" ") + name(c->dtype);
    if (const auto* c = std::get_if<ConstAttrs>(&attrs)) key += " " + c->value.str();
    uint32_t f = nf.function({key, nonneg, is_max});
    if (f == out.functions.size()) out.functions.push_back({kind, attrs, result, same});
    return f;
  };
  // The form's own exponential and logarithm come first.
  function(OpKind::Exp, NoAttrs{}, DType::F32, true, true, false);
  function(OpKind::Log, NoAttrs{}, DType::F32, true, false, false);
  for (const Node& n : region.nodes) {
    std::vector<PolyId> x;
    for (uint32_t o : n.operands) x.push_back(out.of_node[o]);
    auto reduced = [&](size_t i) {
      return n.reduced[i] < 0 ? AxisMask(0) : region.bits(n.reduced[i]);
    };
    const AxisMask all = region.mask(n.reduced);
    PolyId f = kNone;
    bool nonneg = false;
    switch (n.kind) {
    case OpKind::Input:
      f = nf.input(uint32_t(n.view), region.mask(region.views[size_t(n.view)].dims),
                   "t" + std::to_string(n.tensor.index));
      break;
    case OpKind::Const: f = nf.constant(Q::from(std::get<ConstAttrs>(n.attrs).value)); break;
    case OpKind::Neg: f = nf.scale(x[0], -1); break;
    case OpKind::Sqr: f = nf.mul(x[0], x[0]); break;
    case OpKind::Sqrt: f = nf.pow(x[0], Q::ratio(1, 2)); break;
    case OpKind::Rsqrt: f = nf.pow(x[0], Q::ratio(-1, 2)); break;
    case OpKind::Exp:
      f = nf.exp(x[0]);
      nonneg = true;
      break;
    case OpKind::Log: f = nf.log(x[0]); break;
    case OpKind::Pow: {
      Q e = Q::from(std::get<PowAttrs>(n.attrs).exponent);
      if (!e.bad() && e.den <= 2 && e.num >= -8 && e.num <= 8) f = nf.pow(x[0], e);
      break;
    }
    case OpKind::Add: f = nf.add(x[0], x[1]); break;
    case OpKind::Sub: f = nf.add(x[0], nf.scale(x[1], -1)); break;
    case OpKind::Mul: f = nf.mul(x[0], x[1]); break;
    case OpKind::Div: f = nf.div(x[0], x[1]); break;
    case OpKind::Sum: f = nf.sum(x[0], all); break;
    case OpKind::Mean: {
      int64_t count = 1;
      for (int a : n.reduced) count *= region.axes[size_t(a)].extent;
      f = nf.scale(nf.sum(x[0], all), Q::ratio(1, count));
      break;
    }
    case OpKind::Matmul: f = nf.sum(nf.mul(x[0], x[1]), reduced(0)); break;
    case OpKind::ConcatMatmul:
      f = nf.add(nf.sum(nf.mul(x[0], x[2]), reduced(0)), nf.sum(nf.mul(x[1], x[3]), reduced(1)));
      break;
    case OpKind::Transpose:
    case OpKind::Reshape:
    case OpKind::Broadcast:
    case OpKind::Unsqueeze:
    case OpKind::Squeeze: f = x[0]; break;
    case OpKind::ReduceMax:
    case OpKind::ReduceMin: {
      if (x[0] == kNone) break;
      NormalForms::Primitive p = nf.primitive(x[0]);
      if (p.coef.q.num < 0) p = {x[0], 1};  // only positive scales commute with max
      uint32_t fn = function(n.kind, n.attrs, n.dtype, true, false, n.kind == OpKind::ReduceMax);
      AxisMask on = all & nf.poly(p.form).axes;
      f = on ? nf.scale(nf.fn(fn, {p.form}, on), p.coef) : x[0];
      break;
    }
    case OpKind::Abs:
    case OpKind::Relu:
    case OpKind::Sigmoid: nonneg = true; break;
    default: break;
    }
    bool pointwise = has(n.kind, algebra::Pointwise);
    // Where factors cancel so that a whole axis disappears, the operator stays a function: nothing
    // would compute its value on the axes that are left.
    if (f != kNone && pointwise && nf.poly(f).axes != 0) {
      AxisMask axes = 0;
      for (PolyId p : x) axes |= p == kNone ? 0 : nf.poly(p).axes;
      if (axes != nf.poly(f).axes) f = kNone;
    }
    if (f == kNone && (pointwise || n.kind == OpKind::Const)) {
      bool same = n.kind != OpKind::Cast && n.dtype != DType::Bool && n.kind != OpKind::Where;
      uint32_t fn = function(n.kind, n.attrs, n.dtype, same, nonneg, false);
      if (has(n.kind, algebra::Commutative)) std::ranges::sort(x);
      f = nf.fn(fn, std::move(x));
    }
    out.of_node.push_back(f);
  }
  for (uint32_t t : region.targets) {
    if (out.of_node[t] == kNone) out.of_node.clear();
    if (out.of_node.empty()) break;
  }
  return out;
}

}  // namespace tessera::mugraph
