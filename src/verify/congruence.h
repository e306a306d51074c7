// Values of two programs that are equal because of how they are made: the same operator of equal
// operands. Shared beginnings need no proof then, and what follows a proved pair is shared again.
#pragma once
#include <optional>
#include <vector>

#include "verify/composition.h"

namespace tessera {

class Congruence {
 public:
  // Kernel graphs with the same interface; `proved` pairs are taken for equal. Pairs whose elements
  // lie in another order say nothing here. Opaque operators need not repeat themselves: the results
  // of two are never taken for equal.
  Congruence(const Graph& spec, const Graph& candidate, const std::vector<ValuePair>& proved = {});

  bool equal(TensorId spec, TensorId candidate) const {
    return spec_[spec.index] == candidate_[candidate.index];
  }
  bool equal(const ValuePair& p) const { return p.axes.empty() && equal(p.spec, p.candidate); }
  // The first tensor of the original that is equal to one of the rewrite.
  std::optional<TensorId> of_candidate(TensorId candidate) const;
  // Whether one of the two is equal to some tensor of the other program.
  bool shared(const ValuePair& p) const;
  // All outputs.
  bool complete() const;

 private:
  const Graph *spec_graph_, *candidate_graph_;
  std::vector<int> spec_, candidate_;  // class of each tensor
  std::vector<TensorId> first_;        // by class: of the original, invalid if it has none
  std::vector<bool> made_;             // by class: whether the rewrite computes it
};

// The program with what is computed twice computed once.
Graph without_repetition(const Graph& g);

// Whether both operators are the same function of their operands.
bool same_function(const Graph& a, const Op& x, const Graph& b, const Op& y);

}  // namespace tessera
