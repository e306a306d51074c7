#include "verify/opinion/smt_script.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/mapped.h"

namespace tessera {
namespace {

std::string digits(__int128 n) {
  if (n < 0) return "(- " + digits(-n) + ")";
  if (n == 0) return "0";
  std::string s;
  for (; n != 0; n /= 10) s += char('0' + int(n % 10));
  std::ranges::reverse(s);
  return s;
}

std::string number(const Fraction& c) {
  const std::string size = digits(c.num < 0 ? -c.num : c.num) + ".0";
  const std::string x = c.den == 1 ? size : "(/ " + size + " " + digits(c.den) + ".0)";
  return c.num < 0 ? "(- " + x + ")" : x;
}

std::string joined(const char* op, const std::vector<std::string>& parts) {
  if (parts.size() == 1) return parts[0];
  std::string s = std::string("(") + op;
  for (const std::string& p : parts) s += " " + p;
  return s + ")";
}

// Writes down terms, and what is known of their atoms once.
class Script {
 public:
  explicit Script(const Terms& terms) : t_(terms) {}

  std::string text(TermId id, bool real) {
    const Term& term = t_.term(id);
    if (term.sum.empty() || too_long()) return "0.0";
    std::vector<std::string> parts;
    for (const auto& [m, c] : term.sum) {
      std::vector<std::string> decided, factors;
      if (!(c == Fraction{1, 1})) factors.push_back(number(c));
      add_factors(t_.monomial(m), real, decided, factors);
      std::string part = factors.empty() ? "1.0" : joined("*", factors);
      if (!decided.empty()) part = "(ite " + joined("and", decided) + " " + part + " 0.0)";
      written_ += part.size();
      parts.push_back(std::move(part));
    }
    return joined("+", parts);
  }
  bool too_long() const { return written_ > kLongestScript; }  // and what was written no terms
  // All facts about what was written so far.
  std::string facts() const { return facts_.str(); }

 private:
  // Of a product its decisions, its numbers, and all else, as one factor unless `real`.
  void add_factors(const Monomial& m, bool real, std::vector<std::string>& decided,
                   std::vector<std::string>& factors) {
    std::string rest;
    auto times = [&](const std::string& x) { rest = rest.empty() ? x : apply("times", {rest, x}); };
    for (const Factor& f : m.factors) {
      const AtomKind kind = t_.atom(f.atom).kind;
      const std::string x = atom(f.atom);
      if (kind == AtomKind::Positive || kind == AtomKind::Zero)
        decided.push_back(x);
      else if (kind == AtomKind::Constant)
        factors.insert(factors.end(), size_t(std::abs(f.power)),
                       f.power > 0 ? x : "(/ 1.0 " + x + ")");
      else {
        const std::string y = f.power > 0 ? x : apply("inverse", {x});
        const auto power = size_t(std::abs(f.power));
        if (real)
          factors.insert(factors.end(), power, y);
        else
          times(power == 1 ? y : apply("power", {y, std::to_string(power) + ".0"}));
      }
    }
    if (m.exponent != Terms::kZero) times(exponential(m.exponent));
    if (!rest.empty()) factors.push_back(rest);
  }
  std::string exponential(TermId e) {
    const std::string name = "e" + std::to_string(e);
    if (!exponents_.insert(e).second) return name;
    define(name, "Real", apply("exp", {text(e, false)}));
    return name;
  }
  // A function of which nothing is known.
  std::string apply(const std::string& function, const std::vector<std::string>& in) {
    std::string arguments;
    for (const std::string& x : in) arguments += " " + x;
    const auto [it, fresh] = functions_.emplace(function, "f" + std::to_string(functions_.size()));
    if (fresh) {
      facts_ << "(declare-fun " << it->second << " (";
      for (size_t i = 0; i < in.size(); ++i) facts_ << (i ? " Real" : "Real");
      facts_ << ") Real)\n";
      if (function == "exp") facts_ << "(assert (= (" << it->second << " 0.0) 1.0))\n";
    }
    return "(" + it->second + arguments + ")";
  }
  void define(const std::string& name, const char* sort, const std::string& value) {
    facts_ << "(declare-const " << name << " " << sort << ")\n";
    if (!value.empty()) facts_ << "(assert (= " << name << " " << value << "))\n";
  }
  std::string atom(uint32_t id) {
    const Atom& a = t_.atom(id);
    const std::string name = "a" + std::to_string(id);
    if (!atoms_.insert(id).second) return name;
    std::vector<std::string> in = mapped(a.operands, [&](TermId t) { return text(t, false); });
    switch (a.kind) {
    case AtomKind::Variable: define(name, "Real", ""); break;
    case AtomKind::Constant: return a.name;
    case AtomKind::Base: define(name, "Real", in[0]); break;
    case AtomKind::Root: define(name, "Real", apply("root", in)); break;
    case AtomKind::Function: define(name, "Real", apply("function " + a.name, in)); break;
    case AtomKind::Positive: define(name, "Bool", "(> " + in[0] + " 0.0)"); break;
    case AtomKind::Zero: define(name, "Bool", "(= " + in[0] + " 0.0)"); break;
    case AtomKind::Max: {
      define(name, "Real", "");
      std::vector<std::string> one_of;
      for (const std::string& x : in) {
        facts_ << "(assert (>= " << name << " " << x << "))\n";
        one_of.push_back("(= " + name + " " + x + ")");
      }
      facts_ << "(assert " << joined("or", one_of) << ")\n";
      break;
    }
    case AtomKind::Product: define(name, "Real", apply("times", in)); break;
    case AtomKind::Sum: define(name, "Real", joined("+", in)); break;
    }
    return name;
  }

  const Terms& t_;
  std::ostringstream facts_;
  size_t written_ = 0;
  std::set<uint32_t> atoms_;
  std::set<TermId> exponents_;
  std::map<std::string, std::string> functions_;  // by what they are called in terms
};

}  // namespace

std::string smt_script(const Terms& terms, const std::vector<std::pair<TermId, TermId>>& pairs,
                       bool real, int milliseconds_each, size_t longest) {
  std::string all = "(set-option :timeout " + std::to_string(milliseconds_each) + ")\n";
  for (const auto& [a, b] : pairs) {
    Script script(terms);
    const std::string x = script.text(a, real), y = script.text(b, real), facts = script.facts();
    if (script.too_long() || all.size() > longest) break;
    all += "(push)\n" + facts + "(assert (not (= " + x + " " + y + ")))\n(check-sat)\n(pop)\n";
  }
  return all;
}

}  // namespace tessera
