// The µGraph engine (Mirage, OSDI'25, §4): saturates the values that can be part of the result in
// an axis-aware normal form, then extracts kernels and plans of kernels by branch and bound.
#pragma once
#include <optional>
#include <set>
#include <string>

#include "search/engine.h"

namespace tessera {

struct MugraphOptions {
  // Operators of a block graph, iterators and savers included (as Mirage counts); none: no limit.
  std::optional<int> max_block_ops;
  int max_kernels = 4;           // kernels of a plan
  int variants = 4;              // graphs kept per set of loads, outputs and loop axis
  std::set<std::string> ablate;  // rules switched off, of those that ablations() names
};

// Rules that can be switched off, most under their names in SearchReport::pruned.
const std::set<std::string>& ablations();

class Mugraph : public Engine {
 public:
  explicit Mugraph(MugraphOptions options = {}) : options_(std::move(options)) {}
  SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) override;

 private:
  MugraphOptions options_;
};

}  // namespace tessera
