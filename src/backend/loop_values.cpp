#include "backend/loop_values.h"

#include <map>

#include "ir/axis_reads.h"
#include "ir/window.h"

namespace tessera {
namespace {

// More than this is not written out in one expression.
constexpr double kMostPulled = 64;
// What storing and loading an element is worth, in additions.
constexpr double kMemory = 4;

// Its elements are expressions of its operands' elements.
bool is_pulled(const Graph& g, const Op& op) {
  if (has(op.kind, algebra::Pointwise) || is_literal(op.kind) || is_reshape(op.kind) ||
      is_triangle(op.kind) || op.kind == OpKind::Pad)
    return true;
  return has(op.kind, algebra::Movement) &&
         axis_reads(op.kind, op.attrs, g.type(op.inputs[0]).rank(), g.type(op.result()).rank());
}

double own_cost(OpKind kind) {
  if (has(kind, algebra::Division)) return 4;
  if (has(kind, algebra::Call)) return 16;
  if (has(kind, algebra::Fills) || kind == OpKind::Repeat) return 2;
  return has(kind, algebra::Pointwise) ? 1 : 0;
}

}  // namespace

std::vector<bool> kept_values(const Graph& g) {
  const size_t n = g.tensors().size();
  std::vector<bool> kept(n);
  std::vector<double> cost(n, 0);  // of an element that is pulled
  for (const Op& op : g.ops()) {
    const size_t t = op.result().index;
    kept[t] = !is_pulled(g, op);
    cost[t] = own_cost(op.kind);
    for (TensorId x : op.inputs) cost[t] += kept[x.index] ? 0 : cost[x.index];
    if (cost[t] > kMostPulled) kept[t] = true;
  }
  for (TensorId t : g.outputs()) kept[t.index] = true;
  // How often the loops of each kept value ask for an element, the last ones first.
  std::vector<std::map<uint32_t, double>> asked(n);
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    const uint32_t t = op.result().index;
    double all = 0;
    for (const auto& [_, times] : asked[t]) all += times;
    if (is_windowed(op.kind))
      for (TensorId x : op.inputs) kept[x.index] = true;
    const double elements = double(num_elements(g.type(op.result()).shape));
    if (!kept[t] && cost[t] * (all / elements - 1) >= kMemory) kept[t] = true;
    const std::map<uint32_t, double> own =
        kept[t]
            ? std::map<uint32_t, double>{{t, elements * (is_scan(op.kind) ? 1 : terms_of(g, op))}}
            : asked[t];
    for (TensorId x : op.inputs)
      for (const auto& [root, times] : own) {
        double& most = asked[x.index][root];
        most = std::max(most, times);
      }
  }
  return kept;
}

}  // namespace tessera
