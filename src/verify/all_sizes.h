// Equality for all sizes: elements at unknown positions of tensors of unknown extents have one
// normal form (verify/sums.h). Decides or says why not; never refutes.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct AllSizes {
  bool proved = false;
  std::string what;  // "all sizes X[N,M] Y[M] with N >= 1, M >= 2", or why it is not proved
};

// Of programs without inputs whose extents vary.
inline constexpr const char* kNoSizes = "no size varies";

// A program of any sizes is given by instances: `a[k]` and `b[k]` are the two programs at the k-th
// choice of extents, three at least, of equal structure but for their numbers. Extents and numbers
// are read as what they are in all instances: the same number, or c·N + d, c·N·M + d, N + M + d.
// Inputs' axes that differ between instances are the symbols.
AllSizes equal_for_all_sizes(const std::vector<Graph>& a, const std::vector<Graph>& b);

// Of programs whose shapes have symbols.
AllSizes equal_for_all_sizes(const Graph& a, const Graph& b, uint64_t seed);
// The symbols of a program's shapes, those of bodies too, each once.
std::vector<std::string> symbols_of(const Graph& g);

}  // namespace tessera
