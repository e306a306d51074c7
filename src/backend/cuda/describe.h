// What a generated kernel does with shared memory, in the terms of the plan of a block.
#pragma once

#include <vector>

#include "backend/cuda/emit.h"
#include "plan/block_plan.h"

namespace tessera {

struct DescribedBlock {
  Block block;
  std::vector<int> value_of;  // by value of the kernel: the block's value, -1 for none
};

// What a block of that architecture may have.
BlockLimits block_limits(const CudaArch& arch, const Target& target);

}  // namespace tessera
