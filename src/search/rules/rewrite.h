// Rules applied to terms of rules: what follows from what.
#pragma once
#include "search/rules/rule.h"

namespace tessera::rules {

// Does the rule follow from others: do its sides become the same in a few steps of rewriting?
bool follows(const Rule&, const std::vector<Rule>& from);

// Does another rule make less of the left side, so that what the rule says is about something that
// no program is left with? (As in Knuth-Bendix completion, left sides are kept in normal form.)
bool reducible(const Rule&, const std::vector<Rule>& by);

}  // namespace tessera::rules
