// Mirage's Algorithm 1 (OSDI'25, §4.1) on block graphs: forward depth-first enumeration of every
// graph in canonical order (the newest operand decides) up to a number of operators. An oracle for
// small programs: it shares the
// normal form with the search but neither its hypergraph nor its extraction. Functions of several
// operands (where, max) are not offered.
#pragma once
#include "search/mugraph/kernels.h"

namespace tessera::mugraph {

struct ExhaustiveOptions {
  int max_operators = 10;    // iterators, operators, accumulators and savers
  bool prune_values = true;  // only values that are part of a goal (§4.3), else every value
  bool sink_bound = true;    // operators left must suffice to consume what is unconsumed
  int64_t max_states = 20'000'000;
  size_t keep = 200'000;  // complete graphs kept
  const std::atomic<bool>* cancel = nullptr;
  std::function<bool()> out_of_time;
};

struct ExhaustiveResult {
  Hypergraph graph;             // every value and operation met
  std::vector<Kernel> kernels;  // complete graphs, tiles not chosen
  int64_t states = 0;           // operators tried and accepted
  bool complete = true;
  std::map<std::string, int64_t> pruned;
};

ExhaustiveResult enumerate_blocks(const Region& region, NormalForms& forms,
                                  const RegionForms& region_forms,
                                  const ExhaustiveOptions& options);

}  // namespace tessera::mugraph
