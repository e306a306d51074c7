// Arithmetic of single elements: terms, and infinities as far as their results are clear.
#pragma once
#include <vector>

#include "ir/op.h"
#include "verify/opinion/terms.h"

namespace tessera {

// Infinities are no terms; they appear as masks and neutral elements.
inline constexpr TermId kMinusInfinity = UINT32_MAX - 2, kPlusInfinity = UINT32_MAX - 1;

// Why a program cannot be told in terms.
struct NoTerms {
  std::string why;
};

inline bool infinite(TermId t) { return t == kMinusInfinity || t == kPlusInfinity; }

class Numbers {
 public:
  explicit Numbers(Terms& terms) : t_(terms) {}

  TermId negative(TermId a) {
    if (infinite(a)) return a == kMinusInfinity ? kPlusInfinity : kMinusInfinity;
    return t_.negative(a);
  }
  TermId add(TermId a, TermId b) {
    if (infinite(a) && infinite(b) && a != b) throw NoTerms{"∞ − ∞"};
    if (infinite(a)) return a;
    if (infinite(b)) return b;
    return t_.add(a, b);
  }
  TermId sum(const std::vector<TermId>& all) {
    std::vector<TermId> finite;
    TermId limit = Terms::kZero;
    for (TermId a : all)
      if (infinite(a))
        limit = limit == Terms::kZero ? a : add(limit, a);
      else
        finite.push_back(a);
    return limit != Terms::kZero ? limit : t_.sum(finite);
  }
  TermId mul(TermId a, TermId b) {
    if (!infinite(a) && !infinite(b)) return t_.mul(a, b);
    if (!infinite(a)) std::swap(a, b);
    if (infinite(b)) return a == b ? kPlusInfinity : kMinusInfinity;
    const auto c = t_.as_constant(b);
    if (!c || c->num == 0) throw NoTerms{"∞ times an unknown number"};
    return c->num > 0 ? a : negative(a);
  }
  TermId div(TermId a, TermId b) {
    if (infinite(b)) {
      if (infinite(a)) throw NoTerms{"∞ / ∞"};
      return Terms::kZero;
    }
    if (b == Terms::kZero) throw NoTerms{"a denominator is zero"};
    return mul(a, t_.inverse(b));
  }
  TermId exp(TermId a) {
    if (a == kMinusInfinity) return Terms::kZero;
    return a == kPlusInfinity ? a : t_.exp(a);
  }
  TermId max(const std::vector<TermId>& set) {
    std::vector<TermId> finite;
    for (TermId a : set) {
      if (a == kPlusInfinity) return a;
      if (a != kMinusInfinity) finite.push_back(a);
    }
    return finite.empty() ? kMinusInfinity : t_.max(finite);
  }
  TermId min(const std::vector<TermId>& set) {
    std::vector<TermId> negated = mapped(set, [&](TermId a) { return negative(a); });
    return negative(max(negated));
  }
  // [a > b]
  TermId greater(TermId a, TermId b) {
    if (a == b) return Terms::kZero;
    if (a == kPlusInfinity || b == kMinusInfinity) return Terms::kOne;
    if (a == kMinusInfinity || b == kPlusInfinity) return Terms::kZero;
    return t_.positive(t_.sub(a, b));
  }
  TermId same(TermId a, TermId b) {
    if (a == b) return Terms::kOne;
    if (infinite(a) || infinite(b)) return Terms::kZero;
    return t_.zero(t_.sub(a, b));
  }
  TermId logical_not(TermId a) { return t_.sub(Terms::kOne, a); }
  TermId select(TermId c, TermId yes, TermId no) {
    if (c == Terms::kOne) return yes;
    if (c == Terms::kZero || yes == no) return no;
    if (infinite(yes) || infinite(no)) throw NoTerms{"a choice between a number and ∞"};
    return t_.add(no, t_.mul(c, t_.sub(yes, no)));
  }
  TermId finite(TermId a) const {
    if (infinite(a)) throw NoTerms{"a function of ∞"};
    return a;
  }
  TermId sigmoid(TermId a) {
    finite(a);
    return t_.inverse(t_.add(Terms::kOne, t_.exp(t_.negative(a))));
  }
  TermId tanh(TermId a) {  // 1 − 2/(e^2x + 1)
    finite(a);
    const TermId e = t_.add(t_.exp(t_.add(a, a)), Terms::kOne);
    return t_.sub(Terms::kOne, t_.mul(t_.integer(2), t_.inverse(e)));
  }
  TermId gelu(TermId a) {
    finite(a);
    const TermId z = t_.div(a, t_.sqrt(t_.integer(2)));
    const TermId e = t_.function("erf", z, Terms::Parity::Odd);
    return half(t_.mul(a, t_.add(Terms::kOne, e)));
  }
  TermId gelu_tanh(TermId a) {  // the constants as programs write them
    finite(a);
    const TermId cubic = t_.mul(t_.constant(Rational::ratio(44715, 1000000)), t_.power(a, 3));
    const TermId z =
        t_.mul(t_.constant(Rational::from_double(0.7978845608028654)), t_.add(a, cubic));
    return half(t_.mul(a, t_.add(Terms::kOne, tanh(z))));
  }
  TermId pow(TermId a, const Rational& e) {
    finite(a);
    const bool small = e.num() >= -64 && e.num() <= 64;
    if (small && e.is_integer()) {
      if (a == Terms::kZero && e.negative()) throw NoTerms{"a denominator is zero"};
      return t_.power(a, e.num());
    }
    if (small && e.den() == 2 && e.exp2() == 0) {
      const TermId root = t_.sqrt(a);
      if (root == Terms::kZero && e.negative()) throw NoTerms{"a denominator is zero"};
      return t_.power(root, e.num());
    }
    return t_.function("pow " + e.str(), a, Terms::Parity::None);
  }
  Terms& terms() { return t_; }

 private:
  TermId half(TermId a) { return t_.mul(t_.constant(Rational::ratio(1, 2)), a); }
  Terms& t_;
};

// One pointwise operator on one element.
TermId apply_pointwise(Numbers& numbers, const Op& op, const std::vector<TermId>& in,
                       bool integers);

}  // namespace tessera
