// The engine `patterns` (PluS, ATC'25): experts' kernels in the places of a program where their
// loops and their meaning fit. Unlike the paper's, a place is found by numbers and not by the names
// of operators, what is proposed is proved like all else, and the cover is chosen by cost.
#pragma once

#include "search/engine.h"
#include "search/patterns/pattern.h"

namespace tessera {

struct PatternsOptions {
  const std::vector<patterns::Pattern>* warehouse = nullptr;  // required
  // Proves each instance on its region before it is offered; otherwise the caller proves what it
  // chooses.
  bool verify = false;
};

class Patterns : public Engine {
 public:
  explicit Patterns(PatternsOptions options) : options_(std::move(options)) {}
  SearchReport run(const Subprogram&, Context&, const Budget&, CandidateSink&) override;

 private:
  PatternsOptions options_;
};

}  // namespace tessera
