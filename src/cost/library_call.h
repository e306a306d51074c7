// What a library could do in one call instead of a kernel of one's own: recognised in a kernel
// graph, priced by the machine (Machine::library), run by the back end (backend/cuda/library.h).
#pragma once
#include <optional>
#include <string>

#include "ir/graph.h"

namespace tessera {

// result[b] = epilogue(left[b]·right[b] + bias), all row-major, for every b of `batch`. Operands
// without a batch of their own are used for all.
struct LibraryCall {
  enum class Kind : uint8_t { Matmul };
  enum class Epilogue : uint8_t { None, Relu, GeluTanh };
  Kind kind = Kind::Matmul;
  DType dtype = DType::F16;  // of operands and result; sums are f32 (f64 for f64)
  int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  // Positions among the operator's operands; the left one is [rows, depth].
  int left = 0, right = 1;
  int bias = -1;  // [columns], or none
  bool left_batched = false, right_batched = false;
  Epilogue epilogue = Epilogue::None;
  bool tf32 = false;  // of f32: factors rounded to 10 bits of fraction

  double flops() const {
    return 2.0 * double(batch) * double(rows) * double(columns) * double(depth);
  }
  double bytes() const;  // read and written, each operand once
  const char* library() const { return "cuBLASLt"; }
  std::string str() const;  // "matmul f16 1x16x4096x4096 bias relu"
  friend bool operator==(const LibraryCall&, const LibraryCall&) = default;
};

// The call that computes what an operator of a kernel graph does, a plain matmul or a kernel whose
// blocks do nothing but one product over tiles of it; nothing where there is none.
std::optional<LibraryCall> library_call(const Graph& graph, OpId op);

}  // namespace tessera
