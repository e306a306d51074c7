// Where formats break: the scales of inputs at which a rewrite overflows, loses its digits to
// underflow or cancels them although the original is finite and accurate.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "verify/reference.h"

namespace tessera {

// Of a float dtype: bits of the significand, exponents of the least normal and the largest number.
struct FloatFormat {
  int bits = 53, least = -1022, most = 1023;
};
FloatFormat format_of(DType dtype);
// The smallest spacing: what lies below it may be flushed or rounded away.
double smallest_of(DType dtype);

// Whether a value on the way, or the sum of its terms' magnitudes, leaves the range of its dtype:
// what follows may be finite by saturation (1 / inf) or by the order of a sum, but is no measure.
class InnerOverflow {
 public:
  explicit InnerOverflow(const Graph& graph);
  bool happens(const std::vector<NDArray>& inputs, ThreadPool* pool) const {
    return any(inputs, pool, false);
  }
  // Only terms that cancel, whose order decides: what else leaves the range does no harm where the
  // result is right all the same.
  bool of_terms(const std::vector<NDArray>& inputs, ThreadPool* pool) const {
    return any(inputs, pool, true);
  }
  // Whether all sums are finite: theirs is no luck that the order of terms decides.
  bool spares_sums(const std::vector<NDArray>& inputs, ThreadPool* pool) const;

 private:
  bool any(const std::vector<NDArray>& inputs, ThreadPool* pool, bool cancelling) const;

  Graph values_;            // with all of them as outputs
  std::vector<bool> sums_;  // of these, those with more than one term
};

struct RangeOptions {
  uint64_t seed = 1;
  std::vector<IntRange> ranges;  // of integer inputs
  double c = 8;                  // see GateOptions
  double max_work = 1e8;         // element operations, but at least a few points are tried
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(const std::string& step)> progress;
  // Fills in how far the original's results move with the last places of its inputs.
  std::function<void(Reference::Run&)> sensitivity;
};

// The element of a rewrite that is off most.
struct RangeFault {
  std::string where;  // "all inputs scaled by 2^63.25"
  std::vector<NDArray> inputs;
  int output = -1;
  int64_t index = 0;
  double spec = 0, candidate = 0, allowed = 0;
  bool undefined = false;  // the rewrite is not finite
};

struct RangeResult {
  GateFamily family;
  std::optional<RangeFault> fault;
  bool cancelled = false;
};

// Numbers near 1 are scaled by powers of two, shifted by them, or scaled in some slices alone:
// all inputs at once and each alone, of one sign and of both, up to the ends of their dtypes and
// where the rewrite first fails (found by bisection). A fault counts where the original is finite
// and about as accurate as rounding explains, with all that it computes on the way in range, there
// and a little further out: by the number of terms that sums have, or where a third of the digits
// fade.
RangeResult search_ranges(Reference& spec, const Graph& candidate, const RangeOptions& options);

}  // namespace tessera
