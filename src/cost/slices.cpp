#include "cost/slices.h"

#include <algorithm>

#include "ir/window.h"
#include "ir/written.h"

namespace tessera {
namespace {

bool multiplies(const Graph& graph, const Op& op) {
  if (!is_kernel(op.kind)) return is_product(op.kind);
  const std::vector<Op>& ops = graph.body(op).ops();
  return std::ranges::any_of(ops, [](const Op& o) { return is_product(o.kind); });
}

}  // namespace

bool reads_slice_in_place(const Graph& graph, OpId user, size_t operand) {
  const Op& op = graph.op(user);
  TensorId t = op.inputs[operand];
  if (graph.producer(t).kind != OpKind::Slice) return false;
  // These take their operands as one run of elements, or by windows.
  if (is_reshape(op.kind) || is_opaque(op.kind) || is_windowed(op.kind) ||
      written_kernel(graph, op))
    return false;
  // Reductions and products of many matrices see their operands with axes merged.
  if (!is_kernel(op.kind) && op.kind != OpKind::Slice &&
      (is_reduction(op.kind) || is_scan(op.kind) ||
       (is_product(op.kind) && graph.type(t).shape.size() > 3)))
    return false;
  if (!multiplies(graph, op)) return true;
  for (; graph.producer(t).kind == OpKind::Slice; t = graph.producer(t).inputs[0]) {
    const auto& a = graph.attrs<SliceAttrs>(graph.producer(t));
    const Type& whole = graph.type(graph.producer(t).inputs[0]);
    const int64_t size = size_in_bytes(whole.dtype);
    if (a.steps.back() != 1 || a.starts.back() * size % 16 != 0 ||
        whole.shape.back().extent * size % 16 != 0)
      return false;
  }
  return true;
}

}  // namespace tessera
