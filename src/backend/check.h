// The last gate before a user: compiled code is run against the interpreter of its own graph, on
// several families of inputs. Only what passes becomes a Checked. Every element of every output is
// compared (k roundings and f functions on the longest path); of expensive programs the interpreter
// runs a few tiles, which the inputs repeat.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "ir/graph.h"

namespace tessera {

// Anything compiled: reads inputs and writes outputs in memory format, contiguous.
using CompiledFunction = std::function<void(std::span<const void* const>, std::span<void* const>)>;

struct CheckOptions {
  uint64_t seed = 1;
  ThreadPool* pool = nullptr;  // of the interpreter
  double c = 8;  // allowed: max(2 err of the interpreter, eps (c sqrt(k) + 4 f) sum|terms|)
  // Rounding of operands that was asked for, such as 2^-11 of tf32, where it is coarser than that
  // of a result's dtype.
  double least_unit = 0;
  // > 0: errors are relative to the largest sum |terms| of an output, times this, and an output
  // with a result that is not finite is not compared: what transforms that mix neighbours can
  // promise.
  double normwise = 0;
  // Multiply-adds of the interpreter (and elements of the inputs, which count 10) beyond which only
  // the most telling family and the one of special values are run.
  double max_work = 1e9;
  // Cost of an evaluation above which inputs repeat tiles (verify/symmetry.h).
  double whole_cost = 2e7;
  const std::atomic<bool>* cancel = nullptr;  // seen between families: then nothing passes
};

struct CheckReport {
  bool passed = false;
  int families = 0;        // of inputs
  int64_t elements = 0;    // compared
  double worst = 0;        // largest error relative to what is allowed; <= 1 passes
  int special_differ = 0;  // elements that differ where the interpreter is not finite
  std::string what;        // the first failure: family, output, position, values; empty if none
  double seconds = 0;
};

// Evidence that compiled code computes `graph`; only check_compiled makes one.
class Checked {
 public:
  const CheckReport& report() const { return report_; }

 private:
  friend std::optional<Checked> check_compiled(const Graph&, const CompiledFunction&,
                                               const CheckOptions&, CheckReport*);
  explicit Checked(CheckReport report) : report_(std::move(report)) {}
  CheckReport report_;
};

// Runs `compiled` and the interpreter side by side. nullopt when they disagree; `report` (may be
// null) then says where.
std::optional<Checked> check_compiled(const Graph& graph, const CompiledFunction& compiled,
                                      const CheckOptions& options = {},
                                      CheckReport* report = nullptr);

}  // namespace tessera
