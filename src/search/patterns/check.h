// Is a pattern's kernel its meaning? Asked of the verifier at sizes that the guards allow, with
// every setting; needs neither a compiler nor a GPU.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "search/patterns/pattern.h"
#include "verify/verdict.h"

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

// Where a kernel leaves the meaning, in the names of the def: one sentence for who wrote it.
std::string told(const Pattern&, const Counterexample&);

// A body at sizes and a setting that the guards allow.
struct Example {
  Values values;        // symbols and settings
  bool holes = false;   // something pointwise is in each of its holes
  Graph region, graph;  // the meaning, and the same by the body
};
// At `sizes` different ones, at most `settings` at each, spread over all, and at one with each
// symbol long; the first of each with nothing in its holes and with something. Throws
// Error(BadInput) if no sizes up to 1200 do.
std::vector<Example> examples(const Pattern&, const Body&, DType, uint64_t seed, int sizes,
                              int settings);

// The meaning and body number `body` at sizes and a setting that the guards allow, the numbers
// constants: two programs of one interface, to compile and run. Throws Error(BadInput) if no sizes
// up to 1200 do.
std::pair<Graph, Graph> example(const Pattern&, size_t body);

}  // namespace tessera::patterns
