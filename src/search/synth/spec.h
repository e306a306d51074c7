// A kernel-level program as synthesis sees it: values named by numbers, axes by dimensions.
#pragma once
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "search/synth/world.h"

namespace tessera::synth {

struct Spec {
  std::vector<Node> nodes;  // of values, operands before results
  std::vector<Dims> dims;
  std::vector<ValueId> outputs;  // one per output of the program
  std::vector<uint64_t> keys;    // of Leaf and Kept: what World::draw makes them of
  std::vector<Rational> constants;
  std::vector<KeptOp> kept;
  DimTable table;
  bool with_q = false;      // has exp, log, …
  bool with_roots = false;  // has roots, logarithms or other powers
  bool with_order = false;  // has max, comparisons, |x|, …
};

// Leaf values come first, in the order of the program's inputs. Operators that synthesis does not
// look into are kept. Nothing where no choice of small sizes holds all values (World's limits);
// with `any_size` such programs too, whose values cannot be evaluated.
std::optional<Spec> parse(const Graph& program, bool any_size = false);

}  // namespace tessera::synth
