// Mutants: programs with the inputs and outputs of another, by depth-first search over operators
// (PET §4.1, Algorithm 1). A value is a tensor or a bundle of tensors that are treated alike
// (parallel convolutions, groups), so that merging and splitting them is one operator.
#pragma once
#include <functional>

#include "search/mutate/mutate.h"
#include "search/mutate/rearrange.h"

namespace tessera::mutants {

enum class StepKind : uint8_t {
  Rearrange,
  Reshape,
  Concat,  // of a bundle, along `axis`
  Split,   // into a bundle, of `sizes` along `axis`
  Fit,     // each part of a bundle into `shape` with zeros around it, `lows` of them in front
  Merge,   // weights of a convolution's groups: of `sizes[1]` of `sizes[0]` groups one, with zeros
  Apply,   // `op` with `attrs`, to each part of bundles
};

struct Step {
  StepKind kind = StepKind::Apply;
  std::vector<int> operands;  // values: those that the recipe starts from, then one per step
  Rearrangement rearrangement = {};
  std::vector<int64_t> shape = {};
  int axis = 0;
  std::vector<int64_t> sizes = {};
  std::vector<std::vector<int64_t>> lows = {};
  OpKind op = OpKind::Neg;
  Attrs attrs = NoAttrs{};
};

// How a mutant is built: the last step's value is the outputs.
struct Recipe {
  std::vector<std::vector<size_t>> starts;  // values: inputs of the program by number; a constant
  std::vector<OpId> constants;              // values after those: constants of the program
  std::vector<Step> steps;
  bool likely = false;      // equal at all elements that were looked at
  std::string str() const;  // one step per line
};

// Nothing where a step does not fit.
std::optional<Graph> realise(const Graph& original, const Recipe& recipe);

struct Generated {
  std::vector<Recipe> recipes;  // agree with the original at some of a few random elements
  StopReason stop = StopReason::Exhausted;
  int64_t tried = 0, mutants = 0;
};
// `stopped` is asked now and then.
Generated generate(const Graph& original, const MutateOptions& options,
                   const std::function<bool()>& stopped);

}  // namespace tessera::mutants
