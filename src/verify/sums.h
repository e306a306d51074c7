// Elements of tensors at unknown positions, as terms: sums and maxima over unknown numbers of
// positions, with brackets [i >= j] and [i = j] of positions, in a normal form. Positions and
// extents are variables of the terms; everything that a law of verify/opinion/terms.h says of
// numbers holds of them too.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "verify/opinion/numbers.h"

namespace tessera {

using VariableValues = std::map<int64_t, TermId>;  // of variables

class Sums {
 public:
  explicit Sums(uint64_t seed) : t_(seed, 400'000), n_(t_) {
    t_.orient_by([this](TermId a) { return orientation(a); });
  }
  Terms& terms() { return t_; }
  Numbers& numbers() { return n_; }

  // An unknown extent of at least `least`.
  TermId extent(int64_t least);
  TermId position(TermId extent);  // a fresh variable: 0, 1, … extent − 1
  // Whether `e` is a polynomial with whole coefficients in positions and extents.
  bool is_position(TermId e) const;
  bool never_negative(TermId e);   // proved for all positions and extents
  TermId at_least_zero(TermId e);  // [e >= 0]
  TermId is_zero(TermId e);        // [e = 0]
  TermId inside(TermId e, TermId extent) {
    return t_.mul(at_least_zero(e), at_least_zero(t_.sub(t_.sub(extent, e), Terms::kOne)));
  }
  // e = quotient·by + rest with 0 <= rest < by. A position that can only be split is split for
  // good: see resolved(). Throws NoTerms.
  std::pair<TermId, TermId> divided(TermId e, TermId by);

  // Over all values of the positions, of which there is one at least.
  TermId sum(std::vector<TermId> positions, TermId body);
  TermId max(std::vector<TermId> positions, TermId body);
  TermId min(std::vector<TermId> positions, TermId body) {
    return t_.negative(max(std::move(positions), t_.negative(body)));
  }
  // As it compares: positions that were split are written so, and what a bracket [i = j] multiplies
  // has i in place of j.
  TermId resolved(TermId a);

 private:
  using Ids = std::vector<int64_t>;
  Ids bound_by(const Atom& a) const;  // variables that it binds; none of most atoms
  const std::set<int64_t>& free(TermId a);
  int64_t highest_bound(TermId a);
  bool has_any(TermId a, const Ids& ids);
  TermId substitute(TermId a, const VariableValues& s);
  TermId substitute_atom(const Atom& a, const VariableValues& s);
  TermId monomial(uint32_t m, const Fraction& c);
  std::vector<TermId> factors(uint32_t m);
  Ids with_splits(const std::vector<TermId>& positions, TermId& body);
  TermId total(Ids ids, TermId body);
  TermId written_out(Ids& ids, TermId body, bool maximum);
  TermId total_of_product(Ids ids, uint32_t m);
  std::optional<TermId> cut_of(const Atom& bracket, int64_t id);
  TermId total_below_cuts(const Ids& ids, TermId& body);
  std::optional<TermId> opened(Ids& ids, uint32_t m);
  std::optional<TermId> without_bracket(Ids& ids, uint32_t m);
  TermId largest(Ids ids, TermId body);
  TermId bind(const char* how, const Ids& ids, const std::vector<TermId>& parts, bool product);
  std::vector<Ids> orders(const Ids& ids, const std::vector<TermId>& parts);
  int orientation(TermId a);
  double look(TermId a);
  double look(const Atom& a);
  int64_t leading_position(TermId e);
  bool solves(TermId e, int64_t id, TermId& value);
  int64_t only_variable(TermId a) const;
  TermId lowest(TermId e);

  Terms t_;
  Numbers n_;
  int64_t next_extent_ = 0;
  std::map<int64_t, int64_t> least_;                    // of extents
  std::map<int64_t, TermId> range_;                     // of positions
  std::map<int64_t, std::pair<TermId, TermId>> split_;  // of positions: value and divisor
  std::map<TermId, std::set<int64_t>> free_;
  std::map<TermId, double> looks_;
  int depth_ = 0;
};

}  // namespace tessera
