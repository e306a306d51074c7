#include "verify/opinion/terms.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace tessera {
namespace {

// Larger sums and products are not expanded.
constexpr size_t kMaxTerms = 3000;
constexpr size_t kMaxProduct = 60'000;
// Numbers with more odd digits become atoms, so that coefficients stay small.
constexpr int64_t kPlainNumber = int64_t(1) << 24;

__int128 gcd(__int128 a, __int128 b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) std::swap(a %= b, b);
  return a;
}

uint64_t pair_key(uint32_t a, uint32_t b) { return uint64_t(a) << 32 | b; }

bool close(double a, double b, double scale, double tolerance) {
  return std::fabs(a - b) <= tolerance * scale;
}

}  // namespace

std::optional<Fraction> Fraction::make(__int128 num, __int128 den) {
  if (den == 0) return std::nullopt;
  const __int128 g = gcd(num, den);
  if (g > 1) num /= g, den /= g;
  if (den < 0) num = -num, den = -den;
  return Fraction{num, den};
}

std::optional<Fraction> Fraction::mul(const Fraction& a, const Fraction& b) {
  const __int128 g = gcd(a.num, b.den), h = gcd(b.num, a.den);
  const __int128 an = g > 1 ? a.num / g : a.num, bd = g > 1 ? b.den / g : b.den;
  const __int128 bn = h > 1 ? b.num / h : b.num, ad = h > 1 ? a.den / h : a.den;
  Fraction r;
  if (__builtin_mul_overflow(an, bn, &r.num) || __builtin_mul_overflow(ad, bd, &r.den))
    return std::nullopt;
  if (r.num == 0) r.den = 1;
  return r;
}

std::optional<Fraction> Fraction::add(const Fraction& a, const Fraction& b) {
  __int128 x, y, n, d;
  if (a.den == b.den) {
    if (__builtin_add_overflow(a.num, b.num, &n)) return std::nullopt;
    return make(n, a.den);
  }
  if (__builtin_mul_overflow(a.num, b.den, &x) || __builtin_mul_overflow(b.num, a.den, &y) ||
      __builtin_add_overflow(x, y, &n) || __builtin_mul_overflow(a.den, b.den, &d))
    return std::nullopt;
  return make(n, d);
}

Terms::Terms(uint64_t seed, int64_t max_work) : seed_(seed), max_work_(max_work) {
  intern(Monomial{});  // 1
  intern(Term{});
  intern(Term{{{0, {1, 1}}}});
}

double Terms::input_at(int64_t index, int point) const {
  const uint64_t h = mix64(seed_ ^ mix64(uint64_t(index) * kPoints + uint64_t(point) + 1));
  const double x = 0.25 + 1.5 * double(h >> 11) * 0x1p-53;
  return point > 0 && (h & 1) ? -x : x;
}

// --- interning

TermId Terms::intern(Term t) {
  std::vector<std::pair<uint32_t, std::pair<__int128, __int128>>> key;
  key.reserve(t.sum.size());
  for (const auto& [m, c] : t.sum) key.push_back({m, {c.num, c.den}});
  auto [it, fresh] = known_terms_.emplace(std::move(key), TermId(terms_.size()));
  if (!fresh) return it->second;
  Shadows s{};
  for (const auto& [m, c] : t.sum)
    for (size_t p = 0; p < kPoints; ++p) {
      s[p].value += c.value() * monomial_shadows_[m][p].value;
      s[p].scale += std::fabs(c.value()) * monomial_shadows_[m][p].scale;
    }
  terms_.push_back(std::move(t));
  shadows_.push_back(s);
  return it->second;
}

uint32_t Terms::intern(Monomial m) {
  auto [it, fresh] = known_monomials_.emplace(m, uint32_t(monomials_.size()));
  if (!fresh) return it->second;
  Shadows s;
  for (size_t p = 0; p < kPoints; ++p) {
    double value = 1, relative = 1;  // scale over |value|
    for (const Factor& f : m.factors) {
      const TermValue& a = atom_shadows_[f.atom][p];
      value *= std::pow(a.value, f.power);
      relative = std::max(relative, std::abs(f.power) * a.scale / std::fabs(a.value));
    }
    if (m.exponent != kZero) {
      const TermValue& e = shadows_[m.exponent][p];
      value *= std::exp(e.value);
      relative = std::max(relative, e.scale);
    }
    // A factor that is exactly 0 has no relative error.
    s[p] = {value, value == 0 ? 0 : std::fabs(value) * relative};
  }
  monomials_.push_back(std::move(m));
  monomial_shadows_.push_back(s);
  return it->second;
}

uint32_t Terms::intern(Atom a, const Shadows& shadows) {
  auto [it, fresh] = known_atoms_.emplace(
      std::make_tuple(a.kind, a.index, a.value, a.name, a.operands), uint32_t(atoms_.size()));
  if (!fresh) return it->second;
  atoms_.push_back(std::move(a));
  atom_shadows_.push_back(shadows);
  return it->second;
}

TermId Terms::of_monomial(uint32_t m, const Fraction& c) {
  return c.num == 0 ? kZero : intern(Term{{{m, c}}});
}
TermId Terms::of_atom(uint32_t atom, int32_t power) {
  return of_monomial(intern(Monomial{{{atom, power}}, kZero}), {1, 1});
}

TermId Terms::opaque(AtomKind kind, std::vector<TermId> operands, const Shadows& shadows) {
  for (TermId& t : operands) t = canonical(t);
  std::ranges::sort(operands);
  Atom a;
  a.kind = kind;
  a.operands = std::move(operands);
  return of_atom(intern(std::move(a), shadows));
}

// --- leaves

TermId Terms::variable(int64_t index) {
  Atom a;
  a.index = index;
  Shadows s;
  for (int p = 0; p < kPoints; ++p)
    s[size_t(p)] = {input_at(index, p), std::fabs(input_at(index, p))};
  return of_atom(intern(std::move(a), s));
}

TermId Terms::constant(const Rational& value) {
  CHECK(value.finite()) << "infinity is no term";
  auto split = [](int64_t n) {  // odd part and power of two
    int k = 0;
    while (n != 0 && n % 2 == 0) n /= 2, ++k;
    return std::pair(n, k);
  };
  auto [num, up] = split(value.num());
  auto [den, down] = split(value.den());
  int two = up - down + value.exp2();
  Fraction plain{num < 0 ? -1 : num > 0, 1};
  std::vector<Factor> factors;
  auto number = [&](int64_t odd, int power) {
    if (odd < kPlainNumber) {
      (power > 0 ? plain.num : plain.den) *= odd;
      return;
    }
    Atom a;
    a.kind = AtomKind::Constant;
    a.value = double(odd);  // odd numbers below 2^62 may round: `name` tells them apart
    a.name = std::to_string(odd) + ".0";
    Shadows s;
    s.fill({double(odd), double(odd)});
    factors.push_back({intern(std::move(a), s), power});
  };
  number(num < 0 ? -num : num, 1);
  number(den, -1);
  if (plain.num == 0) return kZero;
  if (two > 40 || two < -40) {
    Atom a;
    a.kind = AtomKind::Constant;
    a.value = std::ldexp(1.0, two > 0 ? 40 : -40);
    a.name = two > 0 ? "1099511627776.0" : "(/ 1.0 1099511627776.0)";
    Shadows s;
    s.fill({a.value, a.value});
    factors.push_back({intern(std::move(a), s), std::abs(two) / 40});
    two %= 40;
  }
  (two > 0 ? plain.num : plain.den) <<= std::abs(two);
  std::ranges::sort(factors);
  return of_monomial(intern(Monomial{factors, kZero}), *Fraction::make(plain.num, plain.den));
}

std::optional<Fraction> Terms::as_constant(TermId a) const {
  const Term& t = terms_[a];
  if (t.sum.empty()) return Fraction{0, 1};
  if (t.sum.size() == 1 && t.sum[0].first == 0) return t.sum[0].second;
  return std::nullopt;
}

// --- sums and products

bool Terms::add_to(Sums& sums, TermId a, const Fraction& c) const {
  for (const auto& [m, d] : terms_[a].sum) {
    const auto product = Fraction::mul(c, d);
    if (!product) return false;
    auto [it, fresh] = sums.emplace(m, *product);
    if (fresh) continue;
    const auto total = Fraction::add(it->second, *product);
    if (!total) return false;
    if (total->num == 0)
      sums.erase(it);
    else
      it->second = *total;
  }
  return true;
}

TermId Terms::added(const std::vector<TermId>& terms) {
  Sums sums;
  for (TermId t : terms) {
    spend(int64_t(terms_[t].sum.size()));
    if (!add_to(sums, t, {1, 1}) || sums.size() > kMaxTerms) return kNone;
  }
  return intern(Term{{sums.begin(), sums.end()}});
}

TermId Terms::sum(const std::vector<TermId>& terms) {
  if (const TermId exact = added(terms); exact != kNone) return exact;
  Shadows s{};
  for (TermId t : terms)
    for (size_t p = 0; p < kPoints; ++p) {
      s[p].value += shadows_[t][p].value;
      s[p].scale += shadows_[t][p].scale;
    }
  return opaque(AtomKind::Sum, terms, s);
}

TermId Terms::scaled(TermId a, const Fraction& c) {
  Sums sums;
  if (c.num == 0) return kZero;
  if (!add_to(sums, a, c)) return kNone;
  return intern(Term{{sums.begin(), sums.end()}});
}
TermId Terms::negative(TermId a) { return scaled(a, {-1, 1}); }

TermId Terms::product(uint32_t a, uint32_t b) {
  if (a > b) std::swap(a, b);
  if (a == 0) return of_monomial(b, {1, 1});
  if (auto it = products_.find(pair_key(a, b)); it != products_.end()) return it->second;
  Monomial r;
  const Monomial &x = monomials_[a], &y = monomials_[b];
  std::vector<std::pair<TermId, int64_t>> more;  // powers of sums, by which to multiply
  auto take = [&](uint32_t atom, int32_t power, bool met) {
    const Atom& f = atoms_[atom];
    if ((f.kind == AtomKind::Positive || f.kind == AtomKind::Zero) && power > 1) power = 1;
    if (f.kind == AtomKind::Root && met && (power > 1 || power < 0)) {
      const int32_t rest = power & 1;  // r^e = r^(e mod 2) · u^⌊e/2⌋ where r = √u
      more.emplace_back(f.operands[0], (power - rest) / 2);
      power = rest;
    }
    if (power != 0) r.factors.push_back({atom, power});
  };
  size_t i = 0, j = 0;
  while (i < x.factors.size() || j < y.factors.size()) {
    if (j == y.factors.size() || (i < x.factors.size() && x.factors[i].atom < y.factors[j].atom)) {
      take(x.factors[i].atom, x.factors[i].power, false);
      ++i;
    } else if (i == x.factors.size() || y.factors[j].atom < x.factors[i].atom) {
      take(y.factors[j].atom, y.factors[j].power, false);
      ++j;
    } else {
      take(x.factors[i].atom, x.factors[i].power + y.factors[j].power, true);
      ++i, ++j;
    }
  }
  const TermId ea = x.exponent, eb = y.exponent;
  r.exponent = ea == kZero ? eb : eb == kZero ? ea : canonical(add(ea, eb));
  TermId result = of_monomial(intern(std::move(r)), {1, 1});
  for (const auto& [base, n] : more) result = mul(result, power(base, n));
  products_[pair_key(a, b)] = result;
  return result;
}

TermId Terms::multiplied(TermId a, TermId b) {
  const size_t na = terms_[a].sum.size(), nb = terms_[b].sum.size();
  spend(int64_t(na * nb));
  if (na * nb > 1 && (na * nb > kMaxProduct || work_ > max_work_)) return kNone;
  Sums sums;
  // By index: products may add terms.
  for (size_t i = 0; i < na; ++i)
    for (size_t j = 0; j < nb; ++j) {
      const auto [m, c] = terms_[a].sum[i];
      const auto [n, d] = terms_[b].sum[j];
      const auto cd = Fraction::mul(c, d);
      if (!cd || !add_to(sums, product(m, n), *cd) || sums.size() > kMaxTerms) return kNone;
    }
  return intern(Term{{sums.begin(), sums.end()}});
}

TermId Terms::mul(TermId a, TermId b) {
  if (a > b) std::swap(a, b);
  if (a == kZero || b == kZero) return kZero;
  if (a == kOne) return b;
  if (auto it = term_products_.find(pair_key(a, b)); it != term_products_.end()) return it->second;
  TermId r = multiplied(a, b);
  if (r == kNone) {
    Shadows s;
    for (size_t p = 0; p < kPoints; ++p) {
      const TermValue &x = shadows_[a][p], &y = shadows_[b][p];
      s[p] = {x.value * y.value, x.scale * y.scale};
    }
    r = opaque(AtomKind::Product, {a, b}, s);
  }
  return term_products_[pair_key(a, b)] = r;
}

bool Terms::hangs_on_decision(TermId a) const {
  return std::ranges::any_of(
      terms_[a].sum,
      [&](const auto& term) {
        return std::ranges::any_of(
            monomials_[term.first].factors,
            [&](const Factor& f) {
              const Atom& x = atoms_[f.atom];
              return x.kind == AtomKind::Positive || x.kind == AtomKind::Zero ||
                     (x.kind == AtomKind::Root && hangs_on_decision(x.operands[0]));
            });
      });
}

TermId Terms::inverse(TermId a) {
  CHECK(a != kZero) << "the inverse of zero";
  if (auto it = quotients_.find(a); it != quotients_.end()) return it->second;
  TermId r;
  if (hangs_on_decision(a)) {  // where that makes it 0, nothing is cancelled: nobody may look there
    const Oriented o = oriented(a);
    Atom inverse;
    inverse.kind = AtomKind::Function;
    inverse.name = "inverse";
    inverse.operands = {o.term == kZero ? a : o.term};
    Shadows s = shadows_of(inverse.operands[0]);
    for (TermValue& x : s) x = {1 / x.value, x.scale / (x.value * x.value)};
    r = of_monomial(intern(Monomial{{{intern(std::move(inverse), s), 1}}, kZero}),
                    *Fraction::make(o.factor.den, o.factor.num));
  } else if (terms_[a].sum.size() == 1) {
    const auto [m, c] = terms_[a].sum[0];
    Monomial inverted;
    TermId more = kOne;
    const std::vector<Factor> factors = monomials_[m].factors;
    const TermId exponent = monomials_[m].exponent;
    for (const Factor& f : factors) {
      if (atoms_[f.atom].kind == AtomKind::Root) {  // 1/√u = √u/u
        more = mul(more, mul(of_atom(f.atom), power(atoms_[f.atom].operands[0], -1)));
        CHECK(f.power == 1) << "powers of roots are reduced";
      } else {
        inverted.factors.push_back({f.atom, -f.power});
      }
    }
    if (exponent != kZero) inverted.exponent = canonical(negative(exponent));
    r = mul(of_monomial(intern(std::move(inverted)), *Fraction::make(c.den, c.num)), more);
  } else {
    const Oriented o = oriented(a);
    if (o.term != kZero && terms_[o.term].sum.size() == 1) {  // equal to something simpler
      r = mul(of_monomial(0, *Fraction::make(o.factor.den, o.factor.num)), inverse(o.term));
    } else {
      Atom base;
      base.kind = AtomKind::Base;
      base.operands = {o.term == kZero ? a : o.term};
      r = of_monomial(intern(Monomial{{{intern(std::move(base), shadows_of(o.term)), -1}}, kZero}),
                      *Fraction::make(o.factor.den, o.factor.num));
    }
  }
  return quotients_[a] = r;
}

TermId Terms::power(TermId a, int64_t n) {
  if (n < 0) return power(inverse(a), -n);
  TermId r = kOne;
  for (; n > 0; --n) r = mul(r, a);
  return r;
}

// --- equality

// Multiplies by all denominators, the newest first (older ones may occur inside of newer ones), and
// looks whether everything cancels.
bool Terms::vanishes(TermId a) {
  if (auto it = vanishes_.find(a); it != vanishes_.end()) return it->second;
  TermId t = a;
  for (int step = 0; t != kZero; ++step) {
    uint32_t base = 0;
    int32_t lowest = 0;
    for (const auto& [m, c] : terms_[t].sum)
      for (const Factor& f : monomials_[m].factors)
        if (atoms_[f.atom].kind == AtomKind::Base && f.power < 0 &&
            (lowest == 0 || f.atom > base || (f.atom == base && f.power < lowest))) {
          base = f.atom;
          lowest = f.power;
        }
    if (lowest == 0) break;
    if (step > 200 || stopped_) return vanishes_[a] = false;
    // Terms by the power of the base: what is left without it times base^(power − lowest).
    std::map<int32_t, Term> parts;
    for (const auto& [m, c] : terms_[t].sum) {
      Monomial rest = monomials_[m];
      int32_t power = 0;
      std::erase_if(rest.factors, [&](const Factor& f) {
        if (f.atom == base) power = f.power;
        return f.atom == base;
      });
      parts[power].sum.push_back({intern(std::move(rest)), c});
    }
    std::vector<TermId> sums;
    for (auto& [power, part] : parts) {
      std::ranges::sort(part.sum, [](const auto& x, const auto& y) { return x.first < y.first; });
      TermId p = intern(std::move(part));
      for (int32_t k = power - lowest; k > 0 && p != kNone; --k)
        p = multiplied(p, atoms_[base].operands[0]);
      if (p == kNone) return vanishes_[a] = false;
      sums.push_back(p);
    }
    t = added(sums);
    if (t == kNone) return vanishes_[a] = false;
  }
  return vanishes_[a] = t == kZero || vanishes_by_cases(t);
}

// Whether one product is 0 wherever another is.
bool Terms::is_multiple(uint32_t monomial, uint32_t of) const {
  const auto& factors = monomials_[monomial].factors;
  if (monomials_[of].exponent != kZero && monomials_[of].exponent != monomials_[monomial].exponent)
    return false;  // it may underflow
  return std::ranges::all_of(monomials_[of].factors, [&](const Factor& f) {
    return f.power < 0 || std::ranges::any_of(factors, [&](const Factor& g) {
             return g.atom == f.atom && g.power > 0;
           });
  });
}

// t = T·[u = 0] + R vanishes if R does, and T does where u = 0: an atom that is a term of u and
// occurs nowhere else in it is replaced by what it equals there.
bool Terms::vanishes_by_cases(TermId t) {
  std::optional<uint32_t> indicator;
  for (const auto& [m, c] : terms_[t].sum)
    for (const Factor& f : monomials_[m].factors)
      if (atoms_[f.atom].kind == AtomKind::Zero) indicator = f.atom;
  if (!indicator) return false;
  Term with, without;
  const Term whole = terms_[t];
  for (const auto& [m, c] : whole.sum) {
    Monomial rest = monomials_[m];
    const bool here =
        std::erase_if(rest.factors, [&](const Factor& f) { return f.atom == *indicator; }) != 0;
    (here ? with : without).sum.push_back({here ? intern(std::move(rest)) : m, c});
  }
  if (!vanishes(intern(std::move(without)))) return false;
  const Term u = terms_[atoms_[*indicator].operands[0]];
  // A product that is 0 makes all its multiples 0.
  if (u.sum.size() == 1)
    std::erase_if(with.sum,
                  [&](const auto& part) { return is_multiple(part.first, u.sum[0].first); });
  if (with.sum.empty()) return true;
  for (const auto& [m, c] : u.sum) {
    const Monomial& one = monomials_[m];
    if (one.factors.size() != 1 || one.exponent != kZero || one.factors[0].power != 1) continue;
    const uint32_t atom = one.factors[0].atom;
    Term others;
    bool alone = true;
    for (const auto& [n, d] : u.sum) {
      if (n == m) continue;
      others.sum.push_back({n, d});
      for (const Factor& f : monomials_[n].factors) alone = alone && f.atom != atom;
    }
    if (!alone) continue;
    const TermId value =
        mul(intern(std::move(others)), of_monomial(0, *Fraction::make(-c.den, c.num)));
    std::vector<TermId> parts;
    for (const auto& [n, d] : with.sum) {
      Monomial rest = monomials_[n];
      int32_t power = 0;
      std::erase_if(rest.factors, [&](const Factor& f) {
        if (f.atom == atom) power = f.power;
        return f.atom == atom;
      });
      if (power < 0) return false;
      parts.push_back(mul(of_monomial(intern(std::move(rest)), d), this->power(value, power)));
    }
    const TermId there = added(parts);
    return there != kNone && vanishes(there);
  }
  return false;
}

std::optional<int> Terms::different_at(TermId a, TermId b) const {
  for (int p = 0; p < kPoints; ++p) {
    const TermValue &x = shadow(a, p), &y = shadow(b, p);
    const double scale = x.scale + y.scale;
    if (std::isfinite(x.value) && std::isfinite(y.value) && std::isfinite(scale) &&
        !close(x.value, y.value, scale, 1e-7))
      return p;
  }
  return std::nullopt;
}

bool Terms::equal(TermId a, TermId b) {
  if (a == b) return true;
  if (different_at(a, b)) return false;
  const TermId opposite = negative(b);
  const TermId difference = opposite == kNone ? kNone : added({a, opposite});
  return difference != kNone && vanishes(difference);
}

TermId Terms::canonical(TermId a) {
  if (auto it = canonical_.find(a); it != canonical_.end()) return it->second;
  if (stopped_) return a;
  const TermValue s = shadows_[a][0];
  TermId found = a;
  // Candidates are those of nearly the same value, where that is known to some digits.
  constexpr double kDigits = 1e-9, kWorst = 1e4;
  constexpr size_t kCandidates = 6;
  if (std::isfinite(s.value) && s.scale <= kWorst * std::fabs(s.value)) {
    const double reach = kDigits * s.scale;
    std::vector<TermId> near;
    for (auto it = representatives_.lower_bound(s.value - reach);
         it != representatives_.end() && it->first <= s.value + reach && near.size() < kCandidates;
         ++it)
      near.push_back(it->second);
    for (TermId t : near)
      if (equal(a, t)) {
        found = t;
        break;
      }
    if (found == a) representatives_.emplace(s.value, a);
  }
  return canonical_[a] = found;
}

Fraction Terms::size_of(TermId a) const {
  Fraction size{0, 1};
  for (const auto& [m, c] : terms_[a].sum)
    if (std::fabs(c.value()) > size.value()) size = {c.num < 0 ? -c.num : c.num, c.den};
  return size.num == 0 ? Fraction{1, 1} : size;
}

Terms::Oriented Terms::oriented(TermId a) {
  Fraction lead = size_of(a);
  TermId scaled_down = scaled(a, {lead.den, lead.num});
  if (scaled_down == kNone) {
    scaled_down = a;
    lead = {1, 1};
  }
  const TermId t = canonical(scaled_down), opposite = canonical(negative(scaled_down));
  if (opposite_first(t, opposite)) return {opposite, {-lead.num, lead.den}};
  return {t, lead};
}

}  // namespace tessera
