#include "search/mugraph/normal_form.h"

#include <algorithm>

#include "base/check.h"
#include "base/interruption.h"
#include "base/text.h"

namespace tessera::mugraph {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 32);
}
uint64_t mix(uint64_t h, const Q& q) { return mix(mix(h, uint64_t(q.num)), uint64_t(q.den)); }

uint32_t ceil_abs(const Q& q) {
  int64_t n = q.num < 0 ? -q.num : q.num;
  return uint32_t(std::min<int64_t>((n + q.den - 1) / q.den, 1000));
}

bool half(const Q& q) { return q.den == 2; }

// The coefficient that is scaled away: of the first term that is not a constant, so that a small
// constant (an epsilon) never becomes the unit.
Coef leading(const std::vector<Term>& terms) {
  for (const Term& t : terms)
    if (t.mono != 0) return t.coef;
  return terms[0].coef;
}

}  // namespace

NormalForms::NormalForms(std::vector<int64_t> extents, FormOptions options)
    : extents_(std::move(extents)), options_(options) {
  intern_mono({});
}

uint32_t NormalForms::function(const Function& f) {
  for (size_t i = 0; i < functions_.size(); ++i)
    if (functions_[i].name == f.name) return uint32_t(i);
  functions_.push_back(f);
  return uint32_t(functions_.size() - 1);
}

// --- interning --------------------------------------------------------------------------------

AtomId NormalForms::intern_atom(Atom a) {
  uint64_t h = mix(uint64_t(a.kind) * 0x1000193u + a.ref, a.bound);
  if (a.kind == AtomKind::Input) h = mix(h, a.axes);
  for (PolyId p : a.args) h = mix(h, p);
  auto& bucket = atom_index_[h];
  for (AtomId id : bucket) {
    const Atom& b = atoms_[id];
    if (a.kind == b.kind && a.ref == b.ref && a.bound == b.bound && a.args == b.args &&
        (a.kind != AtomKind::Input || a.axes == b.axes))
      return id;
  }
  atoms_.push_back(std::move(a));
  bucket.push_back(AtomId(atoms_.size() - 1));
  return bucket.back();
}

MonoId NormalForms::intern_mono(std::vector<Factor> factors) {
  interruption_point();
  uint64_t h = 0x51ed270b;
  for (const Factor& f : factors) h = mix(mix(h, f.atom), f.exponent);
  auto& bucket = mono_index_[h];
  for (MonoId id : bucket)
    if (monos_[id].factors == factors) return id;
  Mono m;
  for (const Factor& f : factors) {
    const Atom& a = atoms_[f.atom];
    m.axes |= a.axes;
    m.inner |= a.inner;
    m.signature |= uint64_t(1) << (f.atom % 64);
    if (a.kind == AtomKind::Exp) {  // e^(c·m): one function, whatever c is
      m.size += a.size + (f.exponent.integer() ? ceil_abs(f.exponent) - 1 : 0);
    } else {
      m.size += a.size * ceil_abs(f.exponent) + (f.exponent.integer() ? 0 : 1) +
                (f.exponent.num < 0 ? 1 : 0);
      m.nonneg = m.nonneg && (a.nonneg || !f.exponent.integer() || f.exponent.even());
    }
  }
  m.factors = std::move(factors);
  monos_.push_back(std::move(m));
  bucket.push_back(MonoId(monos_.size() - 1));
  return bucket.back();
}

PolyId NormalForms::intern_poly(std::vector<Term> terms) {
  interruption_point();
  uint64_t h = 0x2545f491;
  for (const Term& t : terms) h = mix(mix(mix(h, t.mono), t.coef.q), uint64_t(t.coef.root));
  auto& bucket = poly_index_[h];
  for (PolyId id : bucket)
    if (polys_[id].terms == terms) return id;
  Poly p;
  p.nonneg = true;
  for (const Term& t : terms) {
    const Mono& m = monos_[t.mono];
    p.axes |= m.axes;
    p.inner |= m.inner;
    p.size += m.size + 1;
    p.nonneg = p.nonneg && m.nonneg && t.coef.q.num > 0;
  }
  if (!terms.empty()) --p.size;
  p.terms = std::move(terms);
  polys_.push_back(std::move(p));
  bucket.push_back(PolyId(polys_.size() - 1));
  return bucket.back();
}

// --- sums of terms ----------------------------------------------------------------------------

PolyId NormalForms::from_mono(MonoId m, const Coef& c) {
  if (m == kNone || c.bad()) return kNone;
  if (c.zero()) return intern_poly({});
  return intern_poly({Term{m, c}});
}

PolyId NormalForms::from_terms(std::vector<Term> terms) {
  std::ranges::sort(terms, {}, &Term::mono);
  std::vector<Term> out;
  for (const Term& t : terms) {
    if (t.coef.bad()) return kNone;
    if (!out.empty() && out.back().mono == t.mono) {
      out.back().coef = out.back().coef + t.coef;
      if (out.back().coef.bad()) return kNone;
    } else {
      if (!out.empty() && out.back().coef.zero()) out.pop_back();
      out.push_back(t);
    }
  }
  if (!out.empty() && out.back().coef.zero()) out.pop_back();
  PolyId p = intern_poly(std::move(out));
  if (polys_[p].terms.size() < 2) return p;
  // A common factor that is a power of this very sum combines with it: P·P^e = P^(e+1).
  bool has_poly = false;
  for (const Factor& f : monos_[polys_[p].terms[0].mono].factors)
    has_poly = has_poly || atoms_[f.atom].kind == AtomKind::Poly;
  if (!has_poly) return p;
  Split s = split(p, false);
  if (s.rest == kNone) return p;
  for (const Factor& f : monos_[s.common].factors) {
    const Atom& a = atoms_[f.atom];
    if (a.kind == AtomKind::Poly && a.ref == s.rest)
      return product(s.coef, merge(monos_[s.common].factors, {{f.atom, 1}}));
  }
  return p;
}

PolyId NormalForms::input(uint32_t view, AxisMask axes, const std::string& name) {
  if (view_names_.size() <= view) view_names_.resize(view + 1);
  view_names_[view] = name.empty() ? "t" + std::to_string(view) : name;
  Atom a;
  a.kind = AtomKind::Input;
  a.ref = view;
  a.axes = axes;
  a.size = 1;
  return from_mono(intern_mono({{intern_atom(a), 1}}));
}

PolyId NormalForms::constant(const Coef& c) { return from_mono(0, c); }

PolyId NormalForms::scale(PolyId p, const Coef& c) {
  if (p == kNone || c.bad()) return kNone;
  if (c.one()) return p;
  std::vector<Term> terms = polys_[p].terms;
  for (Term& t : terms) {
    t.coef = t.coef * c;
    if (t.coef.bad()) return kNone;
  }
  if (c.zero()) terms.clear();
  return intern_poly(std::move(terms));
}

PolyId NormalForms::add(PolyId a, PolyId b) {
  if (a == kNone || b == kNone) return kNone;
  std::vector<Term> terms = polys_[a].terms;
  terms.insert(terms.end(), polys_[b].terms.begin(), polys_[b].terms.end());
  return from_terms(std::move(terms));
}

// --- products and powers ----------------------------------------------------------------------

NormalForms::Exponents NormalForms::merge(const Exponents& a, const Exponents& b) const {
  Exponents out;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (j == b.size() || (i < a.size() && a[i].atom < b[j].atom)) {
      out.push_back(a[i++]);
    } else if (i == a.size() || b[j].atom < a[i].atom) {
      out.push_back(b[j++]);
    } else {
      Q e = a[i].exponent + b[j].exponent;
      if (!e.zero()) out.push_back({a[i].atom, e});
      ++i;
      ++j;
    }
  }
  return out;
}

PolyId NormalForms::product(const Coef& c, Exponents factors) {
  interruption_point();
  if (c.bad()) return kNone;
  int64_t terms = 1;
  int multiplicity = 0;
  bool expandable = false;
  for (const Factor& f : factors) {
    if (f.exponent.bad()) return kNone;
    const Atom& a = atoms_[f.atom];
    if (a.kind != AtomKind::Poly || !f.exponent.integer()) continue;
    size_t n = polys_[a.ref].terms.size();
    if (n == 1) {
      expandable = true;
    } else if (f.exponent.num > 0) {
      expandable = true;
      for (int64_t k = 0; k < f.exponent.num && terms < 1000000; ++k) terms *= int64_t(n);
      multiplicity += int(std::min<int64_t>(f.exponent.num, 1000));
    }
  }
  bool keep_sums = multiplicity >= 2 && terms > options_.cap;
  if (!expandable) return from_mono(intern_mono(std::move(factors)), c);
  Exponents rest, sums;
  for (const Factor& f : factors) {
    const Atom& a = atoms_[f.atom];
    bool is_sum = a.kind == AtomKind::Poly && f.exponent.integer() &&
                  (polys_[a.ref].terms.size() == 1 || (f.exponent.num > 0 && !keep_sums));
    (is_sum ? sums : rest).push_back(f);
  }
  if (sums.empty()) return from_mono(intern_mono(std::move(rest)), c);
  PolyId out = from_mono(intern_mono(std::move(rest)), c);
  for (const Factor& f : sums) {
    PolyId base = atoms_[f.atom].ref;
    if (polys_[base].terms.size() == 1) {
      const Term t = polys_[base].terms[0];
      Exponents scaled = monos_[t.mono].factors;
      for (Factor& g : scaled) g.exponent = g.exponent * f.exponent;
      out = distribute(out, product(power(t.coef, f.exponent), std::move(scaled)));
    } else {
      for (int64_t k = 0; k < f.exponent.num; ++k) out = distribute(out, base);
    }
    if (out == kNone) return kNone;
  }
  return out;
}

PolyId NormalForms::distribute(PolyId a, PolyId b) {
  if (a == kNone || b == kNone) return kNone;
  std::vector<Term> terms;
  const std::vector<Term> ta = polys_[a].terms, tb = polys_[b].terms;
  for (const Term& x : ta) {
    for (const Term& y : tb) {
      PolyId p = product(x.coef * y.coef, merge(monos_[x.mono].factors, monos_[y.mono].factors));
      if (p == kNone) return kNone;
      terms.insert(terms.end(), polys_[p].terms.begin(), polys_[p].terms.end());
    }
  }
  return from_terms(std::move(terms));
}

AtomId NormalForms::base_atom(PolyId p) {
  Atom a;
  a.kind = AtomKind::Poly;
  a.ref = p;
  a.axes = polys_[p].axes;
  a.inner = polys_[p].inner;
  a.size = polys_[p].size + 1;
  a.nonneg = polys_[p].nonneg;
  return intern_atom(std::move(a));
}

// Takes out the leading coefficient and the monomial common to all terms. Under a root only what
// is certainly not negative may leave.
NormalForms::Split NormalForms::split(PolyId p, bool for_root) {
  const std::vector<Term> terms = polys_[p].terms;
  Exponents common = monos_[terms[0].mono].factors;
  for (size_t i = 1; i < terms.size() && !common.empty(); ++i) {
    const Exponents& other = monos_[terms[i].mono].factors;
    Exponents next;
    for (const Factor& f : common) {
      for (const Factor& g : other) {
        if (g.atom != f.atom || (g.exponent.num < 0) != (f.exponent.num < 0)) continue;
        bool g_smaller = ((g.exponent - f.exponent).num < 0) != (f.exponent.num < 0);
        next.push_back({f.atom, g_smaller ? g.exponent : f.exponent});
      }
    }
    common = std::move(next);
  }
  if (for_root)
    std::erase_if(common, [&](const Factor& f) { return !monos_[intern_mono({f})].nonneg; });
  Exponents inverse_common = common;
  for (Factor& f : inverse_common) f.exponent = -f.exponent;
  std::vector<Term> rest;
  for (const Term& t : terms)
    rest.push_back({intern_mono(merge(monos_[t.mono].factors, inverse_common)), t.coef});
  std::ranges::sort(rest, {}, &Term::mono);
  Split s;
  s.common = intern_mono(std::move(common));
  s.coef = leading(rest);
  if (for_root) s.coef = magnitude(s.coef);
  for (Term& t : rest) t.coef = t.coef / s.coef;
  for (const Term& t : rest)
    if (t.coef.bad()) return {1, s.common, kNone};
  s.rest = intern_poly(std::move(rest));
  return s;
}

PolyId NormalForms::pow(PolyId p, const Q& e) {
  if (p == kNone || e.bad()) return kNone;
  if (e.zero()) return one();
  if (e == Q(1)) return p;
  const std::vector<Term> terms = polys_[p].terms;
  if (terms.empty()) return e.num > 0 ? p : kNone;
  if (terms.size() == 1) {
    Coef c = terms[0].coef;
    const Exponents factors = monos_[terms[0].mono].factors;
    if (e.integer()) {
      Exponents scaled = factors;
      for (Factor& f : scaled) f.exponent = f.exponent * e;
      return product(power(c, e), std::move(scaled));
    }
    // √(ab) = √a·√b needs all but one factor known to be >= 0; √(x²) = |x| is no power of x.
    bool fine = half(e) && c.q.num > 0;
    int unknown = 0;
    Exponents scaled = factors;
    for (Factor& f : scaled) {
      const Atom& a = atoms_[f.atom];
      Q x = f.exponent * e;
      if (a.kind != AtomKind::Exp) {
        if (x.bad() || x.den > 2) fine = false;
        bool known = a.nonneg || f.exponent.den == 2;
        if (!known && x.integer() && !x.even()) fine = false;
        if (!known && half(x)) ++unknown;
      }
      f.exponent = x;
    }
    if (fine && unknown <= 1) {
      Coef root = power(c, e);
      if (!root.bad()) return product(root, std::move(scaled));
    }
    Coef size = magnitude(c);
    Coef root = power(size, e);
    if (root.bad()) {
      root = 1;
      size = 1;
    }
    PolyId base = from_mono(terms[0].mono, c / size);
    if (base == kNone) return kNone;
    return product(root, {{base_atom(base), e}});
  }
  if (e.integer() && e.num > 0) {
    PolyId out = p;
    for (int64_t i = 1; i < e.num; ++i) out = mul(out, p);
    return out;
  }
  Split s = split(p, !e.integer());
  if (s.rest == kNone) return kNone;
  Coef c = power(s.coef, e);
  if (c.bad()) {  // an irrational leading coefficient stays inside
    s.rest = scale(s.rest, s.coef);
    c = 1;
    if (s.rest == kNone) return kNone;
  }
  PolyId base = product(c, {{base_atom(s.rest), e}});
  return mul(base, pow(from_mono(s.common), e));
}

PolyId NormalForms::mul(PolyId a, PolyId b) {
  if (a == kNone || b == kNone) return kNone;
  if (a > b) std::swap(a, b);
  uint64_t key = (uint64_t(a) << 32) | b;
  auto it = mul_memo_.find(key);
  if (it != mul_memo_.end()) return it->second;
  size_t na = polys_[a].terms.size(), nb = polys_[b].terms.size();
  PolyId out;
  if (na >= 2 && nb >= 2 && int64_t(na) * int64_t(nb) > options_.cap) {
    Split sa = split(a, false), sb = split(b, false);
    if (sa.rest == kNone || sb.rest == kNone) return kNone;
    Exponents f = merge({{base_atom(sa.rest), 1}}, {{base_atom(sb.rest), 1}});
    f = merge(f, monos_[sa.common].factors);
    f = merge(f, monos_[sb.common].factors);
    out = product(sa.coef * sb.coef, std::move(f));
  } else {
    out = distribute(a, b);
  }
  mul_memo_.emplace(key, out);
  return out;
}

// --- reductions -------------------------------------------------------------------------------

PolyId NormalForms::sum(PolyId p, AxisMask axes) {
  if (p == kNone) return kNone;
  if (axes == 0) return p;
  uint64_t key = mix(p, axes);
  auto it = sum_memo_.find(key);
  if (it != sum_memo_.end()) return it->second;
  const std::vector<Term> terms = polys_[p].terms;
  PolyId out = intern_poly({});
  for (const Term& t : terms) {
    out = add(out, sum_mono(t.mono, axes, t.coef));
    if (out == kNone) break;
  }
  sum_memo_.emplace(key, out);
  return out;
}

// Factors that share a summed axis form a group, one Sum atom each; the others stay outside.
PolyId NormalForms::sum_mono(MonoId m, AxisMask axes, const Coef& c) {
  struct Group {
    AxisMask bound = 0;
    Exponents factors;
  };
  std::vector<Group> groups;
  Exponents outside;
  AxisMask seen = 0;
  for (const Factor& f : monos_[m].factors) {
    AxisMask on = atoms_[f.atom].axes & axes;
    seen |= on;
    if (on == 0) {
      outside.push_back(f);
      continue;
    }
    Group g{on, {f}};
    std::vector<Group> apart;
    for (Group& other : groups) {
      if (other.bound & g.bound) {
        g.bound |= other.bound;
        g.factors = merge(g.factors, other.factors);
      } else {
        apart.push_back(std::move(other));
      }
    }
    apart.push_back(std::move(g));
    groups = std::move(apart);
  }
  Coef coef = c;
  AxisMask idle = axes & ~seen;
  for (const auto& [axis, part] : splits_) {
    const AxisMask both = bit(axis) | bit(part);
    if (!(idle & both)) continue;
    if ((idle & both) != both) return kNone;  // parts may differ in size
    idle &= ~bit(part);
  }
  for (; idle; idle &= idle - 1) {
    int64_t n = extents_[size_t(lowest(idle))];
    if (n <= 0) return kNone;
    coef = coef * Coef(n);
  }
  if (coef.bad()) return kNone;
  for (Group& g : groups) {
    // Flatten Σ_s a·(Σ_t b) = Σ_{s,t} a·b while the bound names do not clash.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < g.factors.size(); ++i) {
        const Atom a = atoms_[g.factors[i].atom];
        if (a.kind != AtomKind::Sum || g.factors[i].exponent != Q(1)) continue;
        AxisMask used = g.bound;
        for (size_t j = 0; j < g.factors.size(); ++j)
          if (j != i) used |= atoms_[g.factors[j].atom].axes | atoms_[g.factors[j].atom].inner;
        if (used & a.bound) continue;
        Exponents others = g.factors;
        others.erase(others.begin() + long(i));
        g.factors = merge(others, monos_[a.ref].factors);
        g.bound |= a.bound;
        changed = true;
        break;
      }
    }
    Atom s;
    s.kind = AtomKind::Sum;
    s.ref = intern_mono(std::move(g.factors));
    s.bound = g.bound;
    const Mono& body = monos_[s.ref];
    s.axes = body.axes & ~g.bound;
    s.inner = body.inner | g.bound;
    s.size = body.size + uint32_t(count(g.bound));
    s.nonneg = body.nonneg;
    outside = merge(outside, {{intern_atom(std::move(s)), 1}});
  }
  return product(coef, std::move(outside));
}

// --- functions --------------------------------------------------------------------------------

PolyId NormalForms::exp(PolyId p) {
  if (p == kNone) return kNone;
  const std::vector<Term> terms = polys_[p].terms;
  bool opaque = false, shifted = false;
  for (const Term& t : terms) {
    opaque = opaque || !t.coef.rational();
    for (const Factor& f : monos_[t.mono].factors) {
      const Atom& a = atoms_[f.atom];
      shifted = shifted || (a.kind == AtomKind::Fn && functions_[a.ref].is_max && a.bound != 0);
    }
  }
  if (opaque || (options_.keep_shifts && shifted)) return fn(function({"exp", true, false}), {p});
  Exponents factors;
  for (const Term& t : terms) {
    Atom a;
    a.kind = AtomKind::Exp;
    a.ref = t.mono;
    a.axes = monos_[t.mono].axes;
    a.inner = monos_[t.mono].inner;
    a.size = monos_[t.mono].size + 2;
    a.nonneg = true;
    factors = merge(factors, {{intern_atom(std::move(a)), t.coef.q}});
  }
  return product(1, std::move(factors));
}

PolyId NormalForms::log_mono(MonoId m) {
  PolyId out = intern_poly({});
  for (const Factor& f : Exponents(monos_[m].factors)) {
    const Atom a = atoms_[f.atom];
    PolyId part;
    if (a.kind == AtomKind::Exp) {
      part = from_mono(a.ref, f.exponent);
    } else {
      PolyId base = from_mono(intern_mono({{f.atom, 1}}));
      part = scale(fn(function({"log", false, false}), {base}), f.exponent);
    }
    out = add(out, part);
  }
  return out;
}

PolyId NormalForms::log(PolyId p) {
  if (p == kNone) return kNone;
  const std::vector<Term> terms = polys_[p].terms;
  bool splits = terms.size() == 1 && terms[0].coef.one();
  int unknown = 0;
  if (splits) {
    for (const Factor& f : monos_[terms[0].mono].factors) {
      const Atom& a = atoms_[f.atom];
      if (a.kind == AtomKind::Exp || a.nonneg) continue;
      ++unknown;
      if (f.exponent != Q(1)) splits = false;
    }
  }
  if (splits && unknown <= 1) return log_mono(terms[0].mono);
  return fn(function({"log", false, false}), {p});
}

PolyId NormalForms::fn(uint32_t function, std::vector<PolyId> args, AxisMask bound) {
  Atom a;
  a.kind = AtomKind::Fn;
  a.ref = function;
  a.bound = bound;
  a.size = 1 + uint32_t(count(bound));
  for (PolyId p : args) {
    if (p == kNone) return kNone;
    a.axes |= polys_[p].axes;
    a.inner |= polys_[p].inner;
    a.size += polys_[p].size;
  }
  a.axes &= ~bound;
  a.inner |= bound;
  a.nonneg = functions_[function].nonneg;
  a.args = std::move(args);
  return from_mono(intern_mono({{intern_atom(std::move(a)), 1}}));
}

NormalForms::Primitive NormalForms::primitive(PolyId p) {
  if (p == kNone || polys_[p].terms.empty()) return {p, 1};
  Coef c = leading(polys_[p].terms);
  if (c.one()) return {p, 1};
  PolyId form = scale(p, power(c, -1));
  if (form == kNone) return {p, 1};
  return {form, c};
}

// --- printing ---------------------------------------------------------------------------------

std::string NormalForms::str_atom(AtomId id) const {
  const Atom& a = atoms_[id];
  auto axes = [](AxisMask m) {
    std::string s;
    for (; m; m &= m - 1) s += (s.empty() ? "" : ",") + std::to_string(lowest(m));
    return s;
  };
  switch (a.kind) {
  case AtomKind::Input: return view_names_[a.ref];
  case AtomKind::Sum: return "S{" + axes(a.bound) + "}[" + str_mono(a.ref) + "]";
  case AtomKind::Poly: return "(" + str(a.ref) + ")";
  case AtomKind::Exp: return "E(" + str_mono(a.ref) + ")";
  case AtomKind::Fn: {
    std::string s = functions_[a.ref].name;
    if (a.bound) s += "{" + axes(a.bound) + "}";
    return s + "(" + joined(a.args, ", ", [&](PolyId p) { return str(p); }) + ")";
  }
  }
  unreachable("AtomKind");
}

std::string NormalForms::str_mono(MonoId m) const {
  std::string s;
  for (const Factor& f : monos_[m].factors) {
    s += (s.empty() ? "" : "*") + str_atom(f.atom);
    if (f.exponent != Q(1)) {
      s += "^" + std::to_string(f.exponent.num);
      if (f.exponent.den != 1) s += "/" + std::to_string(f.exponent.den);
    }
  }
  return s.empty() ? "1" : s;
}

std::string NormalForms::str(PolyId p) const {
  if (p == kNone) return "none";
  std::string s;
  for (const Term& t : polys_[p].terms) {
    s += s.empty() ? "" : " + ";
    if (!t.coef.one()) {
      s += t.coef.q.rational().str();
      if (t.coef.root != 1) s += "*sqrt(" + std::to_string(t.coef.root) + ")";
      s += "*";
    }
    s += str_mono(t.mono);
  }
  return s.empty() ? "0" : s;
}

}  // namespace tessera::mugraph
