// Rules applied to terms of rules: what follows from what.
#pragma once
#include "search/rules/rule.h"

namespace tessera::rules {

// Does the rule follow from others: do its sides become the same in a few steps of rewriting?
bool follows(const Rule&, const std::vector<Rule>& from);

// Drops rules that follow from the others, larger ones first.
std::vector<Rule> without_derived(std::vector<Rule>);

}  // namespace tessera::rules
