// Questions to an SMT solver: can two terms differ where both are defined?
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "verify/opinion/terms.h"

namespace tessera {

// An SMT-LIB 2 script with one check-sat per pair: "unsat" proves the pair equal. Sums, decisions
// and maxima are what they are over the reals; products, powers, roots and functions are unknown
// functions of their operands. `real`: products that no decision depends on are those of the reals,
// which is slower. In decisions they never are: over the reals x² ≤ 0 only where x = 0, in floats
// also where x is small. The pairs from which on it would be longer are left out.
constexpr size_t kLongestScript = size_t(4) << 20;  // what takes longer to write none reads in time
std::string smt_script(const Terms& terms, const std::vector<std::pair<TermId, TermId>>& pairs,
                       bool real, int milliseconds_each, size_t longest = kLongestScript);

}  // namespace tessera
