// Mirage's Algorithm 1 (OSDI'25, §4.1) on block graphs: forward depth-first enumeration of every
// graph in canonical order (the newest operand decides) up to a number of operators. An oracle for
// small programs: it shares the
// normal form with the search but neither its hypergraph nor its extraction. Functions of several
// operands (where, max) are not offered.
#pragma once
#include "search/mugraph/kernels.h"
#include "search/mugraph/mugraph.h"

namespace tessera::mugraph {

struct ExhaustiveOptions {
  int max_operators = 10;  // iterators, operators, accumulators and savers
  int64_t max_states = 20'000'000;
  size_t keep = 200'000;  // complete graphs kept
};

// Block graphs of one region.
struct Enumerated {
  Hypergraph graph;             // every value and operation met
  std::vector<Kernel> kernels;  // complete graphs, tiles not chosen
  int64_t states = 0;           // operators tried and accepted
  bool complete = true;
  std::map<std::string, int64_t> pruned;
};
Enumerated enumerate_blocks(const Region& region, NormalForms& forms,
                            const RegionForms& region_forms, const ExhaustiveOptions& options);

// Candidates made of these, for programs of one region.
class Exhaustive : public Engine {
 public:
  explicit Exhaustive(ExhaustiveOptions options) : options_(options) {}
  SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) override;

 private:
  ExhaustiveOptions options_;
};

}  // namespace tessera::mugraph
