// A whole kernel graph as CUDA source and the plan of tasks that run it. The source includes only
// "device.cuh" and is meant to be read; NVRTC compiles it (nvrtc.h), the emulator executes it
// (emulate_program.h), a driver launches it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/kernel_join.h"
#include "cost/library_call.h"
#include "cost/target.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace tessera {

// What code is generated for: "sm_80", or with what only this very architecture has, "sm_90a".
struct CudaArch {
  int major = 8, minor = 0;
  bool specific = false;
  std::string str() const;
  // Products of four warps (wgmma) and copies of boxes by the asynchronous proxy.
  bool wide_products() const { return major == 9 && specific; }
  // Shared memory of a block, in bytes (CUDA C++ Programming Guide, technical specifications per
  // compute capability); the driver keeps 1 KB more for each.
  int64_t shared_bytes() const;
  // Blocks of a thread-block cluster at most; 1: there are none. Beyond `portable_cluster` a kernel
  // has to ask for it (NVIDIA Hopper and Blackwell Tuning Guides).
  int largest_cluster() const;
  static constexpr int portable_cluster = 8;
  friend bool operator==(const CudaArch&, const CudaArch&) = default;
};
// Throws Error(BadInput) at anything but "sm_" and a number from 80 on, perhaps with an "a".
CudaArch parse_arch(const std::string& text);

// A box of a two-dimensional array that the asynchronous proxy copies (CUtensorMap). The array is
// an argument of the kernel or a slice of it, its leading axes merged into rows.
struct TensorMapSpec {
  int argument = 0;  // position in CudaKernel::arguments
  int element_bytes = 2;
  int64_t rows = 0, columns = 0;
  int64_t offset = 0, pitch = 0;  // of the first element, and from row to row; elements
  int box_rows = 0, box_columns = 0;
  // In shared memory pieces of 16 bytes are exchanged, as rows of 128, 64 or 32 bytes allow.
  bool swizzled = false;

  // CUtensorMapDataType (elements beyond the array are zeros, whatever their type) and
  // CUtensorMapSwizzle.
  int type() const { return element_bytes == 4 ? 2 : element_bytes - 1; }
  int swizzle() const {
    const int row_bytes = box_columns * element_bytes;
    return !swizzled ? 0 : row_bytes == 128 ? 3 : row_bytes == 64 ? 2 : 1;
  }
};

// How a kernel is launched.
struct CudaLaunch {
  std::array<int, 3> grid{1, 1, 1};
  int threads = 128;
  int64_t shared_bytes = 0;  // dynamic shared memory; above 48 KB it must be asked for
  std::vector<TensorMapSpec> maps;
  int tickets = 0;  // counters that its blocks take tickets from
  // Registers of a thread that hold sums of products from one iteration to the next: the least
  // that the compiler needs.
  int sum_registers = 0;
  int cluster = 1;       // blocks of one of its clusters
  int64_t barriers = 0;  // of all threads of a block, in its life
};

// One launch, or the call of a library. Parameters: a pointer per argument, 16-byte aligned, then
// one to the tickets if it takes any, then the maps by value.
struct CudaKernel : CudaLaunch {
  std::string name;
  std::vector<int> arguments;  // slots of the plan: reads, then writes, then workspace
  // Tickets of the program's other kernels before its own. All are zero before and after every
  // launch, and no other memory shares theirs.
  int first_ticket = 0;
  // A library does it: there is no kernel, and of the above only `arguments` count.
  std::optional<LibraryCall> call;
};

struct CudaProgram {
  Plan plan;
  std::string source;
  std::string caller;               // the function that runs it, in a file of its own
  std::vector<CudaKernel> kernels;  // one per task of the plan
  CudaArch arch;
  int64_t ticket_bytes() const;
};

// What libraries do instead of kernels, by operator (OpId::index).
using LibraryCalls = std::map<uint32_t, LibraryCall>;

// A C++ function for nvcc that launches all kernels of `program`, made of `graph`, on a stream. It
// uses the class that `cuda_caller_runtime` (caller.cpp) is the text of.
std::string cuda_caller(const Graph& graph, const CudaProgram& program);
extern const char* const cuda_caller_runtime;

// The source with the device functions and the caller: a file that nvcc compiles by itself.
std::string standalone_source(const CudaProgram& program);

}  // namespace tessera
