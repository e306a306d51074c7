#include "verify/opinion/numbers.h"

#include "eval/pointwise.h"

namespace tessera {
namespace {

// One element as a domain of eval/pointwise.h.
struct NumberVec {
  Numbers* n = nullptr;
  TermId t = Terms::kZero;

  Terms& terms() const { return n->terms(); }
  TermId finite() const { return n->finite(t); }
  NumberVec of(TermId x) const { return {n, x}; }
  NumberVec constant(const Rational& c) const { return of(terms().constant(c)); }
  NumberVec function(const char* name, Terms::Parity parity) const {
    return of(terms().function(name, finite(), parity));
  }
  void assign_integers(const NumberVec& x) { *this = x; }
};
using V = NumberVec;

V operator-(const V& x) { return x.of(x.n->negative(x.t)); }
V operator+(const V& x, const V& y) { return x.of(x.n->add(x.t, y.t)); }
V operator-(const V& x, const V& y) { return x + -y; }
V operator*(const V& x, const V& y) { return x.of(x.n->mul(x.t, y.t)); }
V operator/(const V& x, const V& y) { return x.of(x.n->div(x.t, y.t)); }
V abs(const V& x) { return x.of(infinite(x.t) ? kPlusInfinity : x.terms().abs(x.t)); }
V sign(const V& x) {
  return x.of(x.terms().sub(x.n->greater(x.t, Terms::kZero), x.n->greater(Terms::kZero, x.t)));
}
V relu(const V& x) { return x.of(x.n->max({x.t, Terms::kZero})); }
V sqrt(const V& x) { return x.of(x.terms().sqrt(x.finite())); }
V exp(const V& x) { return x.of(x.n->exp(x.t)); }
V log(const V& x) { return x.of(x.terms().log(x.finite())); }
V log1p(const V& x) { return x.of(x.terms().log(x.terms().add(Terms::kOne, x.finite()))); }
V expm1(const V& x) { return exp(x) + x.of(x.terms().negative(Terms::kOne)); }
V sin(const V& x) { return x.function("sin", Terms::Parity::Odd); }
V cos(const V& x) { return x.function("cos", Terms::Parity::Even); }
V erf(const V& x) { return x.function("erf", Terms::Parity::Odd); }
V floor(const V& x) { return x.function("floor", Terms::Parity::None); }
V round(const V& x) { return x.function("round", Terms::Parity::Odd); }
V tanh(const V& x) { return x.of(x.n->tanh(x.t)); }
V sigmoid(const V& x) { return x.of(x.n->sigmoid(x.t)); }
V gelu(const V& x) { return x.of(x.n->gelu(x.t)); }
V gelu_tanh(const V& x) { return x.of(x.n->gelu_tanh(x.t)); }
V power(const V& x, const Rational& e) { return x.of(x.n->pow(x.t, e)); }
V power(const V& x, const V& y) {
  return x.of(x.terms().unknown("power", {x.finite(), y.finite()}));
}
V atan2(const V& x, const V& y) {
  return x.of(x.terms().unknown("atan2", {x.finite(), y.finite()}));
}
V mod(const V& x, const V& y) {
  const V quotient = floor(x / x.of(y.finite()));
  return x.of(x.terms().sub(x.finite(), x.terms().mul(y.t, quotient.t)));
}
V max(const V& x, const V& y) { return x.of(x.n->max({x.t, y.t})); }
V min(const V& x, const V& y) { return x.of(x.n->min({x.t, y.t})); }
V logical_not(const V& x) { return x.of(x.n->logical_not(x.t)); }
V logical_and(const V& x, const V& y) { return x.of(x.terms().mul(x.t, y.t)); }
V logical_or(const V& x, const V& y) {
  return x.of(x.terms().sub(x.terms().add(x.t, y.t), x.terms().mul(x.t, y.t)));
}
V compare(const V& x, const V& y, Order order) {
  switch (order) {
  case Order::Eq: return x.of(x.n->same(x.t, y.t));
  case Order::Ne: return logical_not(compare(x, y, Order::Eq));
  case Order::Lt: return x.of(x.n->greater(y.t, x.t));
  case Order::Le: return logical_not(compare(y, x, Order::Lt));
  }
  unreachable("Order");
}
V select(const V& c, const V& x, const V& y) { return x.of(x.n->select(c.t, x.t, y.t)); }
// Casts, as far as they keep the number.
V truncate(const V& x, DType) { return x; }
V not_zero(const V& x) { return x; }

}  // namespace

TermId apply_pointwise(Numbers& n, const Op& op, const std::vector<TermId>& in) {
  std::vector<V> operands;
  for (TermId t : in) operands.push_back({&n, t});
  const bool truth = has(op.kind, algebra::Bools) || is_comparison(op.kind);
  return apply_to_one(op, DType::F64, truth ? DType::Bool : DType::F64, operands).t;
}

}  // namespace tessera
