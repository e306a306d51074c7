// From what was seen once to what is always so: numbers become variables, common subterms become
// variables, shapes become patterns, and what plays no part is dropped, as long as random
// instances say that both sides stay equal.
#pragma once
#include <functional>

#include "search/rules/rule.h"

namespace tessera::rules {

// A rule of these sides only: values that `variables` names become variables, what is not used is
// dropped, and names are given in the order in which the left side first uses them (A, B, …; m, n,
// …; c, d, …). Nothing where the right side has variables that the left side has not.
struct Replacement {
  synth::ValueId value;
  ShapePattern shape;
  bool boolean = false;
};
std::optional<Rule> restated(const Rule&, synth::ValueId left, synth::ValueId right,
                             const std::vector<Replacement>& variables = {});

// "where" each variable that is a number is so.
void restrict_all(Rule&, Condition::Kind);
// Without those restrictions that the rule holds without.
void drop_restrictions(Rule&, const std::function<bool(const Rule&)>& holds);

// The most general rules found of which `raw` is an instance, each with its conditions, unchecked;
// none where it is not even plausible itself.
std::vector<Rule> generalised(const Rule& raw);

// Whether the left side asks for certain numbers that are neither small nor halves: what is true of
// 0.3 and 0.7 alone is no rule worth keeping.
bool about_numbers(const Rule&);

// How many operations a side has; views and constants are not counted.
int size(const Rule&, synth::ValueId);

}  // namespace tessera::rules
