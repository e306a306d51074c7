// Which components of every tensor the outputs of a graph need, found backwards: exp at component c
// needs its argument at c+1, signs and maxima need component p. Tensors with no demand are dead.
#pragma once
#include <vector>

#include "eval/eval.h"

namespace tessera {

struct Demand {
  std::vector<Components> tensors;  // of integers and bools: 1 when needed
  std::vector<Demand> bodies;       // by BodyId

  bool live = false;  // of a body: it must run even if no result is needed

  Components of(TensorId t) const { return tensors[t.index]; }
  // True when the operator must be evaluated.
  bool any(const Op& op) const;
};

// Is the operator a root, undefined at non-residues?
bool is_root(const Graph& graph, const Op& op);
// `outputs` has one entry per output of the graph.
Demand find_demand(const Graph& graph, const std::vector<Components>& outputs);
// Adds a demand on the roots of a kernel graph, in every component in which they can be computed
// from inputs that hold `present`; the bodies of kernels stay as they are.
void demand_roots(const Graph& graph, const std::vector<Components>& present, Demand& demand);
// The same demand on all float outputs.
Demand find_demand(const Graph& graph, Components outputs);

}  // namespace tessera
