// The operators that mutants and what is mutated consist of: linear in each operand (or moving
// elements), so that every output element is a sum of products of input elements whose positions
// are affine in its own.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/window.h"

namespace tessera::mutants {

enum class Form : uint8_t {
  Input,
  Const,
  Neg,  // from here to PoolSum: arithmetic
  Add,
  Sub,
  Mul,
  Div,  // by a constant
  Sum,
  Mean,
  Matmul,
  Conv,
  ConvTranspose,
  PoolSum,
  Transpose,
  Reshape,  // unsqueeze and squeeze too
  Broadcast,
  Repeat,
  Concat,
  Stack,
  Slice,
  Pad,  // with zeros
};

// Nothing for all other operators.
std::optional<Form> form_of(const Graph& graph, const Op& op);
// Does it compute, rather than copy or name elements?
bool is_arithmetic(Form form);
// Why a graph cannot be mutated; empty when it can.
std::string unsupported(const Graph& graph);

using Index = std::array<int64_t, kMaxRank>;
// Position in row-major order, and back.
int64_t flat(const Index& index, const std::vector<int64_t>& shape);
Index unflat(int64_t position, const std::vector<int64_t>& shape);

// The place on an axis of the operand that a tap meets for place `at` of the result; nothing
// outside.
inline std::optional<int64_t> place_of_tap(const WindowAxis& a, int64_t at, int64_t tap,
                                           bool transposed) {
  int64_t place =
      transposed ? at + a.low - tap * a.dilation : at * a.stride + tap * a.dilation - a.low;
  if (place < 0 || (transposed && place % a.stride != 0)) return std::nullopt;
  if (transposed) place /= a.stride;
  return place < a.in ? std::optional(place) : std::nullopt;
}

// Where an element of the result of an operator that copies comes from: `from`, its place in the
// result, becomes that in the operand `x`. False for a zero that a pad adds. `shape_of`: extents of
// tensors.
template <class ShapeOf>
bool origin(const Op& op, Form form, ShapeOf shape_of, TensorId& x, Index& from) {
  x = op.inputs[0];
  const std::vector<int64_t>& shape = shape_of(x);
  const Index at = from;
  switch (form) {
  case Form::Transpose:
    for (size_t d = 0; d < shape.size(); d++)
      from[size_t(std::get<PermAttrs>(op.attrs).perm[d])] = at[d];
    break;
  case Form::Reshape: from = unflat(flat(at, shape_of(op.result())), shape); break;
  case Form::Broadcast: {
    const size_t lead = shape_of(op.result()).size() - shape.size();
    for (size_t d = 0; d < shape.size(); d++) from[d] = shape[d] == 1 ? 0 : at[lead + d];
    break;
  }
  case Form::Repeat:
    for (size_t d = 0; d < shape.size(); d++) from[d] = at[d] % shape[d];
    break;
  case Form::Concat: {
    const size_t axis = size_t(std::get<AxisAttrs>(op.attrs).axis);
    size_t part = 0;
    while (from[axis] >= shape_of(op.inputs[part])[axis])
      from[axis] -= shape_of(op.inputs[part++])[axis];
    x = op.inputs[part];
    break;
  }
  case Form::Stack: {
    const size_t axis = size_t(std::get<AxisAttrs>(op.attrs).axis);
    for (size_t d = axis; d < shape.size(); d++) from[d] = at[d + 1];
    x = op.inputs[size_t(at[axis])];
    break;
  }
  case Form::Slice: {
    const auto& a = std::get<SliceAttrs>(op.attrs);
    for (size_t d = 0; d < shape.size(); d++) from[d] = a.starts[d] + at[d] * a.steps[d];
    break;
  }
  default:
    for (size_t d = 0; d < shape.size(); d++) {
      from[d] = at[d] - std::get<PadAttrs>(op.attrs).low[d];
      if (from[d] < 0 || from[d] >= shape[d]) return false;
    }
  }
  return true;
}

}  // namespace tessera::mutants
