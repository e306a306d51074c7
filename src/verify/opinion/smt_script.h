// Questions to an SMT solver: can two terms differ where both are defined?
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "verify/opinion/terms.h"

namespace tessera {

// An SMT-LIB 2 script with one check-sat per pair: "unsat" proves the pair equal. Functions known
// by name are uninterpreted, but exp is positive, increasing and turns sums into products; √x is
// the non-negative y with y² = x; denominators are not 0.
std::string smt_script(const Terms& terms, const std::vector<std::pair<TermId, TermId>>& pairs,
                       int milliseconds_each);

}  // namespace tessera
