#include "verify/opinion/numbers.h"

#include "base/check.h"
#include "ir/custom.h"

namespace tessera {

TermId apply_pointwise(Numbers& n, const Op& op, const std::vector<TermId>& in, bool integers) {
  Terms& t = n.terms();
  const TermId x = in[0], y = in.size() > 1 ? in[1] : x;
  switch (op.kind) {
  case OpKind::Neg: return n.negative(x);
  case OpKind::Abs: return infinite(x) ? kPlusInfinity : t.abs(x);
  case OpKind::Sign: return t.sub(n.greater(x, Terms::kZero), n.greater(Terms::kZero, x));
  case OpKind::Sqr: return n.mul(x, x);
  case OpKind::Sqrt: return t.sqrt(n.finite(x));
  case OpKind::Rsqrt: return n.div(Terms::kOne, t.sqrt(n.finite(x)));
  case OpKind::Exp: return n.exp(x);
  case OpKind::Log: return t.log(n.finite(x));
  case OpKind::Sin: return t.function("sin", n.finite(x), Terms::Parity::Odd);
  case OpKind::Cos: return t.function("cos", n.finite(x), Terms::Parity::Even);
  case OpKind::Erf: return t.function("erf", n.finite(x), Terms::Parity::Odd);
  case OpKind::Erfc: return t.sub(Terms::kOne, t.function("erf", n.finite(x), Terms::Parity::Odd));
  case OpKind::Tanh: return n.tanh(x);
  case OpKind::Sigmoid: return n.sigmoid(x);
  case OpKind::Silu: return n.mul(x, n.sigmoid(x));
  case OpKind::Relu: return n.max({x, Terms::kZero});
  case OpKind::Gelu: return n.gelu(x);
  case OpKind::GeluTanh: return n.gelu_tanh(x);
  case OpKind::Pow: return n.pow(x, std::get<PowAttrs>(op.attrs).exponent);
  case OpKind::Floor: return t.function("floor", n.finite(x), Terms::Parity::None);
  case OpKind::Round: return t.function("round", n.finite(x), Terms::Parity::Odd);
  case OpKind::Log1p: return t.log(t.add(Terms::kOne, n.finite(x)));
  case OpKind::Expm1: return n.add(n.exp(x), t.negative(Terms::kOne));
  case OpKind::Custom: {
    const CustomFunction& f = custom_function(std::get<CustomAttrs>(op.attrs));
    const std::string name = "custom " + std::to_string(f.key());
    const TermId u = n.finite(x), v = n.finite(y);
    if (f.law() == Law::Commutative) return t.unknown(name, {t.add(u, v), t.mul(u, v)});
    if (f.arity() == 2) return t.unknown(name, {u, v});
    const bool odd = f.law() == Law::Odd, even = f.law() == Law::Even;
    using P = Terms::Parity;
    return t.function(name, u, odd ? P::Odd : even ? P::Even : P::None);
  }
  case OpKind::Not: return n.logical_not(x);
  case OpKind::Cast: return x;  // as far as it keeps the number
  case OpKind::Add: return n.add(x, y);
  case OpKind::Sub: return n.add(x, n.negative(y));
  case OpKind::Mul: return n.mul(x, y);
  case OpKind::Div: return n.div(x, y);
  case OpKind::Power: return t.unknown("power", {n.finite(x), n.finite(y)});
  case OpKind::Mod: {
    const auto by = t.as_constant(n.finite(y));
    if (integers && (!by || by->num == 0)) return t.unknown("mod", {n.finite(x), n.finite(y)});
    const TermId quotient = t.function("floor", n.div(x, n.finite(y)), Terms::Parity::None);
    return t.sub(n.finite(x), t.mul(y, quotient));
  }
  case OpKind::Atan2: return t.unknown("atan2", {n.finite(x), n.finite(y)});
  case OpKind::Max: return n.max({x, y});
  case OpKind::Min: return n.min({x, y});
  case OpKind::And: return t.mul(x, y);
  case OpKind::Or: return t.sub(t.add(x, y), t.mul(x, y));
  case OpKind::Eq: return n.same(x, y);
  case OpKind::Ne: return n.logical_not(n.same(x, y));
  case OpKind::Lt: return n.greater(y, x);
  case OpKind::Le: return n.logical_not(n.greater(x, y));
  case OpKind::Gt: return n.greater(x, y);
  case OpKind::Ge: return n.logical_not(n.greater(y, x));
  case OpKind::Where: return n.select(x, y, in[2]);
#define OP(kind, ...) case OpKind::kind:
#define POINTWISE(...)
#include "ir/ops.def"
    break;
  }
  unreachable("not a pointwise operator");
}

}  // namespace tessera
