// Generated kernels in the terms of the plan of a block.
#pragma once
#include <set>
#include <vector>

#include "backend/cuda/block_emitter.h"
#include "backend/lower.h"

namespace tessera {

// The kernels that emit_cuda makes of a kernel graph, one per operator with tiles.
inline std::vector<DescribedBlock> describe_cuda(const Graph& graph, const CudaArch& arch,
                                                 const Target& target) {
  require_runnable(graph);
  PlanBuilder plan(graph, {});
  const Lowering lowering = gpu_lowering(target);
  const EmitLimits limits = emit_limits(arch, target, {});
  std::vector<DescribedBlock> out;
  for (OpId id : plan.ops()) {
    const Op& op = graph.op(id);
    std::optional<Graph> lowered;
    if (is_opaque(op.kind)) continue;
    if (!is_kernel(op.kind)) lowered = lower_to_block(graph, op, lowering);
    if (!is_kernel(op.kind) && !lowered) continue;
    std::set<std::string> prelude;
    out.push_back(BlockEmitter(kernel_values(lowered ? *lowered : graph.body(op)), limits, prelude)
                      .describe());
  }
  return out;
}

}  // namespace tessera
