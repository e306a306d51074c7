// Measures the last gate before a user: wrong kernels must not pass backend/check. Each trial
// compiles an unsound edit of a random program and checks the code against the original program.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cache.h"

namespace tessera {

struct FaultBenchOptions {
  int count = 200;  // faults that must be seen; each costs a compilation
  uint64_t seed = 1;
  int threads = 2;
  const std::atomic<bool>* cancel = nullptr;
};

struct FaultBenchRow {
  int count = 0;      // wrong kernels that were compiled and checked
  int caught = 0;     // of these, refused
  int missed = 0;     // of these, passed although the verifier finds other values
  int harmless = 0;   // not in count: the edit passed, and the verifier proves it equal
  int numeric = 0;    // not in count: equal but less robust; the graph's numeric gate refuses these
  int undecided = 0;  // not in count: the edit passed, and the verifier cannot tell
  double seconds = 0;
  std::vector<std::string> failures;  // both programs of each miss
};

FaultBenchRow bench_kernel_faults(Cache& cache, const FaultBenchOptions& options = {});

}  // namespace tessera
