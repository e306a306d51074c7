// Algebra that gathers weights: rewrites after which more of a program depends on weights alone and
// is computed once, not in every call. Proposals only; the verifier and the clock decide.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct Folding {
  Graph graph;             // same inputs and outputs
  std::string derivation;  // one rule per line
};

// Programs that the rules reach from `program` within `depth` steps, fewest multiply-adds per call
// first, at most `most`; only those with fewer than the program.
//   (x·g) W       → x (g W)        g along the contracted axis
//   x A·c ± x B + b·c → x (A·c ± B) + b·c      c along the columns
//   (x A) B       → x (A B)
//   (y + b) W     → y W + b W
// where g, c, W, A, B, b are computed from weights and constants; likewise from the left and of
// convolutions (the third where A or B has one tap; in the second, taps may be among those of wider
// windows, and x is a convolution with one tap); and sums, means and sums of windows before
// products and convolutions in place of behind them.
std::vector<Folding> fold_weights(const Graph& program, int depth = 6, size_t most = 2);

// Multiply-adds of products and convolutions and elements of everything else, per call.
double work_per_call(const Graph& program);

}  // namespace tessera
