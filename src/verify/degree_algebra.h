// Worst-case figures of one element of a tensor, and how arithmetic changes them: what
// verify/degrees.cpp applies operator by operator. The derivation is in docs/verifier.md.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "ir/graph.h"

namespace tessera::degree_algebra {

inline double log_add(double a, double b) {  // log2(2^a + 2^b)
  const double m = std::max(a, b);
  return m + std::log2(1 + std::exp2(std::min(a, b) - m));
}

// A denominator or a radicand that several values may share. `mask` says on which axes (bits 0–7)
// and loops (bits 8–11) it depends: a sum over one of those has a different copy in each term.
struct Use {
  double power = 1, copies = 1;
  unsigned mask = 0;
  double limit = INFINITY;  // how many copies there are in the whole program

  void multiply(double n) { copies = std::min(limit, copies * n); }
};
struct Atom {  // of a denominator
  double degree = 0, log_terms = 0, log_exponent_size = 0;
};

// One element of a tensor, at worst.
struct Value {
  double degree = 0;     // of the numerator
  double log_terms = 0;  // exponentials in the numerator
  double log_size = 0;   // log2 Σ|coefficients| of the numerator over a common denominator
  double log_scale = 0;  // log2 of that denominator of the coefficients
  double exponent_degree = 0, log_exponent_size = -1e9, log_exponent_scale = 0;
  bool has_exp = false, hard = false;
  std::map<int, Use> dens;
  std::map<int, Use> unknowns;  // applications of functions known by name, and members of sets
  double unknown_degree = 0;
  bool has_root = false;
  bool sampled = false;
  unsigned loops = 0;  // which loops it varies with
};

class Algebra {
 public:
  double den_degree(const Value& x) const {
    double d = 0;
    for (const auto& [id, use] : x.dens) d += use.power * use.copies * atoms_[size_t(id)].degree;
    return d;
  }
  double den_terms(const Value& x) const {
    double d = 0;
    for (const auto& [id, use] : x.dens) d += use.power * use.copies * atoms_[size_t(id)].log_terms;
    return d;
  }
  double den_exponent_size(const Value& x) const {
    double d = -1e9;
    for (const auto& [id, use] : x.dens) {
      const Atom& a = atoms_[size_t(id)];
      if (a.log_terms > 0 || a.log_exponent_size > -1e8)
        d = log_add(d, a.log_exponent_size + std::log2(use.power * use.copies));
    }
    return d;
  }

  static unsigned own_mask(const Graph& g, TensorId t, const Value& v) {
    unsigned mask = v.loops << 8;
    const Shape& s = g.type(t).shape;
    for (size_t d = 0; d < s.size(); d++)
      if (!s[d].is_one()) mask |= 1u << d;
    return mask;
  }
  template <class F> static void remap(Value& v, F f) {
    for (auto* uses : {&v.dens, &v.unknowns})
      for (auto& [id, use] : *uses) use.mask = (use.mask & ~0xffu) | f(use.mask & 0xffu);
  }
  // What depends on one of these axes is of other elements now than where it was computed, and may
  // meet those.
  void rename(Value& v, unsigned axes) {
    const auto anew = [&](std::map<int, Use>& uses, auto next) {
      std::map<int, Use> out;
      for (const auto& [id, use] : uses) out[use.mask & axes ? next(id) : id] = use;
      uses = std::move(out);
    };
    anew(
        v.dens,
        [&](int id) {
          atoms_.push_back(atoms_[size_t(id)]);
          return int(atoms_.size()) - 1;
        });
    anew(v.unknowns, [&](int) { return next_unknown_++; });
  }
  // Axes of an operand of rank `small` aligned to the right of a result of rank `rank`.
  static Value aligned(Value v, int small, int rank) {
    remap(v, [&](unsigned m) { return m << (rank - small); });
    return v;
  }
  static void merge_flags(Value& r, const Value& x, const Value& y) {
    r.has_exp = x.has_exp || y.has_exp;
    r.hard = x.hard || y.hard;
    r.sampled = x.sampled || y.sampled;
    r.unknown_degree = std::max(x.unknown_degree, y.unknown_degree);
    r.exponent_degree = std::max(x.exponent_degree, y.exponent_degree);
    r.loops = x.loops | y.loops;
    r.has_root = x.has_root || y.has_root;
    r.unknowns = x.unknowns;
    unite(r.unknowns, y.unknowns);
  }
  static void unite(std::map<int, Use>& into, const std::map<int, Use>& from) {
    for (const auto& [id, use] : from) {
      auto [it, fresh] = into.emplace(id, use);
      if (fresh) continue;
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
  }
  Value multiply(const Value& x, const Value& y) const {
    Value r;
    merge_flags(r, x, y);
    r.degree = x.degree + y.degree;
    r.log_terms = x.log_terms + y.log_terms;
    r.log_size = x.log_size + y.log_size;
    r.log_scale = x.log_scale + y.log_scale;
    r.log_exponent_scale = x.log_exponent_scale + y.log_exponent_scale;
    r.log_exponent_size = log_add(x.log_exponent_size + y.log_exponent_scale,
                                  y.log_exponent_size + x.log_exponent_scale);
    r.dens = x.dens;
    for (const auto& [id, use] : y.dens) {
      auto [it, fresh] = r.dens.emplace(id, use);
      if (fresh) continue;
      it->second.power += use.power;
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
    return r;
  }
  // Raises a numerator to the common denominator `dens`.
  void extend(Value& x, const std::map<int, Use>& dens) const {
    double degree = 0, terms = 0, size = -1e9;
    for (const auto& [id, use] : dens) {
      auto it = x.dens.find(id);
      const double have = it == x.dens.end() ? 0 : it->second.power * it->second.copies;
      const double more = std::max(0.0, use.power * use.copies - have);
      if (more == 0) continue;
      const Atom& a = atoms_[size_t(id)];
      degree += more * a.degree;
      terms += more * a.log_terms;
      if (a.log_exponent_size > -1e8) size = log_add(size, a.log_exponent_size + std::log2(more));
    }
    x.degree += degree;
    x.log_terms += terms;
    x.log_exponent_size = log_add(x.log_exponent_size, size);
  }
  Value add(Value x, Value y) const {
    std::map<int, Use> dens = x.dens;
    for (const auto& [id, use] : y.dens) {
      auto [it, fresh] = dens.emplace(id, use);
      if (fresh) continue;
      it->second.power = std::max(it->second.power, use.power);
      it->second.copies = std::max(it->second.copies, use.copies);
      it->second.mask |= use.mask;
    }
    extend(x, dens);
    extend(y, dens);
    Value r;
    merge_flags(r, x, y);
    r.degree = std::max(x.degree, y.degree);
    r.log_terms = x.has_exp || y.has_exp ? log_add(x.log_terms, y.log_terms) : 0;
    r.log_scale = x.log_scale + y.log_scale;
    r.log_size = log_add(x.log_size + y.log_scale, y.log_size + x.log_scale);
    r.log_exponent_scale = x.log_exponent_scale + y.log_exponent_scale;
    r.log_exponent_size = std::max(x.log_exponent_size + y.log_exponent_scale,
                                   y.log_exponent_size + x.log_exponent_scale);
    r.dens = std::move(dens);
    return r;
  }
  // Σ of n elements; `gone` are the axes and loops summed over.
  Value sum(Value x, unsigned gone, double n) const {
    if (n <= 1) return x;
    std::map<int, Use> dens = x.dens;
    for (auto& [id, use] : dens)
      if (use.mask & gone) {
        use.copies *= n;
        use.mask &= ~gone;
      }
    for (auto& [id, use] : x.unknowns)
      if (use.mask & gone) {
        use.multiply(n);
        use.mask &= ~gone;
      }
    extend(x, dens);
    x.dens = std::move(dens);
    if (x.has_exp) x.log_terms += std::log2(n);
    x.log_size += std::log2(n);
    return x;
  }
  Value divide(const Value& x, const Value& y, unsigned mask_of_y) {
    Value inverse;
    inverse = y;
    inverse.degree = den_degree(y);
    inverse.log_terms = den_terms(y);
    inverse.log_size = 0;
    inverse.log_scale = 0;
    inverse.log_exponent_size = den_exponent_size(y);
    inverse.dens.clear();
    if (y.degree > 0 || y.log_terms > 0 || y.has_exp) {
      atoms_.push_back({y.degree, y.log_terms, y.log_exponent_size});
      inverse.dens[int(atoms_.size()) - 1] = {1, 1, mask_of_y};
    } else {  // division by a constant
      inverse.log_size = y.log_scale;
      inverse.log_scale = y.log_size;
    }
    return multiply(x, inverse);
  }
  Value root(const Value& x) const {
    Value r = x;
    r.has_root = true;
    // √(N/D) = √(N·D)/D as an atom of its own: a generator of degree (deg N + deg D)/2 over D.
    if (x.degree == 0 && !x.has_exp && x.dens.empty()) return r;
    r.degree = std::max(1.0, (x.degree + den_degree(x)) / 2);
    r.log_terms = x.log_terms + den_terms(x);
    r.hard = r.hard || x.log_terms > 0;
    return r;
  }
  // What a function of x has of it, whatever it is.
  static Value inherited(const Value& x) {
    Value r;
    r.has_root = x.has_root;
    r.unknowns = x.unknowns;
    r.hard = x.hard;
    r.sampled = x.sampled;
    r.loops = x.loops;
    return r;
  }
  Value exponential(const Value& x) const {
    Value r = inherited(x);
    r.has_exp = true;
    r.hard = x.hard || x.has_exp || !x.dens.empty() || x.has_root;
    r.exponent_degree = std::max(1.0, x.degree);
    r.log_exponent_size = x.log_size;
    r.log_exponent_scale = x.log_scale;
    r.unknown_degree = x.unknown_degree;
    return r;
  }
  // A sign of x: a number once it is known which (verify/characters.h counts them).
  static Value test(const Value& x) {
    Value r = inherited(x);
    r.hard = x.hard || x.has_exp;
    r.unknown_degree = x.unknown_degree;
    return r;
  }
  // A function known by name only: a fresh variable for every different argument.
  Value unknown(const Value& x, unsigned mask) { return set_of(x, x, mask, 1); }
  // A function of a set of elements such as `one`, whose figures taken together are `x`.
  Value set_of(const Value& x, const Value& one, unsigned mask, double members) {
    Value r = inherited(x);
    r.degree = 1;
    r.unknowns[next_unknown_++] = {1, members, mask, here_ * members};
    r.unknown_degree = std::max(one.unknown_degree, one.degree + den_degree(one));
    return r;
  }
  // Whether a tensor is a maximum (or minimum) of several elements: one more makes it a keyed
  // function of the larger set, not a sign test.
  static bool is_extremum(const Graph& g, TensorId t, bool maximum) {
    const Op& op = g.producer(t);
    if (has(op.kind, algebra::Movement)) return is_extremum(g, op.inputs[0], maximum);
    if (op.kind == OpKind::Accum) {
      const auto& a = g.attrs<AccumAttrs>(op);
      return a.kind == (maximum ? AccumKind::Max : AccumKind::Min) &&
             (is_extremum(g, op.inputs[0], maximum) || g.loops()[size_t(a.loops[0])] > 1);
    }
    if (fold_of(op.kind) != (maximum ? AccumKind::Max : AccumKind::Min)) return false;
    if (is_reduction(op.kind))
      return num_elements(g.type(op.inputs[0]).shape) > num_elements(g.type(t).shape);
    return is_extremum(g, op.inputs[0], maximum) || is_extremum(g, op.inputs[1], maximum);
  }
  static Value constant(const Rational& c) {
    Value r;
    if (!c.finite() || c.is_zero()) return r;
    r.log_size = std::max(0.0, std::log2(std::fabs(double(c.num())))) + std::max(0, c.exp2());
    r.log_scale = std::log2(double(c.den())) + std::max(0, -c.exp2());
    return r;
  }

  Value select(const Value& c, const Value& x, const Value& y) const {
    Value r = add(x, y);
    r.sampled = r.sampled || c.sampled;
    return r;
  }

  std::vector<Atom> atoms_;
  int next_unknown_ = 0;
  double runs_ = 1;  // how often the graph at hand is run: blocks and iterations
  double here_ = 1;  // how many elements of the operator at hand there are in the whole program
};

}  // namespace tessera::degree_algebra
