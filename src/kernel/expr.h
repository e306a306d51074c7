// Whole numbers in generated code: indices, offsets and extents as expressions of loop variables,
// each with the range it can have, and conditions on them. They are simplified as they are made, so
// that the code that makes them has no special cases.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct Range {
  int64_t least = 0, most = 0;  // both included
};

// Linear in its atoms: variables, and quotients, remainders, minima and products of expressions.
class Expr {
 public:
  Expr() = default;  // 0
  Expr(std::integral auto constant) : constant_(int64_t(constant)) {}
  // `level`: the loop that it varies with, counted from the outermost; -1: none.
  static Expr variable(std::string name, Range range, int level = -1);

  // In C, C++ and CUDA alike. `operand`: in parentheses where a product or a sum would tear it.
  std::string text() const;
  std::string operand() const;
  Range range() const;
  int level() const;  // of the innermost loop that it varies with
  std::optional<int64_t> constant() const {
    return terms_.empty() ? std::optional(constant_) : std::nullopt;
  }
  bool is(int64_t value) const { return constant() == value; }
  // The same where a condition around the code keeps it in [0, extent).
  Expr within(int64_t extent) const;
  friend bool operator==(const Expr& a, const Expr& b) { return a.text() == b.text(); }

  friend Expr operator+(const Expr& a, const Expr& b);
  friend Expr operator-(const Expr& a, const Expr& b);
  friend Expr operator*(const Expr& a, const Expr& b);
  // Rounded down; of numbers that are not negative.
  friend Expr operator/(const Expr& a, int64_t by);
  friend Expr operator%(const Expr& a, int64_t by);
  friend Expr least(const Expr& a, const Expr& b);
  friend Expr greatest(const Expr& a, const Expr& b);
  Expr& operator+=(const Expr& more) { return *this = *this + more; }

  // What it is made of: a constant and terms, whose atoms differ.
  enum class Made : uint8_t { Variable, Within, Product, Quotient, Remainder, Least, Greatest };
  struct Atom {
    std::string text;  // that no product tears; of a variable its name
    Range range;
    int level = -1;
    Made made = Made::Variable;
    std::vector<Expr> of{};  // one or two operands; a divisor is a constant
  };
  struct Term {
    int64_t factor;
    std::shared_ptr<const Atom> atom;
  };
  int64_t rest() const { return constant_; }
  const std::vector<Term>& terms() const { return terms_; }

 private:
  static Expr atom(std::string text, Range range, int level, Made made, std::vector<Expr> of);
  Expr scaled(int64_t by) const;
  // What `by` divides of it, and the rest.
  std::pair<Expr, Expr> parted(int64_t by) const;

  int64_t constant_ = 0;
  std::vector<Term> terms_;
};

// a < b, or a == b.
struct Comparison {
  Expr a, b;
  bool equal = false;
};

// What can be asked of such numbers; always true unless made of something.
class Condition {
 public:
  Condition() = default;
  // A text that nothing is known of.
  explicit Condition(std::string text) : text_(std::move(text)), known_(text_.empty()) {}
  const std::string& text() const { return text_; }  // empty: always true
  bool always() const { return text_.empty(); }
  // Whether it is these comparisons, all of them true, and no text besides.
  bool known() const { return known_; }
  const std::vector<Comparison>& comparisons() const { return comparisons_; }
  friend Condition operator&&(const Condition& a, const Condition& b);
  friend Condition operator<(const Expr& a, const Expr& b);
  friend Condition equal(const Expr& a, const Expr& b);

 private:
  static Condition of(std::string text, Comparison comparison);
  std::string text_;
  bool known_ = true;
  std::vector<Comparison> comparisons_;
};
Condition operator<(const Expr& a, const Expr& b);
Condition equal(const Expr& a, const Expr& b);

}  // namespace tessera
