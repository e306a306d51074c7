// The search's filter: says no early, and never yes.
#pragma once
#include <cstdint>
#include <memory>

#include "ir/graph.h"

namespace tessera {

// Cheap early rejection for a search: one 31-bit draw on representative tiles, of which the
// candidate's last kernels evaluate a few blocks only. Never accepts: true only says that no
// difference was seen.
class Filter {
 public:
  explicit Filter(const Graph& spec, uint64_t seed = 1, int threads = 1);
  ~Filter();
  Filter(Filter&&) noexcept;
  Filter& operator=(Filter&&) noexcept;
  bool may_equal(const Graph& candidate) const;  // thread-safe

 private:
  struct State;
  std::unique_ptr<State> state_;
};
inline bool filter(const Graph& spec, const Graph& candidate, uint64_t seed = 1) {
  return Filter(spec, seed).may_equal(candidate);
}

}  // namespace tessera
