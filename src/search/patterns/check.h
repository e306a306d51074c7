// Is a pattern's kernel its meaning? Asked of the verifier at sizes that the guards allow, with
// every setting; needs neither a compiler nor a GPU.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "search/patterns/pattern.h"

namespace tessera::patterns {

struct CheckOptions {
  uint64_t seed = 1;
  int sizes = 2;                       // different ones for each body
  int settings = 0;                    // at most so many at each size, spread over all; 0: all
  std::optional<double> seconds = {};  // of wall time; what it leaves no time for is not proved
  const std::atomic<bool>* cancel = nullptr;
};

struct CheckResult {
  std::string why;    // empty, or where the kernel leaves the meaning, and for which sizes
  int instances = 0;  // bodies at sizes and settings that were proved
  bool ok() const { return why.empty(); }
};

CheckResult check(const Pattern&, const CheckOptions&);

// The meaning and body number `body` at sizes and a setting that the guards allow, the numbers
// constants: two programs of one interface, to compile and run. Throws Error(BadInput) if no sizes
// up to 1200 do.
std::pair<Graph, Graph> example(const Pattern&, size_t body);

}  // namespace tessera::patterns
