#include "verify/sums.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace tessera {
namespace {

// Numbers of variables: extents from 0 on, positions from kPositions on, bound ones from −1 down.
constexpr int64_t kPositions = 1000;
constexpr int64_t kMarks = int64_t(1) << 40;  // stand for bound variables while they are ordered
constexpr size_t kMostOrders = 200;
constexpr int kDeepest = 400;
constexpr int64_t kEnumerated = 8;  // positions that are written out, where their number is known

bool bound(int64_t id) { return id < 0; }
bool extent_id(int64_t id) { return id >= 0 && id < kPositions; }

// Outer positions come first, so that brackets of outer and inner ones are oriented alike whatever
// the inner ones are called.
int64_t rank(int64_t id) { return bound(id) ? kMarks + 1000 + id : id; }

}  // namespace

TermId Sums::extent(int64_t least) {
  if (next_extent_ == kPositions) throw NoTerms{"too many extents"};
  least_[next_extent_] = least;
  return t_.variable(next_extent_++);
}

TermId Sums::position(TermId extent) {
  const int64_t id = kPositions + int64_t(range_.size());
  range_[id] = extent;
  return t_.variable(id);
}

int64_t Sums::only_variable(TermId a) const {
  const Term& t = t_.term(a);
  if (t.sum.size() != 1 || !(t.sum[0].second == Fraction{1, 1})) return INT64_MAX;
  const Monomial& m = t_.monomial(t.sum[0].first);
  if (m.exponent != Terms::kZero || m.factors.size() != 1 || m.factors[0].power != 1)
    return INT64_MAX;
  const Atom& atom = t_.atom(m.factors[0].atom);
  return atom.kind == AtomKind::Variable ? atom.index : INT64_MAX;
}

bool Sums::is_position(TermId e) const {
  for (const auto& [m, c] : t_.term(e).sum) {
    if (c.den != 1 || t_.monomial(m).exponent != Terms::kZero) return false;
    for (const Factor& f : t_.monomial(m).factors)
      if (f.power < 0 || t_.atom(f.atom).kind != AtomKind::Variable) return false;
  }
  return true;
}

// --- variables

Sums::Ids Sums::bound_by(const Atom& a) const {
  Ids ids;
  if (a.kind == AtomKind::Function &&
      (a.name.rfind("sum ", 0) == 0 || a.name.rfind("max ", 0) == 0))
    for (size_t k = 1; k < a.operands.size(); ++k)
      ids.push_back(-std::stoll(a.name.substr(4)) - int64_t(k));
  return ids;
}

const std::set<int64_t>& Sums::free(TermId a) {
  if (auto it = free_.find(a); it != free_.end()) return it->second;
  std::set<int64_t> all;
  const Term term = t_.term(a);
  for (const auto& [m, c] : term.sum) {
    const Monomial mono = t_.monomial(m);
    if (mono.exponent != Terms::kZero) all.merge(std::set(free(mono.exponent)));
    for (const Factor& f : mono.factors) {
      const Atom atom = t_.atom(f.atom);
      if (atom.kind == AtomKind::Variable) all.insert(atom.index);
      std::set<int64_t> mine;
      for (TermId o : atom.operands) mine.merge(std::set(free(o)));
      for (int64_t id : bound_by(atom)) mine.erase(id);
      all.merge(mine);
    }
  }
  return free_[a] = std::move(all);
}

// The largest −id that a sum or maximum in `a` binds; 0: none.
int64_t Sums::highest_bound(TermId a) {
  int64_t highest = 0;
  const Term term = t_.term(a);
  for (const auto& [m, c] : term.sum) {
    const Monomial mono = t_.monomial(m);
    if (mono.exponent != Terms::kZero) highest = std::max(highest, highest_bound(mono.exponent));
    for (const Factor& f : mono.factors) {
      const Atom atom = t_.atom(f.atom);
      for (int64_t id : bound_by(atom)) highest = std::max(highest, -id);
      for (TermId o : atom.operands) highest = std::max(highest, highest_bound(o));
    }
  }
  return highest;
}

bool Sums::has_any(TermId a, const Ids& ids) {
  const std::set<int64_t>& mine = free(a);
  return std::ranges::any_of(ids, [&](int64_t id) { return mine.count(id) != 0; });
}

TermId Sums::substitute(TermId a, const VariableValues& s) {
  const std::set<int64_t>& mine = free(a);
  if (std::ranges::none_of(s, [&](const auto& p) { return mine.count(p.first) != 0; })) return a;
  if (t_.work() > 300'000) throw NoTerms{"too long an expression"};
  std::vector<TermId> sum;
  const Term term = t_.term(a);
  for (const auto& [m, c] : term.sum) {
    const Monomial mono = t_.monomial(m);
    TermId r = t_.number(c);
    if (mono.exponent != Terms::kZero) r = t_.mul(r, t_.exp(substitute(mono.exponent, s)));
    for (const Factor& f : mono.factors) {
      const TermId base = substitute_atom(Atom(t_.atom(f.atom)), s);
      if (base == Terms::kZero && f.power < 0) throw NoTerms{"a denominator is zero"};
      r = t_.mul(r, t_.power(base, f.power));
    }
    sum.push_back(r);
  }
  return t_.sum(sum);
}

TermId Sums::substitute_atom(const Atom& a, const VariableValues& outer) {
  VariableValues s = outer;
  for (int64_t id : bound_by(a)) {
    s.erase(id);
    for (const auto& [from, to] : s)
      if (free(to).count(id)) throw NoTerms{"a name that is bound already"};
  }
  std::vector<TermId> in = mapped(a.operands, [&](TermId o) { return substitute(o, s); });
  switch (a.kind) {
  case AtomKind::Variable:
    if (const auto it = s.find(a.index); it != s.end()) return it->second;
    return t_.variable(a.index);
  case AtomKind::Positive:
    return is_position(in[0]) ? at_least_zero(t_.sub(in[0], Terms::kOne)) : t_.positive(in[0]);
  case AtomKind::Zero: return is_position(in[0]) ? is_zero(in[0]) : t_.zero(in[0]);
  case AtomKind::Root: return t_.sqrt(in[0]);
  case AtomKind::Max: return t_.max(in);
  case AtomKind::Base:
  case AtomKind::Product: return in.size() == 1 ? in[0] : t_.mul(in[0], in[1]);
  case AtomKind::Sum: return t_.sum(in);
  case AtomKind::Function: break;
  case AtomKind::Constant: throw NoTerms{"a number with many digits"};
  }
  if (a.name == "log") return t_.log(in[0]);
  if (a.name == "sin" || a.name == "erf" || a.name == "round")
    return t_.function(a.name, in[0], Terms::Parity::Odd);
  if (a.name == "cos") return t_.function(a.name, in[0], Terms::Parity::Even);
  if (a.name == "floor") return t_.function(a.name, in[0], Terms::Parity::None);
  return t_.symbol(a.name, std::move(in));
}

// --- what terms look like, whatever their positions are called

double Sums::look(const Atom& a) {
  const auto hashed = [](uint64_t h) { return 0.25 + double(mix64(h) >> 11) * 0x1p-53; };
  if (a.kind == AtomKind::Constant) return a.value;
  if (a.kind == AtomKind::Variable)
    return hashed(extent_id(a.index) ? 2 + uint64_t(a.index) : uint64_t(1));
  if (a.kind == AtomKind::Base) return look(a.operands[0]);
  uint64_t h = uint64_t(a.kind);
  for (char c : a.name) h = mix64(h) ^ uint64_t(c);
  for (TermId o : a.operands)  // rounded: the order of sums depends on names
    h = mix64(h) ^ uint64_t(std::llround(std::fmod(look(o), 1e6) * 1e6));
  return hashed(h);
}

double Sums::look(TermId a) {
  if (auto it = looks_.find(a); it != looks_.end()) return it->second;
  double sum = 0;
  const Term term = t_.term(a);
  for (const auto& [m, c] : term.sum) {
    const Monomial mono = t_.monomial(m);
    double product = c.value();
    for (const Factor& f : mono.factors) product *= std::pow(look(Atom(t_.atom(f.atom))), f.power);
    if (mono.exponent != Terms::kZero) product *= std::exp(std::fmod(look(mono.exponent), 8.0));
    sum += product;
  }
  return looks_[a] = std::isfinite(sum) ? sum : 0;
}

int Sums::orientation(TermId a) {
  const double x = look(a);
  return std::fabs(x) < 1e-6 ? 0 : x > 0 ? 1 : -1;
}

// --- brackets of positions

// A value that `e` is never below, without positions.
TermId Sums::lowest(TermId e) {
  for (int step = 0; step < 20; ++step) {
    const std::set<int64_t> ids = free(e);
    const auto position =
        std::find_if(ids.rbegin(), ids.rend(), [](int64_t id) { return !extent_id(id); });
    if (position == ids.rend()) return e;
    const auto range = range_.find(*position);
    if (range == range_.end()) break;
    const TermId at_zero = substitute(e, {{*position, Terms::kZero}}),
                 at_one = substitute(e, {{*position, Terms::kOne}}),
                 slope = t_.sub(at_one, at_zero);
    if (free(slope).count(*position)) break;
    if (t_.add(at_zero, t_.mul(slope, t_.variable(*position))) != e) break;
    if (never_negative(slope))
      e = at_zero;
    else if (never_negative(t_.negative(slope)))
      e = substitute(e, {{*position, t_.sub(range->second, Terms::kOne)}});
    else
      break;
  }
  throw NoTerms{"positions that cannot be bounded"};
}

bool Sums::never_negative(TermId e) {
  if (const auto c = t_.as_constant(e)) return c->num >= 0;
  try {
    e = lowest(e);
  } catch (const NoTerms&) {
    return false;
  }
  VariableValues shifted;
  for (int64_t id : free(e)) shifted[id] = t_.add(t_.variable(id), t_.integer(least_.at(id)));
  const Term& t = t_.term(substitute(e, shifted));
  return std::ranges::all_of(t.sum, [](const auto& p) { return p.second.num >= 0; });
}

int64_t Sums::leading_position(TermId e) {
  int64_t lead = INT64_MAX;
  for (int64_t id : free(e))
    if (!extent_id(id) && (lead == INT64_MAX || rank(id) < rank(lead))) lead = id;
  return lead;
}

TermId Sums::at_least_zero(TermId e) {
  CHECK(is_position(e)) << "a bracket of a position";
  if (never_negative(e)) return Terms::kOne;
  const TermId opposite = t_.sub(t_.negative(e), Terms::kOne);
  if (never_negative(opposite)) return Terms::kZero;
  const int64_t lead = leading_position(e);
  if (lead == INT64_MAX) throw NoTerms{"a relation between extents that is not known"};
  for (const auto& [m, c] : t_.term(e).sum)
    for (const Factor& f : t_.monomial(m).factors)
      if (t_.atom(f.atom).kind == AtomKind::Variable && t_.atom(f.atom).index == lead)
        return c.num > 0 ? t_.indicator(AtomKind::Positive, t_.add(e, Terms::kOne))
                         : t_.sub(Terms::kOne,
                                  t_.indicator(AtomKind::Positive, t_.add(opposite, Terms::kOne)));
  unreachable("the leading position occurs");
}

TermId Sums::is_zero(TermId e) {
  CHECK(is_position(e)) << "a bracket of a position";
  if (e == Terms::kZero) return Terms::kOne;
  const TermId negative = t_.negative(e);
  if (never_negative(t_.sub(e, Terms::kOne)) || never_negative(t_.sub(negative, Terms::kOne)))
    return Terms::kZero;
  const int64_t lead = leading_position(e);
  if (lead == INT64_MAX) throw NoTerms{"a relation between extents that is not known"};
  TermId solved = e;
  bool plus = true;
  for (const auto& [m, c] : t_.term(e).sum)
    for (const Factor& f : t_.monomial(m).factors)
      if (t_.atom(f.atom).index == lead) plus = c.num > 0;
  if (!plus) solved = negative;
  return t_.indicator(AtomKind::Zero, solved);
}

std::pair<TermId, TermId> Sums::divided(TermId e, TermId by) {
  if (by == Terms::kOne) return {e, Terms::kZero};
  const int64_t id = only_variable(e);
  if (const auto it = split_.find(id); it != split_.end()) {
    if (it->second.second != by) throw NoTerms{"a position that is split in two ways"};
    return divided(it->second.first, by);
  }
  // Monomials that `by` divides, if it is one.
  const Term divisor = t_.term(by), whole = t_.term(e);
  if (divisor.sum.size() == 1) {
    const TermId inverse = t_.inverse(by);
    std::vector<TermId> quotient, rest;
    for (const auto& [m, c] : whole.sum) {
      const TermId part = monomial(m, c), q = t_.mul(part, inverse);
      (is_position(q) ? quotient : rest).push_back(is_position(q) ? q : part);
    }
    const TermId r = t_.sum(rest);
    if (never_negative(r) && never_negative(t_.sub(t_.sub(by, r), Terms::kOne)))
      return {t_.sum(quotient), r};
  }
  const auto range = range_.find(id);
  if (range == range_.end()) throw NoTerms{"a reshape that is no split or merge of axes"};
  const TermId blocks = t_.mul(range->second, t_.inverse(by));
  if (!is_position(blocks)) throw NoTerms{"a reshape that is no split or merge of axes"};
  const TermId q = position(blocks), r = position(by);
  split_[id] = {t_.add(t_.mul(q, by), r), by};
  return {q, r};
}

TermId Sums::resolved(TermId a) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::set<int64_t> ids = free(a);
    for (int64_t id : ids)
      if (const auto it = split_.find(id); it != split_.end()) {
        a = substitute(a, {{id, it->second.first}});
        changed = true;
      }
  }
  std::vector<TermId> sum;
  const Term term = t_.term(a);
  for (const auto& [m, c] : term.sum) {
    TermId r = monomial(m, c);
    const Monomial mono = t_.monomial(m);
    for (const Factor& f : mono.factors) {
      const Atom atom = t_.atom(f.atom);
      if (atom.kind != AtomKind::Zero || f.power != 1 || !is_position(atom.operands[0])) continue;
      // Of the positions that can be solved for, the last.
      const std::set<int64_t> ids = free(atom.operands[0]);
      for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
        TermId value;
        if (extent_id(*id) || !solves(atom.operands[0], *id, value)) continue;
        TermId others = t_.number(c);
        for (TermId part : factors(m))
          if (part != t_.of_atom(f.atom)) others = t_.mul(others, substitute(part, {{*id, value}}));
        r = t_.mul(others, t_.of_atom(f.atom));
        break;
      }
    }
    sum.push_back(r);
  }
  return t_.sum(sum);
}

// --- sums

TermId Sums::monomial(uint32_t m, const Fraction& c) {
  TermId r = t_.number(c);
  for (TermId f : factors(m)) r = t_.mul(r, f);
  return r;
}

// Powers of atoms and exponentials of single terms.
std::vector<TermId> Sums::factors(uint32_t m) {
  const Monomial mono = t_.monomial(m);
  auto all = mapped(mono.factors, [&](const Factor& f) { return t_.of_atom(f.atom, f.power); });
  if (mono.exponent != Terms::kZero) {
    const Term e = t_.term(mono.exponent);
    for (const auto& [part, c] : e.sum) all.push_back(t_.exp(monomial(part, c)));
  }
  return all;
}

// e = ±id + …: the value of id where e = 0.
bool Sums::solves(TermId e, int64_t id, TermId& value) {
  const TermId v = t_.variable(id), plus = t_.sub(v, e), minus = t_.add(v, e);
  if (!free(plus).count(id)) return value = plus, true;
  if (!free(minus).count(id)) return value = minus, true;
  return false;
}

Sums::Ids Sums::with_splits(const std::vector<TermId>& positions, TermId& body) {
  Ids ids;
  for (TermId p : positions) ids.push_back(only_variable(p));
  for (size_t k = 0; k < ids.size(); ++k)
    if (const auto it = split_.find(ids[k]); it != split_.end()) {
      body = substitute(body, {{ids[k], it->second.first}});
      const std::set<int64_t> parts = free(it->second.first);
      ids.erase(ids.begin() + long(k--));
      for (int64_t id : parts)
        if (!extent_id(id)) ids.push_back(id);
    }
  return ids;
}

TermId Sums::sum(std::vector<TermId> positions, TermId body) {
  n_.finite(body);
  Ids ids = with_splits(positions, body);
  return total(std::move(ids), body);
}

// Few positions: a term for each, which `ids` lose.
TermId Sums::written_out(Ids& ids, TermId body, bool maximum) {
  for (size_t k = ids.size(); k-- > 0;) {
    const auto n = t_.as_constant(range_.at(ids[k]));
    if (!n || n->num > kEnumerated) continue;
    std::vector<TermId> all;
    for (int64_t i = 0; i < int64_t(n->num); ++i)
      all.push_back(substitute(body, {{ids[k], t_.integer(i)}}));
    body = maximum ? t_.max(all) : t_.sum(all);
    ids.erase(ids.begin() + long(k));
  }
  return body;
}

TermId Sums::total(Ids ids, TermId body) {
  if (++depth_ > kDeepest) throw NoTerms{"sums that are too deeply nested"};
  body = written_out(ids, body, false);
  std::vector<TermId> all{total_below_cuts(ids, body)};
  const Term term = t_.term(body);
  for (const auto& [m, c] : term.sum) all.push_back(t_.mul(t_.number(c), total_of_product(ids, m)));
  --depth_;
  return t_.sum(all);
}

// A factor that is a sum in which one of the positions occurs: its terms go in.
std::optional<TermId> Sums::opened(Ids& ids, uint32_t m) {
  const Monomial mono = t_.monomial(m);
  for (const Factor& f : mono.factors) {
    const Atom atom = t_.atom(f.atom);
    const TermId it = t_.of_atom(f.atom);
    if (f.power < 0 || !has_any(it, ids)) continue;  // the inverse of a sum is no sum
    if (atom.kind != AtomKind::Function || atom.name.rfind("sum ", 0) != 0) continue;
    TermId r = Terms::kOne;
    for (TermId other : factors(m))
      if (other != t_.of_atom(f.atom, f.power)) r = t_.mul(r, other);
    for (int32_t power = 0; power < f.power; ++power) {
      VariableValues fresh;
      const Ids names = bound_by(atom);
      for (size_t k = 0; k < names.size(); ++k) {
        fresh[names[k]] = position(atom.operands[1 + k]);
        ids.push_back(only_variable(fresh[names[k]]));
      }
      r = t_.mul(r, substitute(atom.operands[0], fresh));
    }
    return r;
  }
  return std::nullopt;
}

// c where the bracket says id >= c and 0 <= c <= extent, whatever the extents are.
std::optional<TermId> Sums::cut_of(const Atom& bracket, int64_t id) {
  TermId value;
  if (bracket.kind != AtomKind::Positive || !is_position(bracket.operands[0]) ||
      !solves(bracket.operands[0], id, value) || leading_position(value) != INT64_MAX ||
      t_.sub(t_.variable(id), value) != bracket.operands[0])
    return std::nullopt;
  const TermId cut = t_.add(value, Terms::kOne);
  if (!never_negative(cut) || !never_negative(t_.sub(range_.at(id), cut))) return std::nullopt;
  return cut;
}

// What is summed below a cut only, a·(1 − [id >= c]): these terms are taken out of the body, and
// their sum is the result.
TermId Sums::total_below_cuts(const Ids& ids, TermId& body) {
  const Term term = t_.term(body);
  for (const auto& [m, c] : term.sum) {
    const Monomial mono = t_.monomial(m);
    for (const Factor& f : mono.factors)
      for (size_t k = 0; k < ids.size(); ++k) {
        const std::optional<TermId> cut = cut_of(Atom(t_.atom(f.atom)), ids[k]);
        if (!cut || f.power != 1) continue;
        TermId rest = t_.number(c);
        for (TermId other : factors(m))
          if (other != t_.of_atom(f.atom)) rest = t_.mul(rest, other);
        const Term plain = t_.term(rest);
        if (plain.sum.size() != 1) continue;
        const auto opposite =
            std::pair(plain.sum[0].first, *Fraction::mul(plain.sum[0].second, {-1, 1}));
        if (std::ranges::find(term.sum, opposite) == term.sum.end()) continue;
        body = t_.sum({body, rest, t_.negative(monomial(m, c))});
        const TermId fresh = position(*cut);
        Ids below = ids;
        below[k] = only_variable(fresh);
        const TermId here = *cut == Terms::kZero
                                ? Terms::kZero
                                : total(below, substitute(t_.negative(rest), {{ids[k], fresh}}));
        return t_.add(here, total_below_cuts(ids, body));
      }
  }
  return Terms::kZero;
}

// A bracket that leaves one value of a position, or a smaller range of it.
std::optional<TermId> Sums::without_bracket(Ids& ids, uint32_t m) {
  const Monomial mono = t_.monomial(m);
  for (const Factor& f : mono.factors) {
    const Atom atom = t_.atom(f.atom);
    const bool equal = atom.kind == AtomKind::Zero;
    if ((!equal && atom.kind != AtomKind::Positive) || !is_position(atom.operands[0]) ||
        f.power != 1)
      continue;
    TermId rest = Terms::kOne, value;
    for (TermId other : factors(m))
      if (other != t_.of_atom(f.atom)) rest = t_.mul(rest, other);
    for (size_t k = ids.size(); k-- > 0;) {
      const int64_t id = ids[k];
      if (!solves(atom.operands[0], id, value)) continue;
      const TermId extent = range_.at(id);
      if (equal) {
        ids.erase(ids.begin() + long(k));
        return t_.mul(inside(value, extent), substitute(rest, {{id, value}}));
      }
      const std::optional<TermId> cut = cut_of(atom, id);
      if (!cut) continue;
      const TermId left = t_.sub(extent, *cut);
      if (left == Terms::kZero) return Terms::kZero;
      const TermId fresh = position(left);
      ids[k] = only_variable(fresh);
      return substitute(rest, {{id, t_.add(fresh, *cut)}});
    }
  }
  return std::nullopt;
}

TermId Sums::total_of_product(Ids ids, uint32_t m) {
  if (const auto body = opened(ids, m)) return total(std::move(ids), *body);
  if (const auto body = without_bracket(ids, m)) return total(std::move(ids), *body);
  // Factors that share positions belong together, and what has none comes out.
  TermId r = Terms::kOne;
  std::vector<std::pair<Ids, std::vector<TermId>>> groups;
  for (TermId f : factors(m)) {
    Ids mine;
    for (int64_t id : ids)
      if (free(f).count(id)) mine.push_back(id);
    if (mine.empty()) {
      r = t_.mul(r, f);
      continue;
    }
    std::vector<TermId> parts{f};
    for (size_t g = groups.size(); g-- > 0;) {
      const Ids& other = groups[g].first;
      if (std::ranges::none_of(
              mine, [&](int64_t id) { return std::ranges::find(other, id) != other.end(); }))
        continue;
      for (int64_t id : other)
        if (std::ranges::find(mine, id) == mine.end()) mine.push_back(id);
      parts.insert(parts.end(), groups[g].second.begin(), groups[g].second.end());
      groups.erase(groups.begin() + long(g));
    }
    groups.emplace_back(std::move(mine), std::move(parts));
  }
  std::set<int64_t> used;
  for (const auto& [mine, parts] : groups) {
    used.insert(mine.begin(), mine.end());
    r = t_.mul(r, bind("sum ", mine, parts, true));
  }
  for (int64_t id : ids)
    if (!used.count(id)) r = t_.mul(r, range_.at(id));
  return r;
}

// Orders of bound variables that look alike from what they occur in; of those the first is taken.
std::vector<Sums::Ids> Sums::orders(const Ids& ids, const std::vector<TermId>& parts) {
  std::map<int64_t, size_t> colour;
  for (int64_t id : ids) colour[id] = 0;
  for (size_t round = 0; round <= ids.size(); ++round) {
    std::map<int64_t, std::vector<TermId>> key;
    for (int64_t id : ids) {
      VariableValues marks;
      for (int64_t other : ids) marks[other] = t_.variable(kMarks + 1 + int64_t(colour[other]));
      marks[id] = t_.variable(kMarks);
      for (TermId p : parts)
        if (free(p).count(id)) key[id].push_back(substitute(p, marks));
      std::ranges::sort(key[id]);
      key[id].insert(key[id].begin(), {TermId(colour[id]), range_.at(id)});
    }
    std::set<std::vector<TermId>> kinds;
    for (const auto& [id, k] : key) kinds.insert(k);
    for (int64_t id : ids) colour[id] = size_t(std::distance(kinds.begin(), kinds.find(key[id])));
    if (kinds.size() == ids.size()) break;
  }
  Ids order = ids;
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return std::pair(colour[a], a) < std::pair(colour[b], b);
  });
  std::vector<Ids> all{order};
  // Permutations within each colour.
  for (size_t from = 0; from < order.size();) {
    size_t to = from;
    while (to < order.size() && colour[order[to]] == colour[order[from]]) ++to;
    std::vector<Ids> more;
    for (const Ids& o : all) {
      Ids p = o;
      std::sort(p.begin() + long(from), p.begin() + long(to));
      do {
        more.push_back(p);
        if (more.size() > kMostOrders) throw NoTerms{"a sum with too many symmetries"};
      } while (std::next_permutation(p.begin() + long(from), p.begin() + long(to)));
    }
    all = std::move(more);
    from = to;
  }
  return all;
}

// The sum or maximum of a product or sum of parts.
TermId Sums::bind(const char* how, const Ids& ids, const std::vector<TermId>& parts, bool product) {
  TermId body = product ? Terms::kOne : Terms::kZero;
  for (TermId p : parts) body = product ? t_.mul(body, p) : t_.add(body, p);
  const int64_t height = highest_bound(body);
  TermId factor = Terms::kOne;
  std::optional<std::pair<TermId, std::vector<TermId>>> best;
  for (const Ids& order : orders(ids, parts)) {
    VariableValues names;
    std::vector<TermId> ranges;
    for (size_t k = 0; k < order.size(); ++k) {
      names[order[k]] = t_.variable(-height - 1 - int64_t(k));
      ranges.push_back(range_.at(order[k]));
    }
    TermId named = substitute(body, names), number = Terms::kOne;
    if (const Term t = t_.term(named); product && t.sum.size() == 1) {  // −sin of the opposite
      number = t_.number(t.sum[0].second);
      named = t_.mul(named, t_.inverse(number));
    }
    std::pair<TermId, std::vector<TermId>> one{named, std::move(ranges)};
    if (!best || one < *best) best = std::move(one), factor = number;
  }
  std::vector<TermId> operands{best->first};
  operands.insert(operands.end(), best->second.begin(), best->second.end());
  return t_.mul(factor, t_.symbol(how + std::to_string(height), std::move(operands)));
}

// --- maxima

TermId Sums::max(std::vector<TermId> positions, TermId body) {
  n_.finite(body);
  Ids ids = with_splits(positions, body);
  return largest(std::move(ids), body);
}

TermId Sums::largest(Ids ids, TermId body) {
  body = written_out(ids, body, true);
  if (const std::vector<TermId>* of = t_.maximum_of(body)) {
    auto all = mapped(std::vector<TermId>(*of), [&](TermId a) { return largest(ids, a); });
    return t_.max(all);
  }
  TermId outside = Terms::kZero;
  std::vector<std::pair<uint32_t, Fraction>> inside;
  const Term term = t_.term(body);
  for (const auto& [m, c] : term.sum)
    if (has_any(monomial(m, {1, 1}), ids))
      inside.emplace_back(m, c);
    else
      outside = t_.add(outside, monomial(m, c));
  if (inside.empty()) return body;
  // max(c·a) = c·max(a) for c > 0: the largest coefficient becomes 1.
  Fraction size{0, 1};
  for (const auto& [m, c] : inside) {
    const Fraction absolute{c.num < 0 ? -c.num : c.num, c.den};
    if (absolute.value() > size.value()) size = absolute;
  }
  const TermId scale = t_.number(size), over = t_.number(*Fraction::make(size.den, size.num));
  std::vector<TermId> parts;
  for (const auto& [m, c] : inside) parts.push_back(t_.mul(over, monomial(m, c)));
  if (inside.size() == 1) {  // a maximum of maxima
    const Monomial mono = t_.monomial(inside[0].first);
    const Term one = t_.term(parts[0]);
    if (mono.exponent == Terms::kZero && mono.factors.size() == 1 && mono.factors[0].power == 1 &&
        one.sum.size() == 1 && one.sum[0].second == Fraction{1, 1}) {
      const Atom atom = t_.atom(mono.factors[0].atom);
      if (atom.kind == AtomKind::Function && atom.name.rfind("max ", 0) == 0) {
        VariableValues fresh;
        const Ids names = bound_by(atom);
        for (size_t k = 0; k < names.size(); ++k) {
          fresh[names[k]] = position(atom.operands[1 + k]);
          ids.push_back(only_variable(fresh[names[k]]));
        }
        return t_.add(outside, t_.mul(scale, largest(ids, substitute(atom.operands[0], fresh))));
      }
    }
  }
  Ids used;
  for (int64_t id : ids)
    if (std::ranges::any_of(parts, [&](TermId p) { return free(p).count(id) != 0; }))
      used.push_back(id);
  return t_.add(outside, t_.mul(scale, bind("max ", used, parts, false)));
}

}  // namespace tessera
