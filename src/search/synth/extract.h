// Exact extraction: the cheapest acyclic choice of one way for every class that a program needs,
// each class paid once however often it is used (an integer program, as in TENSAT, MLSys'21, §5.1).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "search/synth/egraph.h"

namespace tessera::synth {

// Classes and the ways to compute them from each other, whatever they stand for.
struct WayGraph {
  struct Way {
    double cost = 0;             // ≥ 0; infinite: never to be chosen
    std::vector<uint32_t> args;  // classes
  };
  std::vector<std::vector<Way>> classes;
  std::vector<uint32_t> outputs;

  // Of a choice of ways (kNone: none); infinity where it is cyclic or incomplete.
  double cost(const Choice& choice) const;
};
WayGraph ways_of(const EGraph& graph, const std::vector<ValueId>& outputs);

struct ExtractLimits {
  int64_t nodes = 200;            // of the branch and bound
  size_t ways = 250;              // more that are left by the reductions are not looked at
  int rounds = 40;                // in which cycles are forbidden
  std::function<bool()> stopped;  // asked now and then, if any
};

struct Extraction {
  Choice choice;
  double cost = 0;
  bool optimal = false;  // proved: no acyclic choice costs less (by more than one part in 10⁹)
  size_t ways = 0;       // that were not excluded before branching
  int64_t nodes = 0;
};

// The best choice, never worse than `start`, which is what is left where a limit is reached
// or it is stopped.
// `start` has to be acyclic and complete for the outputs. Deterministic.
Extraction extract_least(const WayGraph& graph, const Choice& start,
                         const ExtractLimits& limits = {});

}  // namespace tessera::synth
