// Equality for all sizes: elements at unknown positions of tensors of unknown extents have one
// normal form (verify/sums.h). Decides or says why not; never refutes.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct AllSizes {
  bool proved = false;
  std::string what;  // "X[N,M+1] Y[M] with N >= 1, M >= 2", or why it is not proved
};
// Of programs without inputs whose extents vary.
inline constexpr const char* kNoSizes = "no size varies";

using SymbolNames = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// A program of any sizes is given by instances: `a[k]` and `b[k]` are the two programs at the k-th
// choice of extents, three at least, of equal structure but for their numbers. Extents and numbers
// are read as what they are in all instances: the same number, or c·N + d, c·N·M + d, N ± M + d.
// Inputs' axes that differ between instances are the symbols, `names` those that have names.
AllSizes equal_for_all_sizes(const std::vector<Graph>& a, const std::vector<Graph>& b,
                             const SymbolNames& names = {});

// Of programs whose shapes have symbols.
AllSizes equal_for_all_sizes(const Graph& a, const Graph& b, uint64_t seed);
// The symbols of programs' shapes, those of bodies too, each once.
std::vector<std::string> symbols_of(const std::vector<const Graph*>& programs);

}  // namespace tessera
