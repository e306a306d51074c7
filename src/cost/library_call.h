// What a library could do in one call instead of kernels of one's own: recognised in a kernel
// graph, priced by the machine (Machine::library), run by the back end (backend/cuda/library.h).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/window.h"

namespace tessera {

// One of, all arrays row-major unless said otherwise:
//   Matmul       result[b] = epilogue(left[b]·right[b] + bias) for every b of `batch`; operands
//                without a batch of their own are used for all
//   Convolution  result = epilogue(conv(left, right) + bias), as ir/ops.def defines conv or, where
//                `transposed`, conv_transpose; `left` [batch, depth, …], the weights `right`,
//                the result [batch, columns, …]
//   Attention    result[b] = softmax(scale·left[b]·right[b / group]ᵀ + mask)·values[b / group] for
//                every b of batch·group; `left` [rows, depth], `right` [columns, depth], `values`
//                [columns, value_depth]
struct LibraryCall {
  enum class Kind : uint8_t { Matmul, Convolution, Attention };
  enum class Epilogue : uint8_t { None, Relu, GeluTanh };
  Kind kind = Kind::Matmul;
  DType dtype = DType::F16;  // of operands and result; sums are f32 (f64 for f64)
  int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  // Positions among the operands.
  int left = 0, right = 1, values = 2;
  int bias = -1;  // [columns], or none
  bool left_batched = false, right_batched = false;
  Epilogue epilogue = Epilogue::None;
  bool tf32 = false;  // of f32: factors rounded to 10 bits of fraction
  // Of convolutions.
  std::vector<WindowAxis> axes;
  int64_t groups = 1;
  bool transposed = false;
  // `left` has its zeros around it already, which `axes` count as its own elements.
  bool padded = false;
  // Of attention. The keys lie as [depth, columns] where `keys_in_columns`; where `causal`, query i
  // sees the keys up to i.
  int64_t group = 1, value_depth = 1;
  double scale = 1;
  bool keys_in_columns = false, causal = false;
  // Where the call does what several operators do: the others, ascending, and its operands. Empty:
  // the operator that it is recognised in, and that one's operands.
  std::vector<OpId> parts;
  std::vector<TensorId> reads;

  double bytes() const;  // read and written, each operand once
  const char* library() const { return kind == Kind::Matmul ? "cuBLASLt" : "cuDNN"; }
  // A library takes the same counts of zeros before and behind; where a convolution's differ in
  // effect, its operand is padded first, by a kernel, and this is the call after it.
  std::optional<LibraryCall> after_padding() const;
  // The line of a target that tells its rates: "matmul", "convolution", "attention".
  const char* rate() const;
  // "matmul f16 1x16x4096x4096 bias relu"
  std::string str() const;
  friend bool operator==(const LibraryCall&, const LibraryCall&) = default;
};

// The call that computes what an operator of a kernel graph does: a plain matmul, a convolution or
// a kernel whose blocks do nothing but one product over tiles of it; nothing where there is none.
std::optional<LibraryCall> library_call(const Graph& graph, OpId op);

// Calls that compute what an operator does together with operators before it, whose results nobody
// else reads: a product or a convolution with a bias and an activation, or attention. Those of most
// operators come first. `uses`: use_counts(graph).
std::vector<LibraryCall> library_regions(const Graph& graph, OpId op, const std::vector<int>& uses);

// The call of the same operators in `graph`, which has the operators of the graph that `call` is
// of, and perhaps other sizes; nothing where it is none there.
std::optional<LibraryCall> same_call(const Graph& graph, OpId op, const LibraryCall& call);

// The type of the first operand of a call whose operand is padded first.
Type padded_type(const Graph& graph, OpId op, const LibraryCall& call);

// The call's operators as a program of their own, whose inputs are the call's operands.
Graph call_program(const Graph& graph, OpId op, const LibraryCall& call);

}  // namespace tessera
