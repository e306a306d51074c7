#include "ir/weights.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kSmall = int64_t{1} << 20;  // bytes that are kept without a second thought
constexpr int64_t kGrowth = 4;                // times the operands' bytes

}  // namespace

std::vector<bool> computed_once(const Graph& graph, bool of_weights) {
  std::vector<bool> once(graph.ops().size(), false), constant(graph.tensors().size(), false);
  std::vector<bool> output(graph.tensors().size(), false);
  for (TensorId t : graph.outputs()) output[t.index] = true;
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (is_input(op.kind)) {
      constant[op.result().index] = graph.is_weight(op.result());
      continue;
    }
    if (op.constant()) {
      constant[op.result().index] = !output[op.result().index];  // else written at each call
      continue;
    }
    int64_t read = 0, made = 0;
    bool fixed = !is_opaque(op.kind);  // which need not repeat itself
    for (TensorId t : op.inputs) {
      fixed = fixed && constant[t.index];
      read += graph.type(t).bytes();
    }
    for (uint32_t r = 0; r < op.num_results; ++r) {
      fixed = fixed && !output[op.result(r).index];
      made += graph.type(op.result(r)).bytes();
    }
    if (!fixed || made > std::max(kSmall, kGrowth * read)) continue;
    once[i] = true;
    for (uint32_t r = 0; r < op.num_results; ++r) constant[op.result(r).index] = true;
  }
  if (of_weights) {
    std::vector<bool> depends(graph.tensors().size(), false);
    for (size_t i = 0; i < graph.ops().size(); ++i) {
      const Op& op = graph.ops()[i];
      bool any = is_input(op.kind) && graph.is_weight(op.result());
      for (TensorId t : op.inputs) any = any || depends[t.index];
      for (uint32_t r = 0; r < op.num_results; ++r) depends[op.result(r).index] = any;
      once[i] = once[i] && any;
    }
  }
  return once;
}

}  // namespace tessera
