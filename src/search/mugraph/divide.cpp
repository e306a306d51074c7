// Division without cancellation ("is part of") and the goals that admissible values divide.
#include <algorithm>
#include <set>

#include "base/interruption.h"
#include "base/mapped.h"
#include "search/mugraph/normal_form.h"

namespace tessera::mugraph {

MonoId NormalForms::divide(MonoId whole, MonoId part) {
  if (part == 0) return whole;
  if (whole == part) return 0;
  if (monos_[part].signature & ~monos_[whole].signature) return kNone;
  uint64_t key = (uint64_t(whole) << 32) | part;
  auto it = div_memo_.find(key);
  if (it != div_memo_.end()) return it->second;
  const std::vector<Factor>&w = monos_[whole].factors, &p = monos_[part].factors;
  std::vector<Factor> quotient;
  bool ok = (monos_[part].axes & ~monos_[whole].axes) == 0 && p.size() <= w.size();
  size_t i = 0;
  for (size_t j = 0; ok && j < p.size(); ++j) {
    while (i < w.size() && w[i].atom < p[j].atom) quotient.push_back(w[i++]);
    if (i == w.size() || w[i].atom != p[j].atom) {
      ok = false;
      break;
    }
    Q rest = w[i].exponent - p[j].exponent;
    bool same_sign = (w[i].exponent.num < 0) == (p[j].exponent.num < 0);
    // Parity: √x is no part of x, x is no part of x^(1/2).
    ok = same_sign && rest.integer() && (rest.zero() || (rest.num < 0) == (w[i].exponent.num < 0));
    if (ok && !rest.zero()) quotient.push_back({w[i].atom, rest});
    ++i;
  }
  MonoId out = kNone;
  if (ok) {
    quotient.insert(quotient.end(), w.begin() + long(i), w.end());
    out = intern_mono(std::move(quotient));
  }
  div_memo_.emplace(key, out);
  return out;
}

std::vector<Embedding> NormalForms::embeddings(PolyId part, PolyId goal) {
  interruption_point();
  std::vector<Embedding> out;
  const Poly& p = polys_[part];
  const Poly& g = polys_[goal];
  if (p.terms.empty() || (p.axes & ~g.axes)) return out;
  const size_t n = std::min<size_t>(g.terms.size(), 64);
  const Term first = p.terms[0];
  const size_t parts = p.terms.size();
  for (size_t i = 0; i < n && parts <= n; ++i) {
    MonoId q = divide(polys_[goal].terms[i].mono, first.mono);
    if (q == kNone) continue;
    Coef ratio = polys_[goal].terms[i].coef / first.coef;
    if (ratio.bad()) continue;
    uint64_t mask = uint64_t(1) << i;
    bool ok = true;
    for (size_t k = 1; k < parts && ok; ++k) {
      const Term t = polys_[part].terms[k];
      ok = false;
      for (size_t j = 0; j < n; ++j) {
        const Term& w = polys_[goal].terms[j];
        if (mask & (uint64_t(1) << j)) continue;
        if (w.coef == t.coef * ratio && divide(w.mono, t.mono) == q) {
          mask |= uint64_t(1) << j;
          ok = true;
          break;
        }
      }
    }
    if (ok) out.push_back({q, ratio, mask});
  }
  if (parts < 2) return out;
  // A sum may also be one factor of a product that was not multiplied out: (a+b) of (a+b)²·c.
  auto [it, fresh] = factored_.emplace(part, Term{kNone, 1});
  if (fresh) {
    Split s = split(part, false);
    if (s.rest != kNone) {
      std::vector<Factor> f = merge(monos_[s.common].factors, {{base_atom(s.rest), 1}});
      Term t{intern_mono(std::move(f)), s.coef};
      factored_[part] = t;
    }
  }
  const Term whole = factored_[part];
  if (whole.mono == kNone) return out;
  for (size_t i = 0; i < n; ++i) {
    MonoId q = divide(polys_[goal].terms[i].mono, whole.mono);
    if (q == kNone) continue;
    Coef ratio = polys_[goal].terms[i].coef / whole.coef;
    if (!ratio.bad()) out.push_back({q, ratio, uint64_t(1) << i});
  }
  return out;
}

bool NormalForms::cancels(PolyId a, PolyId b, bool divide) {
  interruption_point();
  for (const Term& x : polys_[a].terms) {
    for (const Term& y : polys_[b].terms) {
      for (const Factor& f : monos_[x.mono].factors)
        for (const Factor& g : monos_[y.mono].factors) {  // few
          const bool same = (f.exponent.num < 0) == (g.exponent.num < 0);
          if (f.atom == g.atom && same == divide) return true;
        }
    }
  }
  return false;
}

// For each axis bound at the top of the goal: the goal with that axis opened in one Sum factor of
// each term that has one, provided the axis is not free in the term already.
void NormalForms::open_sums(PolyId goal, std::vector<PolyId>& out) {
  const std::vector<Term> terms = polys_[goal].terms;
  AxisMask bound = 0;
  for (const Term& t : terms) {
    for (const Factor& f : monos_[t.mono].factors) {
      const Atom& a = atoms_[f.atom];
      if (a.kind == AtomKind::Sum && f.exponent.integer() && f.exponent.num > 0) bound |= a.bound;
    }
  }
  for (; bound; bound &= bound - 1) {
    AxisMask axis = bound & -bound;
    AxisMask parts = 0;  // of a split axis: they open before what is inside them
    for (const auto& [whole, part] : splits_)
      if (axis & bit(whole)) parts = bit(part);
    std::vector<Term> opened;
    for (const Term& t : terms) {
      if (monos_[t.mono].axes & axis) continue;
      const std::vector<Factor> factors = monos_[t.mono].factors;
      for (const Factor& f : factors) {
        const Atom a = atoms_[f.atom];
        if (a.kind != AtomKind::Sum || !(a.bound & axis) || (a.bound & parts) ||
            !f.exponent.integer() || f.exponent.num <= 0)
          continue;
        PolyId inner = sum(from_mono(a.ref), a.bound & ~axis);
        PolyId rest =
            mul(from_mono(t.mono, t.coef), pow(from_mono(intern_mono({{f.atom, 1}})), -1));
        PolyId p = mul(rest, inner);
        if (p == kNone) continue;
        opened.insert(opened.end(), polys_[p].terms.begin(), polys_[p].terms.end());
      }
    }
    if (opened.empty()) continue;
    // Two ways to open one term may coincide; then one of them is enough.
    std::ranges::sort(opened, {}, &Term::mono);
    opened.erase(std::unique(opened.begin(), opened.end(),
                             [](const Term& a, const Term& b) { return a.mono == b.mono; }),
                 opened.end());
    out.push_back(intern_poly(std::move(opened)));
  }
}

void NormalForms::enter(PolyId goal, std::vector<PolyId>& out) {
  const std::vector<Term> terms = polys_[goal].terms;
  for (const Term& t : terms) {
    const std::vector<Factor> factors = monos_[t.mono].factors;
    std::vector<Factor> below, roots, exponent;
    for (const Factor& f : factors) {
      const Atom a = atoms_[f.atom];
      if (a.kind == AtomKind::Exp) {
        exponent.push_back({a.ref, f.exponent});
        continue;
      }
      if (f.exponent.num < 0) below.push_back({f.atom, -f.exponent});
      if (!f.exponent.integer()) roots.push_back({f.atom, 1});
      if (f.exponent != Q(1)) out.push_back(from_mono(intern_mono({{f.atom, 1}})));
      if (a.kind == AtomKind::Poly) out.push_back(a.ref);
      if (a.kind == AtomKind::Fn)
        for (PolyId p : a.args) out.push_back(p);
    }
    if (!below.empty()) out.push_back(from_mono(intern_mono(std::move(below))));
    if (!roots.empty()) out.push_back(from_mono(intern_mono(std::move(roots))));
    if (!exponent.empty()) {  // the exponents' sum; `atom` holds a MonoId here
      auto sum = mapped(exponent, [&](const Factor& f) { return Term{f.atom, f.exponent}; });
      PolyId p = from_terms(std::move(sum));
      if (p != kNone) out.push_back(p);
    }
  }
}

std::vector<PolyId> NormalForms::goals(const std::vector<PolyId>& targets, size_t limit) {
  std::vector<PolyId> out;
  std::set<PolyId> seen;
  auto push = [&](PolyId p) {
    if (p == kNone || polys_[p].terms.empty() || out.size() >= limit) return;
    if (seen.insert(primitive(p).form).second) out.push_back(primitive(p).form);
  };
  for (PolyId p : targets) push(p);
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<PolyId> next;
    enter(out[i], next);
    open_sums(out[i], next);
    for (PolyId p : next) push(p);
  }
  return out;
}

}  // namespace tessera::mugraph
