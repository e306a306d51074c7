// When the operators of a block graph run: which loop bodies there are, what each computes and in
// which order. Loops that some value varies with together are nested, in the order the graph lists
// them; others run one after another, so a block may pass over a tensor twice: statistics in the
// first loop, their use in the second.
#pragma once
#include <vector>

#include "ir/block.h"

namespace tessera {

// The body of a loop, or of the block itself (bodies[0], loop -1).
struct LoopBody {
  int loop = -1;
  uint8_t loops = 0;  // all loops around the body, this one included
  struct Step {
    OpId op;        // runs, or
    int body = -1;  // this inner body does, once per iteration of its loop
  };
  std::vector<Step> steps;
  // Accumulators that start before this loop and have their value after it.
  std::vector<OpId> accumulators;
};

struct BlockSchedule {
  std::vector<LoopBody> bodies;
};

// Every accumulator and saver runs in the loops that its operand varies with, every other operator
// wherever it is needed in the loops that it varies with. Throws Error(BadInput) where no order
// exists: a loop would have to run again over what it computes.
BlockSchedule block_schedule(const Graph& block_graph, const std::vector<Phase>& phases);
inline BlockSchedule block_schedule(const Graph& g) { return block_schedule(g, phases(g)); }

// Iterations of all loop bodies together, at least 1.
double total_iterations(const Graph& block_graph, const BlockSchedule& schedule);

}  // namespace tessera
