// Copies arrays into other layouts (plan/layout.h), in pieces that threads can share.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"

namespace tessera {

struct PackJob {
  Layout layout;
  std::vector<int64_t> extents;
  int element_bytes = 4;

  // Pieces of work; any split of [0, units()) does the whole copy.
  int64_t units() const;
  // `from` is row-major. Filling is written as zeros.
  void run(const void* from, void* to, int64_t begin, int64_t end) const;
};

}  // namespace tessera
