// Calls of cuBLASLt, loaded when it is first asked for: what a program does instead of a kernel of
// its own where the library is faster.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/driver.h"
#include "cost/library_call.h"

namespace tessera {

// "12.8"; throws Error{ToolMissing} telling the pip command where cuBLASLt is not found.
std::string cublaslt_version();
// Whether programs may call it here: it is found, and is one for the driver there is (a stand-in
// for the driver has no other than the one that tests give).
bool has_cublaslt();
// For tests: another library from now on; empty for the system's again.
void use_cublaslt(const std::string& path);

// One call, ready to be put on streams of a device. Safe to use from several threads.
class LibraryCallable {
 public:
  // Asks the library for its best way that takes at most `most_workspace` bytes. Throws Error:
  // ToolMissing, Unsupported where the library has no way for this call.
  LibraryCallable(std::shared_ptr<CudaContext> context, const LibraryCall& call,
                  int64_t most_workspace);
  ~LibraryCallable();
  LibraryCallable(const LibraryCallable&) = delete;
  LibraryCallable& operator=(const LibraryCallable&) = delete;

  int64_t workspace_bytes() const;
  // `operands` as the call counts them. Addresses are multiples of 16, that of the workspace of
  // 256. Neither allocates nor waits, so that it can be captured.
  void run(std::span<const CudaAddress> operands, CudaAddress out, CudaAddress workspace,
           CudaStream stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
