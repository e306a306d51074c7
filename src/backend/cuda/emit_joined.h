// Two kernels as one launch (cost/kernel_join.h): the last block of each group to be done with the
// first goes on with the second, or, from sm_90 on, a cluster of at most
// 16 does so together.
#pragma once

#include <vector>

#include "backend/cuda/block_emitter.h"
#include "cost/kernel_join.h"

namespace tessera {

// `places`: by operand of the second kernel, the result of the first that it is, or -1. Arguments
// of the kernel: operands of the first, operands of the second that are no results of the first,
// results of the second, results of the first. Throws as BlockEmitter::run does.
BlockText emit_joined(const std::string& name, const KernelJoin& join, const KernelValues& first,
                      const KernelValues& second, const std::vector<int>& places,
                      const EmitLimits& limits, std::set<std::string>& prelude);

}  // namespace tessera
