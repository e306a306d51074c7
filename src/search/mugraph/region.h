// Cuts a kernel graph into regions the normal form sees through, and names the axes of every
// tensor in a region. What lies between regions (movement that merges or splits axes, integer
// arithmetic, opaque operators) stays as it is.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"
#include "search/mugraph/normal_form.h"

namespace tessera::mugraph {

struct Axis {
  int64_t extent = 0;
  std::string name;  // for derivations: "a0", "a1", … ("a1'" is a second name of the same axis)
};

// A tensor loaded under axis names. One tensor may be seen under two names (X·Xᵀ): two views.
struct View {
  TensorId tensor;
  std::vector<int> dims;  // axis per dimension; -1 where the extent is 1
  DType dtype = DType::F32;
  AxisMask mask() const;
};

// A tensor of the program under axis names: how the program itself computes it.
struct Node {
  TensorId tensor;
  OpKind kind = OpKind::Input;
  Attrs attrs;
  std::vector<int> dims;
  std::vector<uint32_t> operands;  // earlier nodes
  std::vector<int> reduced;        // axes summed or reduced, one per contraction
  int view = -1;                   // leaves
  DType dtype = DType::F32;
};

struct Region {
  std::vector<Axis> axes;
  std::vector<View> views;
  std::vector<Node> nodes;        // operands first
  std::vector<uint32_t> targets;  // nodes to compute, distinct tensors
};

// Functions the normal form treats as opaque, by their number there.
struct FunctionInfo {
  OpKind kind;
  Attrs attrs;
  DType result;
  bool same_dtype = true;  // the result has the operands' element type
};

struct RegionForms {
  std::vector<PolyId> of_node;  // kNone where the form does not exist
  std::vector<FunctionInfo> functions;
};
// Forms of all nodes; operations without a normal form become functions of their operands.
// Returns an empty `of_node` when a target has no form (numbers too large).
RegionForms build_forms(const Region& region, NormalForms& forms);
std::vector<int64_t> axis_extents(const Region& region);

// A program as a sequence of steps: a region to search, or one operator to keep.
struct Step {
  std::vector<TensorId> outputs;  // region: what later steps and the program need
  OpId kept;                      // valid: this operator stays
};
std::vector<Step> partition(const Graph& graph);
// Names the axes of the region that computes `outputs` from tensors for which `given` is true.
Region make_region(const Graph& graph, const std::vector<TensorId>& outputs,
                   const std::vector<bool>& given);

}  // namespace tessera::mugraph
