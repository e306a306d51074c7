// Calls of NVIDIA's libraries (cuBLASLt, cuDNN), loaded when they are first asked for: what a
// program does instead of kernels of its own where a library is faster, or where there are none.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/driver.h"
#include "cost/library_call.h"

namespace tessera {

// "12.8"; "9.10.2". Throw Error{ToolMissing} telling what to install where the library is not
// found or too old.
std::string cublaslt_version();
std::string cudnn_version();
// Whether programs may call it here: it is found, and is one for the driver there is (a stand-in
// for the driver has no other than the one that tests give).
bool has_cublaslt();
bool has_cudnn();
// For tests: another library from now on; empty for the system's again.
void use_cublaslt(const std::string& path);
void use_cudnn(const std::string& path);

// One call, ready to be put on streams of a device. Safe to use from several threads.
class LibraryCallable {
 public:
  virtual ~LibraryCallable() = default;
  LibraryCallable(const LibraryCallable&) = delete;
  LibraryCallable& operator=(const LibraryCallable&) = delete;

  virtual int64_t workspace_bytes() const = 0;
  // `operands` as the call counts them. Addresses are multiples of 16, that of the workspace of
  // 256. Neither allocates nor waits, so that it can be captured.
  virtual void run(std::span<const CudaAddress> operands, CudaAddress out, CudaAddress workspace,
                   CudaStream stream) const = 0;

 protected:
  LibraryCallable() = default;
};

// Workspace that a call may take on a device, in bytes.
int64_t most_library_bytes(const LibraryCall& call, const CudaDevice& device);

// Asks the library for its best way that takes at most `most_workspace` bytes. Throws Error:
// ToolMissing, Unsupported where the library has no way for this call.
std::unique_ptr<const LibraryCallable> make_library_callable(std::shared_ptr<CudaContext> context,
                                                             const LibraryCall& call,
                                                             int64_t most_workspace);

// The same with the most workspace it may take; one that is in use already is shared.
std::shared_ptr<const LibraryCallable> library_callable(const std::shared_ptr<CudaContext>& context,
                                                        const LibraryCall& call);
// Whether the library has a way for the call: false where the above throws Unsupported or
// ToolMissing. Asked once per device and call.
bool library_has_way(const std::shared_ptr<CudaContext>& context, const LibraryCall& call);

}  // namespace tessera
