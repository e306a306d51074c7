// Measures the verifier: unsound mutations that must be refused and sound rewrites that must be
// accepted, over random programs. Plain data for `tessera bench verify` and for tests.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct VerifyBenchOptions {
  int injected = 10000, equal = 10000;  // how many verifications of each sort
  int deep = 0;                         // and as many of each sort of deep programs
  int branches = 0;                     // and of programs with branches planted in them
  uint64_t seed = 1;
  int threads = 2;
  std::string kind;  // only edits of this name; empty: all
  const std::atomic<bool>* cancel = nullptr;
  // Told now and then how many verifications of a row are done.
  std::function<void(const char* row, int done, int total)> progress;
};

struct KindResult {
  std::string kind;
  int count = 0;
  int equal = 0, refuted = 0, unknown = 0;  // verdicts
  int harmless = 0;                         // mutants shown equal by other means, not in `count`
};

struct VerifyBenchRow {
  std::string name;  // injected, equal, injected_deep, equal_deep, branch_faults, branch_laws
  int count = 0;     // verifications that count
  int accepted = 0;  // verdict Equal; for faults these are misses
  int refuted = 0, unknown = 0;
  int harmless = 0;   // "injected": mutants that are equal programs, by another argument
  int undecided = 0;  // "equal": pairs skipped since the verifier cannot decide even that the
                      // original (or the rewrite) equals itself: roots of unlucky constants, many
                      // coupled roots
  double seconds = 0;
  std::vector<KindResult> kinds;
  std::vector<std::string>
      failures;  // misses or false refusals, with both programs and the verdict
};
std::vector<VerifyBenchRow> bench_verify(const VerifyBenchOptions& options = {});

}  // namespace tessera
