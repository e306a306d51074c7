#include "backend/jumps.h"

#include <algorithm>
#include <initializer_list>

#include "ir/window.h"

namespace tessera {
namespace {

// How far a value may be from the one that is rounded operator by operator: not at all; only once
// something is added to it; by a rounding; by one that may make it negative.
enum class Off { Nothing, Product, Rounding, Difference };

// Libraries fuse these as they like: nothing makes them equal.
bool is_fused(OpKind kind) {
  return is_product(kind) || (is_windowed(kind) && has(kind, algebra::Ring));
}

class JumpAnalysis {
 public:
  bool jumps = false;        // something in the last operator of a graph of kernels, or inside, did
  std::vector<bool> jumped;  // of all its operators

  // The results of a graph whose inputs are like this.
  std::vector<Off> results(const Graph& graph, const std::vector<Off>& inputs) {
    std::vector<Off> off(graph.tensors().size(), Off::Nothing);
    for (size_t i = 0; i < inputs.size(); ++i) off[graph.inputs()[i].index] = inputs[i];
    for (const Op& op : graph.ops()) {
      if (graph.level() == Level::Kernel) jumps = false;
      std::vector<Off> operands = mapped(op.inputs, [&](TensorId t) { return off[t.index]; });
      if (op.body.valid()) {
        const std::vector<Off> made = results(graph.body(op), operands);
        for (size_t i = 0; i < made.size(); ++i) off[op.result(uint32_t(i)).index] = made[i];
      } else if (!is_input(op.kind)) {
        Off& made = off[op.result().index];
        made = result(graph, op, operands);
        // Kernels compute in 32 bits.
        if (is_sixteen(graph.type(op.result()).dtype) && !has(op.kind, algebra::Movement))
          made = std::max(made, Off::Rounding);
      }
      if (graph.level() == Level::Kernel) jumped.push_back(jumps);
    }
    return mapped(graph.outputs(), [&](TensorId t) { return off[t.index]; });
  }

 private:
  Off result(const Graph& graph, const Op& op, const std::vector<Off>& operands) {
    Off most = most_of(Off::Nothing, operands);
    const bool real = !op.inputs.empty() && is_float(graph.type(op.inputs[0]).dtype);
    const auto is = [&](std::initializer_list<OpKind> kinds) {
      return std::ranges::find(kinds, op.kind) != kinds.end();
    };
    using K = OpKind;
    if (is({K::Mul, K::Sqr})) return real ? std::max(most, Off::Product) : most;
    if (op.kind == K::Sub) return most == Off::Nothing ? most : Off::Difference;
    // Of terms in a row; long sums are added up in an order of our own.
    if (is({K::Add, K::Sum, K::Mean, K::Cumsum}))
      return most == Off::Nothing ? most : std::max(most, Off::Rounding);
    if (is_fused(op.kind)) return Off::Nothing;
    const bool partial = has(op.kind, algebra::Partial) && op.kind != K::Mod;
    if (partial && op.kind != K::Div) jumps |= most == Off::Difference;
    if (partial) return real ? std::max(most, Off::Rounding) : most;
    const bool cast = op.kind == K::Cast && real && !is_float(graph.type(op.result()).dtype);
    if (!cast && (!has(op.kind, algebra::Jumps) || is({K::Atan2, K::Opaque}))) return most;
    jumps |= most >= Off::Rounding;
    return Off::Nothing;
  }
};

}  // namespace

std::set<OpId> before_jumps(const Graph& graph) {
  JumpAnalysis walk;
  walk.results(graph, {});
  std::set<OpId> found;
  std::vector<bool> read(graph.tensors().size());  // by an operator that was found
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    bool before = walk.jumped[i];
    for (uint32_t r = 0; r < op.num_results; ++r) before = before || read[op.result(r).index];
    if (!before) continue;
    found.insert(OpId(i));
    for (TensorId t : op.inputs) read[t.index] = read[t.index] || !is_fused(op.kind);
  }
  return found;
}

}  // namespace tessera
