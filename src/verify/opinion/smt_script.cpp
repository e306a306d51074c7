#include "verify/opinion/smt_script.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace tessera {
namespace {

std::string digits(__int128 n) {
  if (n < 0) return "(- " + digits(-n) + ")";
  if (n == 0) return "0";
  std::string s;
  for (; n != 0; n /= 10) s += char('0' + int(n % 10));
  std::reverse(s.begin(), s.end());
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

  std::string text(TermId id) {
    const Term& term = t_.term(id);
    if (term.sum.empty()) return "0.0";
    std::vector<std::string> parts;
    for (const auto& [m, c] : term.sum) {
      std::vector<std::string> factors;
      if (!(c == Fraction{1, 1})) factors.push_back(number(c));
      add_factors(t_.monomial(m), factors);
      parts.push_back(factors.empty() ? "1.0" : joined("*", factors));
    }
    return joined("+", parts);
  }
  // All facts about what was written so far.
  std::string facts() {
    const std::string laws = exponential_laws();  // declares atoms of exponents
    return facts_.str() + laws;
  }

 private:
  void add_factors(const Monomial& m, std::vector<std::string>& factors) {
    for (const Factor& f : m.factors) {
      const std::string x = f.power > 0 ? atom(f.atom) : inverse(f.atom);
      factors.insert(factors.end(), size_t(std::abs(f.power)), x);
    }
    if (m.exponent != Terms::kZero) factors.push_back(exponential(m.exponent));
  }
  void declare(const std::string& name) { facts_ << "(declare-const " << name << " Real)\n"; }
  void assume(const std::string& fact) { facts_ << "(assert " << fact << ")\n"; }

  std::string inverse(uint32_t a) {
    const std::string name = "i" + std::to_string(a);
    if (inverses_.insert(a).second) {
      const std::string x = atom(a);
      declare(name);
      assume("(= (* " + name + " " + x + ") 1.0)");
    }
    return name;
  }
  static std::string exponential_name(TermId e) { return "e" + std::to_string(e); }
  std::string exponential(TermId e) {
    if (exponents_.insert(e).second) {
      declare(exponential_name(e));
      assume("(> " + exponential_name(e) + " 0.0)");
    }
    return exponential_name(e);
  }
  std::string atom(uint32_t id) {
    const Atom& a = t_.atom(id);
    const std::string name = "a" + std::to_string(id);
    if (!atoms_.insert(id).second) return name;
    std::vector<std::string> in;
    for (TermId t : a.operands) in.push_back(text(t));
    declare(name);
    const auto is = [&](const std::string& x) { assume("(= " + name + " " + x + ")"); };
    switch (a.kind) {
    case AtomKind::Variable: break;
    case AtomKind::Constant: is(a.name); break;
    case AtomKind::Base: is(in[0]); break;
    case AtomKind::Root:
      assume("(>= " + name + " 0.0)");
      assume("(= (* " + name + " " + name + ") " + in[0] + ")");
      break;
    case AtomKind::Function: {
      const auto [it, fresh] = functions_.emplace(a.name, "f" + std::to_string(functions_.size()));
      if (fresh) facts_ << "(declare-fun " << it->second << " (Real) Real)\n";
      is("(" + it->second + " " + in[0] + ")");
      break;
    }
    case AtomKind::Positive: is("(ite (> " + in[0] + " 0.0) 1.0 0.0)"); break;
    case AtomKind::Zero: is("(ite (= " + in[0] + " 0.0) 1.0 0.0)"); break;
    case AtomKind::Max: {
      std::vector<std::string> one_of;
      for (const std::string& x : in) {
        assume("(>= " + name + " " + x + ")");
        one_of.push_back("(= " + name + " " + x + ")");
      }
      assume(joined("or", one_of));
      break;
    }
    case AtomKind::Product: is(joined("*", in)); break;
    case AtomKind::Sum: is(joined("+", in)); break;
    }
    return name;
  }

  // e^a·e^b = e^c where a + b = c, and e^a < e^b where a < b, for the exponents that occur.
  std::string exponential_laws() {
    constexpr size_t kMost = 8;
    std::map<TermId, std::string> exponents;
    for (size_t known = 0; known != exponents_.size();) {  // exponents may hold exponentials
      known = exponents_.size();
      if (known > kMost) return "";
      for (TermId e : std::set<TermId>(exponents_)) exponents.emplace(e, text(e));
    }
    std::ostringstream laws;
    for (auto a = exponents.begin(); a != exponents.end(); ++a)
      for (auto b = a; b != exponents.end(); ++b) {
        const std::string x = exponential_name(a->first), y = exponential_name(b->first);
        if (a != b)
          laws << "(assert (= (< " << a->second << " " << b->second << ") (< " << x << " " << y
               << ")))\n";
        for (const auto& [c, exponent] : exponents)
          laws << "(assert (=> (= (+ " << a->second << " " << b->second << ") " << exponent
               << ") (= (* " << x << " " << y << ") " << exponential_name(c) << ")))\n";
      }
    return laws.str();
  }

  const Terms& t_;
  std::ostringstream facts_;
  std::set<uint32_t> atoms_, inverses_;
  std::set<TermId> exponents_;
  std::map<std::string, std::string> functions_;
};

}  // namespace

std::string smt_script(const Terms& terms, const std::vector<std::pair<TermId, TermId>>& pairs,
                       int milliseconds_each) {
  std::string all = "(set-option :timeout " + std::to_string(milliseconds_each) + ")\n";
  for (const auto& [a, b] : pairs) {
    Script script(terms);
    const std::string x = script.text(a), y = script.text(b), facts = script.facts();
    all += "(push)\n" + facts + "(assert (not (= " + x + " " + y + ")))\n(check-sat)\n(pop)\n";
  }
  return all;
}

}  // namespace tessera
