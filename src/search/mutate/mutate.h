// The partially equivalent engine (PET, OSDI'21): programs of multi-linear operators that agree
// with the original on a part of the output, found by depth-first search over operators (§4),
// compared box by box in a prime field (§5), and corrected where they differ. What is returned has
// passed the ordinary verifier at full shapes, unless the caller leaves that to itself.
#pragma once
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "search/engine.h"

namespace tessera {

struct MutateOptions {
  int depth = 4;           // operators of a mutant; a reshape with its transpose and pads is one
  int64_t steps = 60'000;  // operators tried
  double seconds = 8;   // wall time, of search and proofs; hitting it makes results depend on the
                        // machine
  int candidates = 16;  // at most so many are proved and returned
  double least_equal = 0.3;  // share of the output on which a mutant has to be equal, uncorrected
  bool prove = true;         // false: equal by their boxes, the caller asks the verifier
  uint64_t seed = 0;
  const CostModel* cost = nullptr;  // orders mutants; required
  // Steps switched off, of those that mutate_passes() names.
  std::set<std::string> disabled;
  const std::atomic<bool>* cancel = nullptr;
  int slice = 0, slices = 1;  // see Budget: every so many-th first operator
  double bound = INFINITY;    // seconds, by `cost`: mutants that take longer are left out
};

// Names of the steps that can be switched off: "rearrange", "windows", "matmul", "bundles",
// "spacer", "halo", "recompute", "fuse".
const std::vector<std::string>& mutate_passes();

struct MutateReport {
  StopReason stop = StopReason::Exhausted;
  std::string detail;     // of Unsupported: why
  int64_t tried = 0;      // operators added by the search
  int64_t mutants = 0;    // programs with the original's inputs and outputs
  int64_t partial = 0;    // of those: equal on a part of the output
  int64_t equal = 0;      // of those: equal on all of it
  int64_t corrected = 0;  // equal after a correction
  int64_t proven = 0;
  double seconds = 0;
  double original_cost = 0, best_cost = 0;  // seconds by the model; best: of proven ones, 0 if none
};

// Is an operator linear in each of its operands, so that a program of such may be mutated? (Pads
// with zeros, sums and differences are.)
bool is_multilinear(const Graph& graph, const Op& op);

// Proven mutants of a kernel graph with static shapes and multi-linear operators, in order of cost,
// one for each way to compute (the operators with arithmetic, their shapes and attributes): a cost
// model that has measured more may order them otherwise. The original is not among them. Always the
// same for the same graph and options, unless time runs out. `report`, where given, is overwritten.
std::vector<Candidate> mutate(const Graph& subprogram, const MutateOptions& options,
                              MutateReport* report = nullptr);

class Mutate : public Engine {
 public:
  explicit Mutate(MutateOptions options = {}) : options_(std::move(options)) {}
  SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) override;

 private:
  MutateOptions options_;
};

}  // namespace tessera
