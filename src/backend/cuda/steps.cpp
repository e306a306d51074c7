#include "backend/cuda/steps.h"

#include <map>

namespace tessera {

BlockPlan plan_steps(const EmitFlow& flow, int64_t alignment, const BlockLimits& limits) {
  Block block;
  for (const EmitLoop& l : flow.loops) block.loops.push_back({l.extent, l.around});
  std::vector<FlowTile> tiles;
  for (const SharedBuffer& b : flow.buffers) {
    block.values.push_back({b.name, b.dtype, {b.elements}});
    tiles.push_back({b.elements * size_in_bytes(b.dtype), alignment});
  }
  std::map<std::string, int> mappings;
  std::vector<FlowAccess> accesses;
  for (size_t s = 0; s < flow.steps.size(); ++s) {
    const EmitStep& step = flow.steps[s];
    BlockStep described;
    described.loop = step.loop;
    described.kind = step.tile >= 0 ? StepKind::Load : StepKind::Compute;
    for (const SharedAccess& a : step.accesses) {
      FlowAccess access{int(s), int(a.buffer), a.write, -1, a.async};
      if (!a.mapping.empty())
        access.mapping = mappings.try_emplace(a.mapping, int(mappings.size())).first->second;
      if (step.tile >= 0) {
        access.instruction = step.instruction;
        described.writes.push_back({int(a.buffer), {}});
      }
      accesses.push_back(access);
    }
    block.steps.push_back(std::move(described));
  }
  return plan_flow(block, tiles, accesses, limits);
}

}  // namespace tessera
