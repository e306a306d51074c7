// The reference meaning of every pointwise operator, as templates over a domain's vectors (a short
// run of elements). V supplies + − · /, exp, sqrt, … ; what is written here is said only here.
#pragma once
#include <array>
#include <concepts>
#include <vector>

#include "base/check.h"
#include "eval/vectors.h"
#include "ir/op.h"

namespace tessera {

// --- domains that do not know every function: of an application that they have no overload for
// they know x.unknown(), whatever it is of
template <class V>
concept Vague = requires(const V& x) {
  { x.unknown() } -> std::same_as<V>;
};
#define TESSERA_UNKNOWN(f)                                                                         \
  template <Vague V> V f(const V& x) { return x.unknown(); }
TESSERA_UNKNOWN(sqrt)
TESSERA_UNKNOWN(exp)
TESSERA_UNKNOWN(log)
TESSERA_UNKNOWN(sin)
TESSERA_UNKNOWN(cos)
TESSERA_UNKNOWN(erf)
TESSERA_UNKNOWN(tanh)
TESSERA_UNKNOWN(floor)
TESSERA_UNKNOWN(round)
TESSERA_UNKNOWN(log1p)
TESSERA_UNKNOWN(expm1)
TESSERA_UNKNOWN(not_zero)
#undef TESSERA_UNKNOWN
template <Vague V> V named(const V& x, uint64_t) { return x.unknown(); }
template <Vague V> V truncate(const V& x, DType) { return x.unknown(); }
template <Vague V> V general_power(const V& x, const Rational&) { return x.unknown(); }

// --- floats: one operand
template <class V> V sigmoid(const V& x) {
  const V one = x.constant(1);
  return one / (one + exp(-x));
}
template <class V> V erfc(const V& x) { return x.constant(1) - erf(x); }
template <class V> V gelu(const V& x) {
  return x * (x.constant(1) + erf(x / sqrt(x.constant(2)))) * x.constant(Rational::ratio(1, 2));
}
template <class V> V gelu_tanh(const V& x) {
  // √(2/π) as programs write it
  const V scale = x.constant(Rational::from_double(0.7978845608028654));
  const V cubic = x.constant(Rational::ratio(44715, 1000000));
  return x * (x.constant(1) + tanh(scale * (x + cubic * (x * x * x)))) *
         x.constant(Rational::ratio(1, 2));
}
// x^e: integers by products, halves by roots, everything else by name.
template <class V> V power(const V& x, const Rational& e) {
  const bool half = e.den() == 2 && e.exp2() == 0;
  if (!(e.is_integer() || half) || e.num() > 64 || e.num() < -64) return general_power(x, e);
  const V base = half ? sqrt(x) : x;
  int64_t n = e.num() < 0 ? -e.num() : e.num();
  if (n == 0) return x.constant(1);
  V result = base;
  bool started = false;
  V square = base;
  for (; n != 0; n >>= 1) {
    if (n & 1) {
      result = started ? result * square : square;
      started = true;
    }
    if (n > 1) square = square * square;
  }
  return e.negative() ? x.constant(1) / result : result;
}

// What is unknown of a function but for its law: odd ones are x·h(x²), even ones h(x²), commutative
// ones functions of sum and product. Domains that compute it overload this.
template <class V> V custom(const CustomFunction& f, const V& x, const V& y) {
  switch (f.law()) {
  case Law::Odd: return x * named(x * x, f.key());
  case Law::Even: return named(x * x, f.key());
  case Law::Commutative: return named(x * y + named(x + y, f.key()), f.key() + 1);
  case Law::None: break;
  }
  return f.arity() == 1 ? named(x, f.key()) : named(y + named(x, f.key()), f.key() + 1);
}

template <class V> V logical_or(const V& x, const V& y) { return max(x, y); }

// One operator on runs of elements; operands and result are in the chunk's part (floats `f`,
// integers and bools `i`) that their dtype says. Chunk<D> is {D::Vec f; IntVec i;}.
template <class Chunk>
void apply_pointwise(const Op& op, DType operand, DType result, const Chunk* in, Chunk& out) {
  const bool real = is_float(operand);
  const Chunk &x = in[0], &y = in[1], &z = in[2];
  switch (op.kind) {
  case OpKind::Neg: real ? void(out.f = -x.f) : void(out.i = -x.i); return;
  case OpKind::Abs: real ? void(out.f = abs(x.f)) : void(out.i = abs(x.i)); return;
  case OpKind::Sign: real ? void(out.f = sign(x.f)) : void(out.i = sign(x.i)); return;
  case OpKind::Sqr: real ? void(out.f = x.f * x.f) : void(out.i = x.i * x.i); return;
  case OpKind::Relu: real ? void(out.f = relu(x.f)) : void(out.i = relu(x.i)); return;
  case OpKind::Sqrt: out.f = sqrt(x.f); return;
  case OpKind::Rsqrt: out.f = x.f.constant(1) / sqrt(x.f); return;
  case OpKind::Exp: out.f = exp(x.f); return;
  case OpKind::Log: out.f = log(x.f); return;
  case OpKind::Sin: out.f = sin(x.f); return;
  case OpKind::Cos: out.f = cos(x.f); return;
  case OpKind::Erf: out.f = erf(x.f); return;
  case OpKind::Erfc: out.f = erfc(x.f); return;
  case OpKind::Tanh: out.f = tanh(x.f); return;
  case OpKind::Sigmoid: out.f = sigmoid(x.f); return;
  case OpKind::Silu: out.f = x.f * sigmoid(x.f); return;
  case OpKind::Gelu: out.f = gelu(x.f); return;
  case OpKind::GeluTanh: out.f = gelu_tanh(x.f); return;
  case OpKind::Pow: {
    const Rational& e = std::get<PowAttrs>(op.attrs).exponent;
    real ? void(out.f = power(x.f, e)) : void(out.i = power(x.i, e));
    return;
  }
  case OpKind::Floor: out.f = floor(x.f); return;
  case OpKind::Round: out.f = round(x.f); return;
  case OpKind::Log1p: out.f = log1p(x.f); return;
  case OpKind::Expm1: out.f = expm1(x.f); return;
  case OpKind::Custom: {
    const CustomFunction& f = custom_function(std::get<CustomAttrs>(op.attrs));
    out.f = custom(f, x.f, f.arity() == 2 ? y.f : x.f);
    return;
  }
  case OpKind::Not: out.i = logical_not(x.i); return;
  case OpKind::Cast:
    if (real && is_float(result)) {
      out.f = x.f;
      if constexpr (requires { out.f.narrow(operand, result); }) out.f.narrow(operand, result);
    } else if (real)
      out.i = result == DType::Bool ? not_zero(x.f) : truncate(x.f, result);
    else if (is_float(result))
      out.f.assign_integers(x.i);
    else
      out.i = result == DType::Bool ? not_zero(x.i) : x.i;
    return;
  case OpKind::Add: real ? void(out.f = x.f + y.f) : void(out.i = x.i + y.i); return;
  case OpKind::Sub: real ? void(out.f = x.f - y.f) : void(out.i = x.i - y.i); return;
  case OpKind::Mul: real ? void(out.f = x.f * y.f) : void(out.i = x.i * y.i); return;
  case OpKind::Div: out.f = x.f / y.f; return;
  case OpKind::Power: out.f = power(x.f, y.f); return;
  case OpKind::Mod: real ? void(out.f = mod(x.f, y.f)) : void(out.i = mod(x.i, y.i)); return;
  case OpKind::Atan2: out.f = atan2(x.f, y.f); return;
  case OpKind::Max: real ? void(out.f = max(x.f, y.f)) : void(out.i = max(x.i, y.i)); return;
  case OpKind::Min: real ? void(out.f = min(x.f, y.f)) : void(out.i = min(x.i, y.i)); return;
  case OpKind::And: out.i = x.i * y.i; return;
  case OpKind::Or: out.i = logical_or(x.i, y.i); return;
#define COMPARISON(kind, a, b, order)                                                              \
  case OpKind::kind: out.i = real ? compare(a.f, b.f, order) : compare(a.i, b.i, order); return;
    COMPARISON(Eq, x, y, Order::Eq)
    COMPARISON(Ne, x, y, Order::Ne)
    COMPARISON(Lt, x, y, Order::Lt)
    COMPARISON(Le, x, y, Order::Le)
    COMPARISON(Gt, y, x, Order::Lt)
    COMPARISON(Ge, y, x, Order::Le)
#undef COMPARISON
  case OpKind::Where:
    is_float(result) ? void(out.f = select(x.i, y.f, z.f)) : void(out.i = select(x.i, y.i, z.i));
    return;
#define OP(kind, ...) case OpKind::kind:
#define POINTWISE(...)
#include "ir/ops.def"
    break;
  }
  unreachable("not a pointwise operator");
}

// The same over a domain that has one type for floats, integers and bools.
template <class V>
V apply_to_one(const Op& op, DType operand, DType result, const std::vector<V>& operands) {
  struct Both {
    V f{}, i{};
  };
  std::array<Both, 3> in;
  for (size_t k = 0; k < operands.size(); ++k) in[k] = {operands[k], operands[k]};
  Both out;
  apply_pointwise(op, operand, result, in.data(), out);
  return is_float(result) ? out.f : out.i;
}

}  // namespace tessera
