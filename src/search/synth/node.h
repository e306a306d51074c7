// What a synthesised program is made of: NumPy-level operations over values whose axes are named by
// dimensions instead of extents, so that one program stands for all sizes.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/op.h"

namespace tessera::synth {

using ValueId = uint32_t;
inline constexpr ValueId kNone = UINT32_MAX;

// Names an axis: axes that the program makes equal share one. 0 is the extent 1.
using DimId = uint8_t;
inline constexpr DimId kOne = 0;
inline constexpr int kMaxAxes = 6;
inline constexpr int kDraws = 2;  // every value is held at two sets of sizes

struct Dims {
  uint8_t rank = 0;
  DType dtype = DType::F32;
  std::array<DimId, kMaxAxes> axis{};  // the first `rank` count, the rest are 0

  void push(DimId d) { axis[rank++] = d; }
  DimId back(int i) const { return i < rank ? axis[size_t(rank - 1 - i)] : kOne; }
  friend bool operator==(const Dims&, const Dims&) = default;
};

enum class Form : uint8_t {
  Leaf,       // an input
  Const,      // constants[attr], a scalar of the node's dtype
  Extent,     // how many elements the dimensions packed in attr span, a byte each: such a scalar
  Identity,   // the identity matrix, of the shape of the value itself
  Pointwise,  // kind applied to broadcast operands; pow: exponent constants[attr]; cast: to dtype
  Reduce,     // kind over the axes in the mask attr, which are dropped
  Dot,        // numpy.matmul, operands of rank 1 included
  Transpose,  // result axis i is operand axis (attr >> 4i) & 15
  Unsqueeze,  // extent 1 at the result's axes in the mask attr
  Squeeze,    // without the operand's axes in the mask attr
  Broadcast,  // to the shape of the value itself (numpy.broadcast_to)
  Diagonal,   // of the last two axes, as the new last axis
  Spread,     // of a vector: the matrix with it on the diagonal, zero elsewhere
  Triangle,   // zero below (kind triu) or above (tril) the diagonal attr (as int64)
  Stack,      // kept[attr]: operands along a new axis
  Kept,       // kept[attr]: an operator of the program that synthesis takes as it is
};

struct Node {
  Form form = Form::Leaf;
  OpKind kind = OpKind::Input;
  uint8_t arity = 0;
  std::array<ValueId, 3> arg{kNone, kNone, kNone};
  uint64_t attr = 0;
  DType dtype = DType::F32;  // of the result, where operands do not say: Const, Cast
};

// The same but for the element type of the result.
inline bool same_operation(const Node& a, const Node& b) {
  return a.form == b.form && a.kind == b.kind && a.arity == b.arity && a.arg == b.arg &&
         a.attr == b.attr;
}

// Whether `attr` is the number of a constant.
inline bool has_constant(const Node& n) { return n.form == Form::Const || n.kind == OpKind::Pow; }

// As NumPy calls it, and rules do.
inline std::string numpy_name(OpKind kind) {
  const auto fold = fold_of(kind);
  if (fold == AccumKind::Max) return is_reduction(kind) ? "max" : "maximum";
  if (fold == AccumKind::Min) return is_reduction(kind) ? "min" : "minimum";
  return name(kind);
}
// The sign between operands of arithmetic; empty for all that is written as a call.
inline std::string infix(OpKind kind) {
  const char* sign = is_comparison(kind) || has(kind, algebra::Bools) ? nullptr : symbol(kind);
  return sign != nullptr ? sign : "";
}

// Without operands; `dtype` counts where the form does not tell it.
inline Node leaf(Form form, uint64_t attr, DType dtype = DType::F32) {
  Node n;
  n.form = form;
  n.attr = attr;
  n.dtype = dtype;
  return n;
}
inline Node view(Form form, ValueId a, uint64_t attr, OpKind kind = OpKind::Input) {
  Node n;
  n.form = form;
  n.kind = kind;
  n.arity = 1;
  n.arg[0] = a;
  n.attr = attr;
  return n;
}
inline Node pointwise(OpKind kind, ValueId a, ValueId b = kNone, ValueId c = kNone) {
  Node n;
  n.form = Form::Pointwise;
  n.kind = kind;
  n.arity = uint8_t(1 + (b != kNone) + (c != kNone));
  n.arg = {a, b, c};
  return n;
}
inline Node product(ValueId a, ValueId b) {  // Dot
  Node n;
  n.form = Form::Dot;
  n.arity = 2;
  n.arg = {a, b, kNone};
  return n;
}

// The axes of a mask, ascending.
inline std::vector<int> axes_of(uint64_t mask) {
  std::vector<int> axes;
  for (; mask != 0; mask &= mask - 1) axes.push_back(__builtin_ctzll(mask));
  return axes;
}

// The index of an item in a list, which it is appended to where it is new.
template <class T> uint32_t add_unique(std::vector<T>& list, const T& item) {
  const auto at = std::ranges::find(list, item);
  const auto index = uint32_t(at - list.begin());
  if (at == list.end()) list.push_back(item);
  return index;
}

// An operator of any arity: what Kept and Stack refer to.
struct KeptOp {
  OpKind kind = OpKind::Opaque;
  Attrs attrs;
  std::vector<ValueId> args;
  uint32_t result = 0;  // which of its results
  uint32_t num_results = 1;
  OpId original;  // Kept only: where it stands in the program
};

}  // namespace tessera::synth
