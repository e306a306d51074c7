// Which sides of a program's decisions were met at inputs that were tried. A decision of which one
// side was never met says nothing about what follows there.
#pragma once
#include <string>
#include <vector>

#include "eval/eval.h"

namespace tessera {

class BranchCoverage {
 public:
  explicit BranchCoverage(const Graph& graph);
  // Runs the program there. Inputs at which an index is out of range are skipped.
  void observe(const std::vector<NDArray>& inputs);
  bool complete() const { return first_unmet().empty(); }
  // "`c = gt x y`: operands were never equal"; empty when all sides were met.
  std::string first_unmet() const;
  int decisions() const { return int(decisions_.size()); }

 private:
  struct Decision {
    std::string text;
    size_t at = 0;       // its first output in the instrumented program
    bool truth = false;  // a bool: true and false; else an order: less, equal, greater
    bool ties = false;   // whether being equal is a side of its own
    unsigned met = 0;    // bits: less or false, equal, greater or true
  };
  Graph graph_;
  std::vector<Decision> decisions_;
  std::string hidden_;  // a decision inside a kernel's body, which is not looked at
};

}  // namespace tessera
