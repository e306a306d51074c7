// Which kernels compute a program: of all that are offered for its values, the cheapest set that
// computes what is wanted (Korch, ASPLOS'24, §4: an integer program with one binary for each
// candidate kernel; values may be computed more than once). Kernels come from any engine, and so do
// the values between them that the program itself does not have.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "solve/ilp.h"

namespace tessera {

struct CoverKernel {
  std::vector<size_t> inputs, outputs;  // values by number
  double seconds = 0;
  // Copies a value that a kernel which is no relay made. (Two in a row are worth another relay, and
  // so none can compute each other's input.)
  bool relay = false;
};

struct CoverProblem {
  size_t values = 0;
  std::vector<size_t> given;   // there without a kernel
  std::vector<size_t> wanted;  // to be computed
  std::vector<CoverKernel> kernels;
};

struct Cover {
  std::vector<size_t> kernels;  // chosen ones, each after those that make its inputs
  double seconds = 0;
  bool proved = false;  // none is cheaper
  size_t pieces = 0;    // integer programs that it was cut into
  size_t variables = 0;
  std::string solver;
};

struct CoverOptions {
  IlpOptions ilp;
  bool highs = true;  // where it is found
};

// Values that every solution computes are where the problem is cut: what lies between them is
// chosen piece by piece. Choices that compute a value from itself are forbidden as they come up
// (TENSAT, MLSys'21, §5.1). `known`: kernels that compute all that is wanted, which stand where the
// budget ends before anything cheaper is found. Throws Error(BadInput) where they do not.
Cover choose_cover(const CoverProblem& problem, const std::vector<size_t>& known,
                   const CoverOptions& options = {});

}  // namespace tessera
