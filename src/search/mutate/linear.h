// The operators that mutants and what is mutated consist of: linear in each operand (or moving
// elements), so that every output element is a sum of products of input elements whose positions
// are affine in its own.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ir/graph.h"

namespace tessera::mutants {

enum class Form : uint8_t {
  Input,
  Const,
  Neg,
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

}  // namespace tessera::mutants
