#include "backend/cpu/fuse.h"

#include <algorithm>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/dot.h"
#include "backend/cpu/long_sums.h"
#include "backend/cpu/lowering.h"
#include "backend/cpu/operands.h"
#include "backend/cpu/row_kernels.h"
#include "plan/fuse.h"

namespace tessera {

Graph fuse_operators(const Graph& given, CpuIsa isa, bool weights, bool compared) {
  const bool fixed =
      std::ranges::all_of(given.tensors(), [](const Tensor& t) { return is_static(t.type.shape); });
  if (given.level() != Level::Kernel || !fixed) return given;
  FusionRules rules;
  rules.weights = weights;
  rules.compared = compared;
  rules.split = cpu_lowering(isa).split;
  rules.few_rows = [](DType right) {
    return right == DType::F32 || right == DType::BF16 ? most_dot_rows(right) : 0;
  };
  rules.packs = [isa](DType right, int64_t rows) {
    if (isa == CpuIsa::Amx && right == DType::BF16) return false;  // too fast for it
    return packs_tile(isa, right == DType::F64 ? right : DType::F32, right, rows, 1);
  };
  rules.packed_rows = kMostKernelRows + 1;
  rules.apart = [isa](const Graph& graph) {
    std::vector<bool> apart(graph.ops().size(), false);
    for (const ImageStep& s : image_steps(graph, isa)) {
      apart[s.before.index] = true;
      for (OpId id : s.after) apart[id.index] = true;
    }
    return apart;
  };
  return fused(with_staged_reductions(given), rules);
}

}  // namespace tessera
