// Real numbers as terms over symbolic inputs, kept in a normal form under the laws of the operators
// (docs/decisions/0004): sums of products of powers of atoms, with exponentials multiplied by
// adding exponents. Two terms that normalise alike are equal wherever both are defined.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/rational.h"

namespace tessera {

// An exact fraction of 128-bit integers; overflow is an answer, not an error.
struct Fraction {
  __int128 num = 0, den = 1;  // lowest terms, den > 0
  static std::optional<Fraction> make(__int128 num, __int128 den);
  static std::optional<Fraction> add(const Fraction& a, const Fraction& b);
  static std::optional<Fraction> mul(const Fraction& a, const Fraction& b);
  double value() const { return double(num) / double(den); }
  friend bool operator==(const Fraction&, const Fraction&) = default;
};

using TermId = uint32_t;

enum class AtomKind : uint8_t {
  Variable,  // input element `index`
  Constant,  // a positive number with many digits, known by its value
  Base,      // the value of a sum; occurs with negative powers only
  Root,      // √ of the operand
  Function,  // function `name` of the operands, known by name
  Positive,  // 1 where the operand is > 0, else 0
  Zero,      // 1 where the operand is 0, else 0
  Max,       // the largest of three or more operands
  Product,   // of two operands, and Sum of several, too large to be expanded
  Sum,
};

struct Atom {
  AtomKind kind = AtomKind::Variable;
  int64_t index = 0;             // Variable
  double value = 0;              // Constant
  std::string name;              // Function
  std::vector<TermId> operands;  // normal forms
};

struct Factor {
  uint32_t atom = 0;
  int32_t power = 0;
  friend auto operator<=>(const Factor&, const Factor&) = default;
};
struct Monomial {
  std::vector<Factor> factors;  // by atom; no power is 0
  TermId exponent = 0;          // times exp of this term; 0: the term zero
  friend auto operator<=>(const Monomial&, const Monomial&) = default;
};
struct Term {
  std::vector<std::pair<uint32_t, Fraction>> sum;  // by monomial; no coefficient is 0
};

// The value of a term at one choice of the inputs, and the sum of the absolute values it adds up.
struct TermValue {
  double value = 0, scale = 0;
};

class Terms {
 public:
  static constexpr TermId kZero = 0, kOne = 1;
  static constexpr int kPoints = 4;
  // Inputs at the points are drawn from `seed`: all positive at the first, of both signs at the
  // others. `max_work` bounds the products of monomials; beyond it products stay as they are.
  explicit Terms(uint64_t seed, int64_t max_work = 2'000'000);

  // Which of a term and its opposite is written: +1 or −1; 0: the one that was seen first.
  void orient_by(std::function<int(TermId)> sign) { orientation_ = std::move(sign); }
  // Asked now and then; once true, nothing is expanded any more and evaluate() gives up.
  void stop_when(std::function<bool()> over) { over_ = std::move(over); }
  bool stopped() {
    if (!stopped_ && over_ && over_()) {
      stopped_ = true;
      max_work_ = 0;
    }
    return stopped_;
  }

  TermId variable(int64_t index);
  TermId constant(const Rational& value);  // finite
  TermId integer(int64_t value) { return constant(Rational(value)); }
  TermId add(TermId a, TermId b) { return sum({a, b}); }
  TermId sub(TermId a, TermId b) { return sum({a, negative(b)}); }
  TermId sum(const std::vector<TermId>& terms);
  TermId mul(TermId a, TermId b);
  TermId negative(TermId a);
  TermId inverse(TermId a);
  TermId div(TermId a, TermId b) { return mul(a, inverse(b)); }
  TermId power(TermId a, int64_t n);
  TermId sqrt(TermId a);
  TermId exp(TermId a);
  TermId log(TermId a);
  enum class Parity { None, Odd, Even };
  TermId function(const std::string& name, TermId a, Parity parity);
  TermId positive(TermId a);  // [a > 0]
  TermId zero(TermId a);      // [a = 0]
  TermId abs(TermId a);
  TermId relu(TermId a);
  TermId max(const std::vector<TermId>& set);
  // What `a` is the maximum of, if it was made so.
  const std::vector<TermId>* maximum_of(TermId a) const {
    const auto it = max_of_.find(a);
    return it == max_of_.end() ? nullptr : &it->second;
  }
  // An unknown number that depends on `operands` alone, which are kept as they are.
  TermId symbol(const std::string& name, std::vector<TermId> operands);
  // Of operands that are equal it is; it has no value to look at.
  TermId unknown(const std::string& name, std::vector<TermId> operands);
  // With an indicator in its sum, though not within other atoms, being 0 or 1.
  TermId decided(TermId a, uint32_t indicator, bool yes);
  // Positive and Zero of a term as it is, for who orients it by a rule of his own.
  TermId indicator(AtomKind kind, TermId a);
  TermId of_atom(uint32_t atom, int32_t power = 1);
  TermId number(const Fraction& c) { return of_monomial(0, c); }

  // Proved equal wherever both are defined.
  bool equal(TermId a, TermId b);
  // Their values differ at one of the points by far more than rounding explains.
  std::optional<int> different_at(TermId a, TermId b) const;

  std::optional<Fraction> as_constant(TermId a) const;
  const Term& term(TermId a) const { return terms_[a]; }
  const Monomial& monomial(uint32_t m) const { return monomials_[m]; }
  const Atom& atom(uint32_t a) const { return atoms_[a]; }
  const TermValue& shadow(TermId a, int point) const { return shadows_[a][size_t(point)]; }
  double input_at(int64_t index, int point) const;
  size_t size() const { return terms_.size(); }
  int64_t work() const { return work_; }

 private:
  using Shadows = std::array<TermValue, kPoints>;
  using Sums = std::map<uint32_t, Fraction>;

  TermId intern(Term t);
  uint32_t intern(Monomial m);
  uint32_t intern(Atom a, const Shadows& shadows);
  TermId of_monomial(uint32_t m, const Fraction& c);
  TermId scaled(TermId a, const Fraction& c);  // kNone when digits run out
  // Product of two monomials: a term, since squares of roots are sums.
  TermId product(uint32_t a, uint32_t b);
  void spend(int64_t work) {
    constexpr int64_t kLook = 20'000;
    if ((work_ + work) / kLook != work_ / kLook) stopped();
    work_ += work;
  }
  bool add_to(Sums& sums, TermId a, const Fraction& c) const;
  TermId multiplied(TermId a, TermId b);  // kNone when too large
  // The sum with like terms joined; kNone when too large. What decides whether terms are equal adds
  // so: an opaque sum asks that itself of its operands.
  TermId added(const std::vector<TermId>& terms);
  TermId opaque(AtomKind kind, std::vector<TermId> operands, const Shadows& shadows);
  // Whether 0 and 1 are factors of its summands that something else decides.
  bool hangs_on_decision(TermId a) const;
  bool vanishes(TermId a);  // exact; false when it cannot tell
  bool vanishes_by_cases(TermId t);
  bool is_multiple(uint32_t monomial, uint32_t of) const;
  // An indicator that a product has as a factor.
  std::optional<uint32_t> decided_factor(TermId a) const;
  // The first term seen that is proved equal to `a`, or `a`.
  TermId canonical(TermId a);
  Fraction size_of(TermId a) const;  // the largest |coefficient|; 1 of zero
  bool opposite_first(TermId a, TermId opposite) const {
    const int sign = orientation_ ? orientation_(a) : 0;
    return sign != 0 ? sign < 0 : opposite < a;
  }
  // Scaled by a positive number to a largest coefficient ±1 and oriented: the canonical term, and
  // a = factor · term.
  struct Oriented {
    TermId term;
    Fraction factor;
  };
  Oriented oriented(TermId a);
  // +1 or −1 when that is obvious, else 0; `or_zero`: zero may have either sign.
  int sign_of(TermId a, bool or_zero = false) const;
  bool positive_atom(uint32_t atom) const;
  bool never_negative(const Factor& f) const;
  Shadows shadows_of(TermId a) const { return shadows_[a]; }

  static constexpr TermId kNone = UINT32_MAX;
  std::vector<Term> terms_;
  std::vector<Shadows> shadows_;
  std::vector<Monomial> monomials_;
  std::vector<Shadows> monomial_shadows_;
  std::vector<Atom> atoms_;
  std::vector<Shadows> atom_shadows_;
  std::map<std::vector<std::pair<uint32_t, std::pair<__int128, __int128>>>, TermId> known_terms_;
  std::map<Monomial, uint32_t> known_monomials_;
  std::map<std::tuple<AtomKind, int64_t, double, std::string, std::vector<TermId>>, uint32_t>
      known_atoms_;
  std::unordered_map<uint64_t, TermId> products_, quotients_, term_products_;
  std::unordered_map<TermId, TermId> canonical_;
  std::unordered_map<TermId, bool> vanishes_;
  std::unordered_set<TermId> not_negative_;                 // what abs() and relu() returned
  std::multimap<double, TermId> representatives_;           // by value at the first point
  std::unordered_map<TermId, std::vector<TermId>> max_of_;  // what a maximum was taken of
  std::function<bool()> over_;
  std::function<int(TermId)> orientation_;
  bool stopped_ = false;
  uint64_t seed_;
  int64_t max_work_, work_ = 0;
};

}  // namespace tessera
