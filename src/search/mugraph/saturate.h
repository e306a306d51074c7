// Saturation: all values that can be part of a region's targets, and all operations between them,
// as a hypergraph. There is no limit on the number of operators; no loop, phase, grid or kernel
// appears in a value. Values are forms modulo a scalar; edges carry the scalars.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "search/mugraph/region.h"

namespace tessera::mugraph {

using ValueId = uint32_t;
inline constexpr ValueId kOne = 0;  // the constant 1, always available
inline constexpr size_t kMaxValues = 256;

enum class EdgeOp : uint8_t { Mul, Div, Add, Sqr, Sqrt, Rsqrt, Exp, Log, Fn, Sum, Matmul };

// op(mult₀·in₀, mult₁·in₁, …) = scale · out. Multipliers are 1 except for Add, Exp, Log, Fn and
// the sign under a root.
struct Edge {
  EdgeOp op = EdgeOp::Mul;
  uint8_t arity = 0;
  std::array<ValueId, 3> in{};
  std::array<Coef, 3> mult{};
  AxisMask bits = 0;  // Sum, Matmul: the one axis reduced; Fn: the axes it reduces over
  uint32_t fn = 0;    // Fn: index into RegionForms::functions
  ValueId out = 0;
  Coef scale = 1;
  bool forced = false;  // an operation of the program itself

  std::span<const ValueId> operands() const { return {in.data(), arity}; }
};

struct Value {
  PolyId form = kNone;
  AxisMask axes = 0;
  uint32_t rank = 0;  // every edge goes from lower to higher rank
  double volume = 1;  // elements
  int view = -1;      // loaded from outside
  DType dtype = DType::F32;
};

struct Hypergraph {
  std::vector<Value> values;  // ascending rank
  std::vector<Edge> edges;
  std::vector<std::vector<uint32_t>> producers;  // edges by value
  struct Target {
    uint32_t node;  // of the region
    ValueId value;
    Coef coef;  // tensor = coef · value
  };
  std::vector<Target> targets;
  size_t saturated_values = 0, saturated_edges = 0;  // before dead ones were removed
  bool capped = false;                               // the limit on values was reached
};

struct SaturateOptions {
  size_t max_values = 160;
  size_t max_goals = 400;
  bool volume_rule = true;    // no value larger than the program's largest tensor
  bool cancel_rule = true;    // no edge in which factors vanish
  bool reciprocals = true;    // 1/x as an operation of its own
  bool program_only = false;  // only the program's own operations: fusion without algebra
  const std::atomic<bool>* cancel = nullptr;
  std::function<bool()> out_of_time;  // may be empty
};

// nullopt-like: targets empty when the targets cannot be derived. `pruned` counts rejections.
Hypergraph saturate(const Region& region, NormalForms& forms, const RegionForms& region_forms,
                    const SaturateOptions& options, std::map<std::string, int64_t>& pruned);

// The operator that an edge is.
OpKind op_kind(const Edge& edge, const RegionForms& region_forms);

// One edge as text, for derivations and tests.
std::string str(const Edge& edge, const Hypergraph& graph, const NormalForms& forms,
                const RegionForms& region_forms);

}  // namespace tessera::mugraph
