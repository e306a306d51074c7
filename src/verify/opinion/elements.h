// Programs evaluated element by element over terms: a second implementation of what operators,
// kernels and loops mean, independent of eval/ and ir/axis_reads.h on purpose.
#pragma once
#include <functional>
#include <vector>

#include "ir/graph.h"
#include "verify/opinion/numbers.h"

namespace tessera {

struct Elements {
  std::vector<int64_t> shape;
  std::vector<TermId> at;  // row-major
  bool held = false;       // integers: the numbers that their type holds, not just equal modulo 2^w
};

// The inputs of a program as variables numbered through; bools are 0 or 1.
std::vector<Elements> variables(Terms& terms, const Graph& g);

// How numbers of elements appear in a smaller instance of a program.
struct Counts {
  // Means divide by the counts of the program `whole`, operator by operator; null: by their own.
  const Graph* whole = nullptr;
  // Constants that are read as others.
  std::vector<std::pair<Rational, Rational>> constants;
};

// Sees the elements of every operator's result, and may write equal terms for them.
using Observer = std::function<void(std::vector<TermId>&)>;

// The outputs of a kernel graph with static shapes. Throws NoTerms.
std::vector<Elements> evaluate(Terms& terms, const Graph& g, const std::vector<Elements>& inputs,
                               const Counts& counts = {}, const Observer& observe = {});

}  // namespace tessera
