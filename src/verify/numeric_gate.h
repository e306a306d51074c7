// Is a rewrite as accurate as the original in the program's own dtype? Both are compared with f64
// on ordinary and adversarial inputs; err <= max(2·err of the original, c·eps·√k·Σ|terms|).
#pragma once
#include <atomic>
#include <optional>

#include "verify/verdict.h"

namespace tessera {

struct GateOptions {
  bool strict = false;
  uint64_t seed = 1;
  int threads = 1;
  double c = 8;  // of the second bound
  const std::atomic<bool>* cancel = nullptr;
};

struct GateResult {
  std::vector<GateFamily> families;
  std::vector<std::string> assumptions;          // where only the rewrite is finite
  std::optional<Counterexample> counterexample;  // set when refused
  bool cancelled = false;
};

// Both graphs have static shapes and the same interface.
GateResult numeric_gate(const Graph& spec, const Graph& candidate, const GateOptions& options);

}  // namespace tessera
