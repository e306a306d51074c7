#include "backend/cpu/jumps.h"

#include <algorithm>

#include "base/check.h"

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
    switch (op.kind) {
    case OpKind::Mul:
    case OpKind::Sqr: return real ? std::max(most, Off::Product) : most;
    case OpKind::Add: return most == Off::Nothing ? most : std::max(most, Off::Rounding);
    case OpKind::Sub: return most == Off::Nothing ? most : Off::Difference;
    case OpKind::Div: return real ? std::max(most, Off::Rounding) : most;
    case OpKind::Sqrt:
    case OpKind::Rsqrt:
    case OpKind::Log:
    case OpKind::Log1p:
    case OpKind::Pow:
    case OpKind::Power:
      jumps |= most == Off::Difference;
      return real ? std::max(most, Off::Rounding) : most;
    case OpKind::Floor:
    case OpKind::Round:
    case OpKind::Sign:
    case OpKind::Mod:
    case OpKind::Eq:
    case OpKind::Ne:
    case OpKind::Lt:
    case OpKind::Le:
    case OpKind::Gt:
    case OpKind::Ge: jumps |= most >= Off::Rounding; return Off::Nothing;
    case OpKind::Cast:
      if (is_float(graph.type(op.result()).dtype)) return most;
      jumps |= real && most >= Off::Rounding;
      return Off::Nothing;
    case OpKind::Sum:
    case OpKind::Mean:
    case OpKind::Cumsum: return most == Off::Product ? Off::Rounding : most;
    // Libraries fuse these as they like: nothing makes them equal.
    case OpKind::Matmul:
    case OpKind::ConcatMatmul:
    case OpKind::Conv:
    case OpKind::ConvTranspose:
    case OpKind::PoolSum: return Off::Nothing;
    case OpKind::Neg:
    case OpKind::Abs:
    case OpKind::Exp:
    case OpKind::Sin:
    case OpKind::Cos:
    case OpKind::Erf:
    case OpKind::Tanh:
    case OpKind::Sigmoid:
    case OpKind::Silu:
    case OpKind::Relu:
    case OpKind::Gelu:
    case OpKind::GeluTanh:
    case OpKind::Expm1:
    case OpKind::Not:
    case OpKind::Atan2:
    case OpKind::Max:
    case OpKind::Min:
    case OpKind::And:
    case OpKind::Or:
    case OpKind::Where:
    case OpKind::ReduceMax:
    case OpKind::ReduceMin:
    case OpKind::PoolMax:
#define OP(...)
#define POINTWISE(...)
#define REDUCTION(...)
#define WINDOWED(...)
#define MOVEMENT(kind, ...) case OpKind::kind:
#include "ir/ops.def"
    case OpKind::Input:
    case OpKind::Const:
    case OpKind::Iota:
    case OpKind::Opaque:
    case OpKind::Kernel:
    case OpKind::Thread:
    case OpKind::Iter:
    case OpKind::Accum:
    case OpKind::AccumRescale:
    case OpKind::Save: return most;
    }
    unreachable("OpKind");
  }
};

}  // namespace

bool jumps_of_sums(const Graph& graph) {
  Walk walk;
  walk.results(graph, {});
  return walk.jumps;
}

}  // namespace tessera
