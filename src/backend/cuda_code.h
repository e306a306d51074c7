// Code of a kernel graph for a GPU: emitted, compiled by NVRTC, and loaded where there is a device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cuda/cuda_module.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/nvrtc.h"
#include "cost/target.h"

namespace tessera {

struct CudaCodeOptions {
  CudaArch arch;
  Target target;  // limits of memory, and what decides about tiles
  PlanOptions plan;
  std::shared_ptr<CudaContext> context;  // null: no device, the code is not loaded
};

struct CudaCode {
  CudaProgram program;
  std::vector<CudaBinary> kernels;     // what the compiler reports; empty for a stand-in
  std::string image;                   // the binary
  std::shared_ptr<CudaModule> module;  // null: no device
  bool from_cache = false;
};

// What the model of the target says about a program's kernels.
struct CudaChoice {
  LibraryCalls calls;             // where a call is cheaper and, of a device, the library has a way
  std::vector<KernelJoin> joins;  // where one launch for two is
};
// The joins of a program of which libraries do nothing.
std::vector<KernelJoin> kernel_joins(const Graph& graph, Target target);
CudaChoice cuda_choice(const Graph& graph, const Target& target,
                       const std::shared_ptr<CudaContext>& context);

// Without clusters where the device has no room for them. Throws Error: what emit_cuda, NVRTC and
// CudaModule throw.
std::shared_ptr<CudaCode> make_cuda_code(const Graph& graph, Cache& cache,
                                         const CudaCodeOptions& options);

// "sm_90a" to the machine that the description h100 tells of: the shared memory of a block, the
// blocks of a cluster and, of a device, the number of its multiprocessors and the libraries that
// are there.
Target fitted_target(Target description, const CudaArch& arch, const CudaDevice* device);

}  // namespace tessera
