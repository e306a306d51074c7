// Products by cuBLASLt, loaded when it is first asked for: what a program calls instead of a kernel
// of its own where the library is faster.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "backend/cuda/driver.h"
#include "ir/types.h"

namespace tessera {

// out[b] = epilogue(left[b]·right[b] + bias): left rows × depth, right depth × columns, all
// row-major and of one dtype; bias has `columns` elements. Sums are f32 (f64 for f64).
struct LibraryProduct {
  enum class Epilogue : uint8_t { None, Relu, GeluTanh };
  DType dtype = DType::F16;
  int64_t batch = 1, rows = 1, columns = 1, depth = 1;
  bool left_batched = false, right_batched = false;  // others are used for every b
  bool bias = false;
  Epilogue epilogue = Epilogue::None;
  bool tf32 = false;  // of f32: factors rounded to 10 bits of fraction
  std::string str() const;
};

// "12.8"; throws Error{ToolMissing} telling the pip command where cuBLASLt is not found.
std::string cublaslt_version();
// For tests: another library from now on; empty for the system's again.
void use_cublaslt(const std::string& path);

// One product, ready to be put on streams of a device. Safe to use from several threads.
class LibraryCallable {
 public:
  // Asks the library for its best way that takes at most `most_workspace` bytes. Throws Error:
  // ToolMissing, Unsupported where the library has no way for this product.
  LibraryCallable(std::shared_ptr<CudaContext> context, const LibraryProduct& product,
                  int64_t most_workspace);
  ~LibraryCallable();
  LibraryCallable(const LibraryCallable&) = delete;
  LibraryCallable& operator=(const LibraryCallable&) = delete;

  int64_t workspace_bytes() const;
  // Addresses are multiples of 16; `bias` is 0 where the product has none. Neither allocates nor
  // waits, so that it can be captured.
  void run(CudaAddress left, CudaAddress right, CudaAddress bias, CudaAddress out,
           CudaAddress workspace, CudaStream stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
