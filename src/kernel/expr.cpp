#include "kernel/expr.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {
namespace {

Range scaled_range(Range r, int64_t by) {
  return by >= 0 ? Range{r.least * by, r.most * by} : Range{r.most * by, r.least * by};
}

Range product_range(Range a, Range b) {
  const auto [least, most] =
      std::minmax({a.least * b.least, a.least * b.most, a.most * b.least, a.most * b.most});
  return {least, most};
}

std::string in_parentheses(const std::string& text) { return "(" + text + ")"; }

}  // namespace

Expr Expr::atom(std::string text, Range range, int level, Made made, std::vector<Expr> of) {
  if (range.least == range.most) return Expr(range.least);
  Expr e;
  e.terms_.push_back(
      {1, std::make_shared<const Atom>(std::move(text), range, level, made, std::move(of))});
  return e;
}

Expr Expr::variable(std::string name, Range range, int level) {
  Expr e;  // named even where it is constant: it is declared
  e.terms_.push_back({1, std::make_shared<const Atom>(std::move(name), range, level)});
  return e;
}

std::string Expr::text() const {
  std::string text;
  const auto add = [&](int64_t factor, const std::string& atom) {
    const int64_t n = std::abs(factor);
    std::string term = atom.empty() ? std::to_string(n) : atom;
    if (!atom.empty() && n != 1) term += " * " + std::to_string(n);
    if (text.empty())
      text = (factor < 0 ? "-" : "") + term;
    else
      text += (factor < 0 ? " - " : " + ") + term;
  };
  for (const Term& t : terms_)
    if (t.factor > 0) add(t.factor, t.atom->text);
  if (constant_ > 0 || terms_.empty()) add(constant_, "");
  for (const Term& t : terms_)
    if (t.factor < 0) add(t.factor, t.atom->text);
  if (constant_ < 0 && !terms_.empty()) add(constant_, "");
  return text;
}

std::string Expr::operand() const {
  const bool whole = terms_.empty() ? constant_ >= 0
                                    : terms_.size() == 1 && constant_ == 0 && terms_[0].factor > 0;
  return whole ? text() : in_parentheses(text());
}

Range Expr::range() const {
  Range all{constant_, constant_};
  for (const Term& t : terms_) {
    const Range r = scaled_range(t.atom->range, t.factor);
    all.least += r.least;
    all.most += r.most;
  }
  return all;
}

int Expr::level() const {
  int level = -1;
  for (const Term& t : terms_) level = std::max(level, t.atom->level);
  return level;
}

Expr Expr::within(int64_t extent) const {
  const Range r = range();
  if (r.least >= 0 && r.most < extent) return *this;
  if (terms_.empty()) return *this;
  const Range kept{std::max<int64_t>(r.least, 0), std::min(r.most, extent - 1)};
  Expr e;
  e.terms_.push_back({1, std::make_shared<const Atom>(operand(), kept, level(), Made::Within,
                                                      std::vector{*this})});
  return e;
}

Expr Expr::scaled(int64_t by) const {
  if (by == 0) return Expr(0);
  Expr e = *this;
  e.constant_ *= by;
  for (Term& t : e.terms_) t.factor *= by;
  return e;
}

Expr operator+(const Expr& a, const Expr& b) {
  Expr sum = a;
  sum.constant_ += b.constant_;
  for (const Expr::Term& t : b.terms_) {
    const auto same = std::ranges::find_if(sum.terms_, [&](const Expr::Term& s) {
      return s.atom == t.atom || s.atom->text == t.atom->text;
    });
    if (same == sum.terms_.end())
      sum.terms_.push_back(t);
    else if ((same->factor += t.factor) == 0)
      sum.terms_.erase(same);
  }
  return sum;
}

Expr operator-(const Expr& a, const Expr& b) { return a + b.scaled(-1); }

Expr operator*(const Expr& a, const Expr& b) {
  if (const auto n = b.constant()) return a.scaled(*n);
  if (const auto n = a.constant()) return b.scaled(*n);
  const std::string right = b.text();
  return Expr::atom(a.operand() + " * " +
                        (right.find(' ') == right.npos ? right : in_parentheses(right)),
                    product_range(a.range(), b.range()), std::max(a.level(), b.level()),
                    Expr::Made::Product, {a, b});
}

std::pair<Expr, Expr> Expr::parted(int64_t by) const {
  Expr quotient, rest;
  for (const Term& t : terms_) {
    Expr& to = t.factor % by == 0 ? quotient : rest;
    to.terms_.push_back({t.factor % by == 0 ? t.factor / by : t.factor, t.atom});
  }
  // What is left of the constant is not negative.
  quotient.constant_ = constant_ / by - (constant_ % by < 0 ? 1 : 0);
  rest.constant_ = constant_ - quotient.constant_ * by;
  return {quotient, rest};
}

Expr operator/(const Expr& a, int64_t by) {
  CHECK(by > 0 && a.range().least >= 0) << a.text() << " / " << by;
  if (by == 1) return a;
  const auto [quotient, rest] = a.parted(by);
  const Range r = rest.range();
  if (r.least >= 0 && r.most < by) return quotient;
  if (r.least >= 0)
    return quotient + Expr::atom(rest.operand() + " / " + std::to_string(by),
                                 {r.least / by, r.most / by}, rest.level(), Expr::Made::Quotient,
                                 {rest, by});
  const Range all = a.range();
  return Expr::atom(a.operand() + " / " + std::to_string(by), {all.least / by, all.most / by},
                    a.level(), Expr::Made::Quotient, {a, by});
}

Expr operator%(const Expr& a, int64_t by) {
  CHECK(by > 0 && a.range().least >= 0) << a.text() << " % " << by;
  const Expr rest = a.parted(by).second;
  const Range r = rest.range();
  if (r.least >= 0 && r.most < by) return rest;
  // What is divided must not be negative, which the rest alone may be.
  const Expr& of = r.least >= 0 ? rest : a;
  return Expr::atom(of.operand() + " % " + std::to_string(by), {0, by - 1}, a.level(),
                    Expr::Made::Remainder, {of, by});
}

Expr least(const Expr& a, const Expr& b) {
  const Range x = a.range(), y = b.range();
  if (x.most <= y.least) return a;
  if (y.most <= x.least) return b;
  return Expr::atom(
      in_parentheses(a.text() + " < " + b.text() + " ? " + a.text() + " : " + b.text()),
      {std::min(x.least, y.least), std::min(x.most, y.most)}, std::max(a.level(), b.level()),
      Expr::Made::Least, {a, b});
}

Expr greatest(const Expr& a, const Expr& b) {
  const Range x = a.range(), y = b.range();
  if (x.least >= y.most) return a;
  if (y.least >= x.most) return b;
  return Expr::atom(
      in_parentheses(a.text() + " < " + b.text() + " ? " + b.text() + " : " + a.text()),
      {std::max(x.least, y.least), std::max(x.most, y.most)}, std::max(a.level(), b.level()),
      Expr::Made::Greatest, {a, b});
}

// --- conditions --------------------------------------------------------------------------------

Condition Condition::of(std::string text, Comparison comparison) {
  Condition c(std::move(text));
  c.known_ = true;
  c.comparisons_.push_back(std::move(comparison));
  return c;
}

Condition operator&&(const Condition& a, const Condition& b) {
  if (a.always() || a.text() == b.text()) return b;
  if (b.always()) return a;
  Condition both = a;
  both.text_ += " && " + b.text_;
  both.known_ = a.known_ && b.known_;
  both.comparisons_.insert(both.comparisons_.end(), b.comparisons_.begin(), b.comparisons_.end());
  return both;
}

Condition operator<(const Expr& a, const Expr& b) {
  if (a.range().most < b.range().least) return {};
  return Condition::of(a.text() + " < " + b.text(), {a, b});
}

Condition equal(const Expr& a, const Expr& b) {
  if (a.constant() && a.constant() == b.constant()) return {};
  return Condition::of(a.text() + " == " + b.text(), {a, b, true});
}

}  // namespace tessera
