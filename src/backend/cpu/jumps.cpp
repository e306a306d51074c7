#include "backend/cpu/jumps.h"

#include <algorithm>
#include <initializer_list>

namespace tessera {
namespace {

// How far a value may be from the one that is rounded operator by operator: not at all; only once
// something is added to it; by a rounding; by one that may make it negative.
enum class Off { Nothing, Product, Rounding, Difference };

class Walk {
 public:
  bool jumps = false;

  // The results of a graph whose inputs are like this.
  std::vector<Off> results(const Graph& graph, const std::vector<Off>& inputs) {
    std::vector<Off> off(graph.tensors().size(), Off::Nothing);
    for (size_t i = 0; i < inputs.size(); ++i) off[graph.inputs()[i].index] = inputs[i];
    for (const Op& op : graph.ops()) {
      std::vector<Off> operands;
      for (TensorId t : op.inputs) operands.push_back(off[t.index]);
      if (op.kind == OpKind::Kernel || op.kind == OpKind::Thread) {
        const std::vector<Off> made = results(graph.body(op), operands);
        for (size_t i = 0; i < made.size(); ++i) off[op.result(uint32_t(i)).index] = made[i];
      } else if (op.kind != OpKind::Input) {
        off[op.result().index] = result(graph, op, operands);
      }
    }
    std::vector<Off> made;
    for (TensorId t : graph.outputs()) made.push_back(off[t.index]);
    return made;
  }

 private:
  Off result(const Graph& graph, const Op& op, const std::vector<Off>& operands) {
    Off most = Off::Nothing;
    for (Off o : operands) most = std::max(most, o);
    const bool real = !op.inputs.empty() && is_float(graph.type(op.inputs[0]).dtype);
    const auto is = [&](std::initializer_list<OpKind> kinds) {
      return std::find(kinds.begin(), kinds.end(), op.kind) != kinds.end();
    };
    using K = OpKind;
    if (is({K::Mul, K::Sqr})) return real ? std::max(most, Off::Product) : most;
    if (op.kind == K::Sub) return most == Off::Nothing ? most : Off::Difference;
    // Of terms in a row; long sums are added up in an order of our own.
    if (is({K::Add, K::Sum, K::Mean, K::Cumsum}))
      return most == Off::Nothing ? most : std::max(most, Off::Rounding);
    // Libraries fuse these as they like: nothing makes them equal.
    if (is({K::Matmul, K::ConcatMatmul, K::Conv, K::ConvTranspose, K::PoolSum}))
      return Off::Nothing;
    if (is({K::Sqrt, K::Rsqrt, K::Log, K::Log1p, K::Pow, K::Power}))
      jumps |= most == Off::Difference;
    if (is({K::Div, K::Sqrt, K::Rsqrt, K::Log, K::Log1p, K::Pow, K::Power}))
      return real ? std::max(most, Off::Rounding) : most;
    const bool cast = op.kind == K::Cast && real && !is_float(graph.type(op.result()).dtype);
    if (!cast &&
        !is({K::Floor, K::Round, K::Sign, K::Mod, K::Eq, K::Ne, K::Lt, K::Le, K::Gt, K::Ge}))
      return most;
    jumps |= most >= Off::Rounding;
    return Off::Nothing;
  }
};

}  // namespace

bool jumps_of_sums(const Graph& graph) {
  Walk walk;
  walk.results(graph, {});
  return walk.jumps;
}

}  // namespace tessera
