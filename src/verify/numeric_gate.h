// Is a rewrite as accurate as the original in the program's own dtype? Both are compared with f64
// (f64 programs with long double) on ordinary and adversarial inputs: err <= max(2·err of the
// original, c·eps·√k·Σ|terms|).
#pragma once
#include <atomic>
#include <functional>
#include <optional>

#include "base/thread_pool.h"
#include "verify/inputs.h"
#include "verify/reference.h"
#include "verify/verdict.h"

namespace tessera {

constexpr double kMostWhole = 1e7;  // work of programs asked at whole numbers before the gate

struct GateOptions {
  Accuracy level = Accuracy::Close;
  bool special = false;  // see VerifyOptions
  bool scales = true;    // see VerifyOptions
  uint64_t seed = 1;
  bool whole = false;    // whole numbers alone, and rows of the same or of few
  bool region = false;   // of larger programs, over cuts that are inputs here
  bool minimise = true;  // see VerifyOptions
  // Inputs to look at besides, where decisions fall as they do at no others.
  const std::vector<std::vector<NDArray>>* rare = nullptr;
  double c = 8;           // of the second bound
  double max_work = 5e8;  // element operations; expensive programs are run on fewer families
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(const std::string& step)> progress;  // see VerifyOptions
};

struct GateResult {
  std::vector<GateFamily> families;
  std::vector<std::string> assumptions;          // where only the rewrite is finite
  std::optional<Counterexample> counterexample;  // set when refused
  bool cancelled = false;
};

// The beginning of an assumption that some inputs show and others do not.
inline constexpr const char* kLargerDomain =
    "the rewrite is defined at some inputs where the original is not";
// Both graphs have static shapes and the same interface. What the original contributes is taken
// from `spec` where it is there already.
GateResult numeric_gate(Reference& spec, const Graph& candidate, const GateOptions& options);

// Looks for real inputs at which the programs differ by more than rounding explains, in f64 and
// whatever the family; made small before it is returned. Used when the field has seen a difference.
std::optional<Counterexample> find_difference(Reference& spec, const Graph& candidate,
                                              const GateOptions& options);

// A clear difference in f64 at these very inputs: small integers, at which equality of operands is
// meant and not an accident of rounding.
std::optional<Counterexample> difference_at(Reference& spec, const Graph& candidate,
                                            const std::vector<NDArray>& inputs,
                                            const GateOptions& options);

}  // namespace tessera
