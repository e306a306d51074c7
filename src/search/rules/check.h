// Is a rule true? Random instances (sizes, ranks, broadcasts, element types, numbers), each put to
// the verifier; and where the left side is undefined, whether the rule says so.
#pragma once
#include <atomic>

#include "search/rules/rule.h"

namespace tessera::rules {

struct CheckOptions {
  int instances = 32;
  uint64_t seed = 1;
  bool second_opinion = false;  // also asks Z3 about small instances (verify/opinion)
  std::string z3 = {};          // its executable; empty: see solve/smt.h
  const std::atomic<bool>* cancel = nullptr;
};

struct CheckResult {
  bool holds = false;
  std::string why;         // where it does not hold: what was refuted, at which sizes
  int instances = 0;       // that were proved equal
  int agreed = 0;          // of those, how many the second opinion agrees about
  bool all_sizes = false;  // see not_for_all_sizes
};

// Deterministic for a seed.
CheckResult check(const Rule&, const CheckOptions& options = {});

// Whether both sides have one normal form with unknown extents (verify/all_sizes.h): without axes
// for "...", with two, and with each variable in turn lacking them. Empty: they do;
// else why not.
std::string not_for_all_sizes(const Rule&, uint64_t seed);

// A first look by evaluation in f64 at `instances` random sizes: false where the sides differ, or
// nothing could be compared.
bool plausible(const Rule&, int instances, uint64_t seed);

// The conditions under which the left side is defined, of those that the right side does without;
// nothing where the right side is undefined where the left one is not, or no such conditions tell
// where the domain grows. Found at single elements, which are evaluated in f64.
std::optional<std::vector<Condition>> assumptions(const Rule&);

// Whether it holds for integers modulo 2^w too.
bool holds_for_integers(const Rule&, int instances, uint64_t seed);

}  // namespace tessera::rules
