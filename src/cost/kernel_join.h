// Two kernels in one launch: the blocks of the first that store what a block of the second reads
// form a group, and whichever of them is done last does that block's work. So a reduction that is
// split over blocks, with online softmax or without, needs no launch to put its parts together.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct KernelJoin {
  OpId first, second;
  // By dimension of the second one's grid: the dimension of the first one's that cuts what they
  // share alike, or -1. Blocks of both that agree in these are a group.
  std::vector<int> same;
  int64_t groups = 1;
  int64_t arrivals = 1;  // blocks of the first in a group, at least 2
  int64_t parts = 1;     // blocks of the second in a group
};

// How the kernel `second` can go with the last of the kernels whose results it reads: nullopt where
// it reads something that is computed later than that, or every block waits for one alone.
std::optional<KernelJoin> kernel_join(const Graph& graph, OpId second);

}  // namespace tessera
