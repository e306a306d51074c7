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

// An axis may be split: its elements then carry two bits, one for the place inside a part and one
// for the part. Sums over the inside alone leave one partial result per part, an ordinary tensor
// with the axis of parts instead of the axis itself; their number is chosen per plan.
struct Region {
  std::vector<Axis> axes;
  std::vector<int> part;   // by axis: the axis of its parts; empty or -1 where it is not split
  std::vector<int> whole;  // by axis: the axis whose parts these are; empty or -1
  std::vector<View> views;
  std::vector<Node> nodes;        // operands first
  std::vector<uint32_t> targets;  // nodes to compute, distinct tensors

  int part_of(int axis) const { return part.empty() ? -1 : part[size_t(axis)]; }
  int whole_of(int axis) const { return whole.empty() ? -1 : whole[size_t(axis)]; }
  // The bits of a dimension with this axis: both parts of a split one.
  AxisMask bits(int axis) const;
  AxisMask mask(const std::vector<int>& dims) const;
  // Adds the axis of `axis`'s parts; its extent is 0, to be chosen by plans.
  void split(int axis);
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

// Whether the normal form, or a function in it, sees through the operator; others are kept.
bool transparent(const Graph& graph, const Op& op);
// Which dimensions of a program are the same axis: a class per dimension of each tensor, -1 where
// the extent is 1.
std::vector<std::vector<int>> axis_classes(const Graph& graph);

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
