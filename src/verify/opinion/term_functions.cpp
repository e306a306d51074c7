// The laws of roots, exponentials, indicators, maxima and functions known by name.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "verify/opinion/terms.h"

namespace tessera {
namespace {

// √n = root·Π√part: small primes, and what is left unless it is a perfect square.
struct SplitRoot {
  __int128 root = 1;
  std::vector<__int128> parts;
};
SplitRoot split_root(__int128 n) {
  SplitRoot s;
  for (__int128 p = 2; p < 1000 && p <= n; ++p) {
    for (; n % (p * p) == 0; n /= p * p) s.root *= p;
    if (n % p == 0) {
      s.parts.push_back(p);
      n /= p;
    }
  }
  const auto near = static_cast<__int128>(std::sqrt(double(n)));
  for (__int128 x = near > 2 ? near - 2 : 1; x <= near + 2; ++x)
    if (x * x == n) {
      s.root *= x;
      return s;
    }
  s.parts.push_back(n);
  return s;
}

}  // namespace

bool Terms::positive_atom(uint32_t atom) const {
  return atoms_[atom].kind == AtomKind::Constant || atoms_[atom].kind == AtomKind::Root;
}

bool Terms::never_negative(const Factor& f) const {
  const Atom& a = atoms_[f.atom];
  return f.power % 2 == 0 || positive_atom(f.atom) || a.kind == AtomKind::Positive ||
         a.kind == AtomKind::Zero || (a.kind == AtomKind::Base && sign_of(a.operands[0]) > 0);
}

int Terms::sign_of(TermId a, bool or_zero) const {
  if (or_zero && not_negative_.contains(a)) return 1;
  bool strict = or_zero;
  int sign = 0;
  for (const auto& [m, c] : terms_[a].sum) {
    const int s = c.num > 0 ? 1 : -1;
    if (sign == -s) return 0;
    sign = s;
    // Products and exponentials may underflow, roots and squares may be zero; [x > 0] is one of
    // both.
    bool nonzero = monomials_[m].exponent == kZero;
    for (const Factor& f : monomials_[m].factors) {
      nonzero = nonzero && atoms_[f.atom].kind == AtomKind::Constant;
      if (!never_negative(f)) return 0;
    }
    strict = strict || nonzero;
  }
  return strict ? sign : 0;
}

TermId Terms::abs(TermId a) {
  const TermId r = relu(a), twice = sub(add(r, r), a);
  not_negative_.insert(twice);
  return twice;
}

// u·[u > 0], oriented so that relu(−u) = relu(u) − u.
TermId Terms::relu(TermId a) {
  if (a == kZero) return kZero;
  if (sign_of(a, true) > 0) return a;
  if (const TermId n = negative(a); n != kNone && sign_of(n, true) > 0) return kZero;
  if (terms_[a].sum.size() == 1) {  // factors that are not negative do not matter
    const auto [m, c] = terms_[a].sum[0];
    Monomial sure, rest;
    sure.exponent = monomials_[m].exponent;
    for (const Factor& f : monomials_[m].factors)
      (never_negative(f) ? sure : rest).factors.push_back(f);
    if (rest < monomials_[m] || monomials_[m] < rest) {
      const TermId r = relu(of_monomial(intern(std::move(rest)), c));
      const TermId whole = mul(of_monomial(intern(std::move(sure)), {1, 1}), r);
      not_negative_.insert(whole);
      return whole;
    }
  }
  const Oriented o = oriented(a);
  const TermId r = mul(o.term, positive(o.term));
  const Fraction size{o.factor.num < 0 ? -o.factor.num : o.factor.num, o.factor.den};
  const TermId scale = of_monomial(0, size);
  const TermId whole = mul(scale, o.factor.num < 0 ? sub(r, o.term) : r);
  not_negative_.insert({whole, r, sub(r, o.term)});
  return whole;
}

TermId Terms::positive(TermId a) {
  if (a == kZero) return kZero;
  if (const int s = sign_of(a); s != 0) return s > 0 ? kOne : kZero;
  if (sign_of(a, true) > 0) return sub(kOne, zero(a));
  if (const TermId n = negative(a); n != kNone && sign_of(n, true) > 0) return kZero;
  if (const auto p = decided_factor(a)) return mul(of_atom(*p), positive(decided(a, *p, true)));
  const Oriented o = oriented(a);
  const TermId yes = indicator(AtomKind::Positive, o.term);
  if (o.factor.num > 0) return yes;
  return sub(sub(kOne, yes), zero(o.term));
}

TermId Terms::zero(TermId a) {
  if (a == kZero) return kOne;
  if (sign_of(a) != 0) return kZero;
  if (const auto p = decided_factor(a))
    return sub(kOne, mul(of_atom(*p), sub(kOne, zero(decided(a, *p, true)))));
  const Oriented o = oriented(a);
  if (o.term == kZero) return kOne;
  return indicator(AtomKind::Zero, o.term);
}

std::optional<uint32_t> Terms::decided_factor(TermId a) const {
  const Term& t = terms_[a];
  if (t.sum.size() != 1) return std::nullopt;
  const std::vector<Factor>& factors = monomials_[t.sum[0].first].factors;
  const auto it = std::ranges::find_if(factors, [&](const Factor& f) {
    return atoms_[f.atom].kind == AtomKind::Positive || atoms_[f.atom].kind == AtomKind::Zero;
  });
  return it == factors.end() ? std::nullopt : std::optional(it->atom);
}

TermId Terms::indicator(AtomKind kind, TermId a) {
  Atom bracket;
  bracket.kind = kind;
  bracket.operands = {a};
  Shadows s;
  for (size_t k = 0; k < kPoints; ++k) {
    const TermValue& x = shadows_[a][k];
    // Too close to call counts as undefined.
    const bool clear = std::fabs(x.value) > 1e-9 * x.scale;
    const double v = clear ? double(kind == AtomKind::Positive && x.value > 0) : std::nan("");
    s[k] = {v, std::fabs(v)};
  }
  return of_atom(intern(std::move(bracket), s));
}

TermId Terms::symbol(const std::string& name, std::vector<TermId> operands) {
  Atom a;
  a.kind = AtomKind::Function;
  a.name = name;
  a.operands = std::move(operands);
  Shadows s;
  for (int p = 0; p < kPoints; ++p) {
    const double x = input_at(-1 - int64_t(atoms_.size()), p);
    s[size_t(p)] = {x, std::fabs(x)};
  }
  return of_atom(intern(std::move(a), s));
}

TermId Terms::unknown(const std::string& name, std::vector<TermId> operands) {
  Atom a;
  a.kind = AtomKind::Function;
  a.name = name;
  for (TermId t : operands) a.operands.push_back(canonical(t));
  Shadows s;
  s.fill({std::nan(""), std::nan("")});
  return of_atom(intern(std::move(a), s));
}

TermId Terms::decided(TermId a, uint32_t indicator, bool yes) {
  std::vector<TermId> parts;
  const Term whole = terms_[a];
  for (const auto& [m, c] : whole.sum) {
    Monomial rest = monomials_[m];
    const bool here =
        std::erase_if(rest.factors, [&](const Factor& f) { return f.atom == indicator; }) != 0;
    if (yes || !here) parts.push_back(of_monomial(here ? intern(std::move(rest)) : m, c));
  }
  return sum(parts);
}

TermId Terms::max(const std::vector<TermId>& operands) {
  // Maxima of maxima are maxima of all.
  std::set<TermId> flat;
  for (TermId t : operands)
    if (auto it = max_of_.find(t); it != max_of_.end())
      flat.insert(it->second.begin(), it->second.end());
    else
      flat.insert(canonical(t));
  const std::vector<TermId> set(flat.begin(), flat.end());
  CHECK(!set.empty()) << "the maximum of nothing";
  if (set.size() == 1) return set[0];
  TermId r;
  if (set.size() == 2) {
    r = add(set[0], relu(sub(set[1], set[0])));
  } else {
    // Positive multiples go with the set: all operands over the largest coefficient.
    Fraction lead{0, 1};
    for (TermId t : set)
      if (const Fraction size = size_of(t); t != kZero && size.value() > lead.value()) lead = size;
    if (lead.num == 0) lead = {1, 1};
    std::vector<TermId> unit;
    for (TermId t : set) {
      const TermId s = scaled(t, {lead.den, lead.num});
      if (s == kNone) {
        unit = set;
        lead = {1, 1};
        break;
      }
      unit.push_back(canonical(s));
    }
    Shadows s;
    for (size_t p = 0; p < kPoints; ++p) {
      s[p] = {-INFINITY, 0};
      for (TermId t : unit) {
        const TermValue& x = shadows_[t][p];
        s[p].value = x.value > s[p].value || x.value != x.value ? x.value : s[p].value;
        s[p].scale = std::max(s[p].scale, x.scale);
      }
    }
    std::ranges::sort(unit);
    Atom m;
    m.kind = AtomKind::Max;
    m.operands = unit;
    r = mul(of_monomial(0, lead), of_atom(intern(std::move(m), s)));
  }
  max_of_.emplace(r, set);
  return r;
}

TermId Terms::sqrt(TermId a) {
  if (a == kZero) return kZero;
  // √(c·x²·e^g·rest) = √c·|x|·e^(g/2)·√rest: even powers and exponentials common to all terms.
  std::map<uint32_t, int32_t> common;
  bool first = true;
  for (const auto& [m, c] : terms_[a].sum) {
    std::map<uint32_t, int32_t> mine;
    for (const Factor& f : monomials_[m].factors) mine[f.atom] = f.power;
    if (first) {
      common = mine;
    } else {
      for (auto& [atom, power] : common) {
        const int32_t other = mine.count(atom) ? mine[atom] : 0;
        power = std::min(power, other);
      }
      for (const auto& [atom, power] : mine)
        if (!common.count(atom) && power < 0) common[atom] = power;
    }
    first = false;
  }
  TermId outside = kOne, inside = a;
  std::map<uint32_t, int32_t> taken;  // even powers to leave the root
  for (const auto& [atom, power] : common) {
    const int32_t half = power >= 0 ? power / 2 : -((1 - power) / 2);
    const AtomKind kind = atoms_[atom].kind;
    if (half == 0 || kind == AtomKind::Root || kind == AtomKind::Positive || kind == AtomKind::Zero)
      continue;
    taken[atom] = 2 * half;
    const TermId x = kind == AtomKind::Base ? atoms_[atom].operands[0] : of_atom(atom);
    outside = mul(outside, this->power(positive_atom(atom) ? x : abs(x), half));
  }
  if (!taken.empty()) {
    std::vector<TermId> parts;
    const Term whole = terms_[a];
    for (const auto& [m, c] : whole.sum) {
      Monomial rest;
      const Monomial full = monomials_[m];
      rest.exponent = full.exponent;
      std::map<uint32_t, int32_t> powers;
      for (const Factor& f : full.factors) powers[f.atom] = f.power;
      for (const auto& [atom, power] : taken) powers[atom] -= power;
      TermId more = kOne;
      for (const auto& [atom, power] : powers) {
        if (power == 0) continue;
        if (power > 0 && atoms_[atom].kind == AtomKind::Base)  // bases have negative powers only
          more = mul(more, this->power(atoms_[atom].operands[0], power));
        else
          rest.factors.push_back({atom, power});
      }
      parts.push_back(mul(of_monomial(intern(std::move(rest)), c), more));
    }
    inside = sum(parts);
    if (inside == kZero) return kZero;
  }
  if (terms_[inside].sum.size() == 1) {
    const auto [m, c] = terms_[inside].sum[0];
    if (const TermId e = monomials_[m].exponent; e != kZero) {
      const TermId half = scaled(e, {1, 2});
      if (half != kNone) {
        Monomial rest = monomials_[m];
        rest.exponent = kZero;
        inside = of_monomial(intern(std::move(rest)), c);
        outside = mul(outside, exp(half));
      }
    }
  }
  if (inside == kOne) return outside;
  auto root_atom = [&](TermId u) {
    Atom r;
    r.kind = AtomKind::Root;
    r.operands = {u};
    Shadows s;
    for (size_t p = 0; p < kPoints; ++p) {
      const TermValue& x = shadows_[u][p];
      const double v = std::sqrt(x.value);
      s[p] = {v, v == 0 ? 0 : x.scale / v};
    }
    return of_atom(intern(std::move(r), s));
  };
  // The largest coefficient: √(num·den)/den.
  const Fraction lead = size_of(inside);
  const TermId unit = scaled(inside, {lead.den, lead.num});
  __int128 both;
  if (unit == kNone || __builtin_mul_overflow(lead.num, lead.den, &both))
    return mul(outside, root_atom(canonical(inside)));
  const TermId over = of_monomial(0, {1, lead.den});
  const SplitRoot split = split_root(both);
  outside = mul(outside, mul(of_monomial(0, {split.root, 1}), over));
  for (__int128 part : split.parts) outside = mul(outside, root_atom(of_monomial(0, {part, 1})));
  if (unit == kOne) return outside;
  return mul(outside, root_atom(canonical(unit)));
}

TermId Terms::exp(TermId a) {
  if (a == kZero) return kOne;
  return of_monomial(intern(Monomial{{}, canonical(a)}), {1, 1});
}

TermId Terms::log(TermId a) {
  const Term& t = terms_[a];
  if (t.sum.size() == 1 && t.sum[0].second == Fraction{1, 1}) {
    const Monomial& m = monomials_[t.sum[0].first];
    if (m.factors.empty() && m.exponent != kZero) return m.exponent;
    if (a == kOne) return kZero;
  }
  return function("log", a, Parity::None);
}

TermId Terms::function(const std::string& name, TermId a, Parity parity) {
  const auto rounds = [](const std::string& f) { return f == "floor" || f == "round"; };
  if (const Term& t = terms_[a];
      rounds(name) && t.sum.size() == 1 && t.sum[0].second == Fraction{1, 1}) {
    const Monomial& m = monomials_[t.sum[0].first];  // of what is whole already
    if (m.factors.size() == 1 && m.factors[0].power == 1 && m.exponent == kZero &&
        rounds(atoms_[m.factors[0].atom].name))
      return a;
  }
  // f(−u) = ∓f(u)
  const TermId u = canonical(a), v = parity == Parity::None ? u : canonical(negative(a));
  const TermId argument = u != v && opposite_first(u, v) ? v : u;
  Atom f;
  f.kind = AtomKind::Function;
  f.name = name;
  f.operands = {argument};
  Shadows s;
  for (size_t p = 0; p < kPoints; ++p) {
    const TermValue& x = shadows_[argument][p];
    double v = std::nan(""), slope = 1;
    if (name == "log") v = std::log(x.value), slope = 1 / std::fabs(x.value);
    if (name == "sin") v = std::sin(x.value);
    if (name == "cos") v = std::cos(x.value);
    if (name == "erf") v = std::erf(x.value), slope = 1.2;
    s[p] = {v, std::max(std::fabs(v), slope * x.scale)};
  }
  const TermId r = of_atom(intern(std::move(f), s));
  return parity == Parity::Odd && argument != u ? negative(r) : r;
}

}  // namespace tessera
