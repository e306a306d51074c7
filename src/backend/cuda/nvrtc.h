// NVIDIA's run-time compiler, loaded when it is first asked for: nothing of CUDA is needed to build
// Tessera, and no GPU to compile for one.
#pragma once
#include <string>
#include <vector>

namespace tessera {

// What the compiler says of one kernel for one architecture.
struct CudaBinary {
  std::string kernel;
  int registers = 0;      // of a thread
  int spilled_bytes = 0;  // stores and loads, of a thread
  int stack_bytes = 0;    // of a thread
  int static_shared_bytes = 0;
  // Why ptxas makes each asynchronous product (wgmma) wait for the one before; empty where it does
  // not, as is wanted.
  std::string serialized;
};

// One binary, and each kernel's report.
struct CudaObject {
  std::string cubin;
  std::vector<CudaBinary> kernels;  // in the order of the names
};

// Compiles CUDA C++ that may include "device.cuh". `arch`: "sm_80", "sm_90a", … Throws
// Error(ToolMissing) where NVRTC is not found, Error(Unsupported) where it does not know the
// architecture, Error(Internal) with the compiler's log where it refuses the source.
CudaObject compile_cuda_kernels(const std::string& source, const std::vector<std::string>& kernels,
                                const std::string& arch);

// "13.0"; throws as above. The same as a number: 1000 · major + 10 · minor.
std::string nvrtc_version();
int nvrtc_version_number();
// Folders to look into for CUDA's libraries, before the system's: those of Python's packages.
void set_cuda_folders(std::vector<std::string> folders);
// Where a library of one of these names may be, for base/library.h; `path`, where given, is it.
std::vector<std::string> cuda_places(const std::string& path,
                                     const std::vector<std::string>& names);

// The text of a device header: "device.cuh", "ptx.cuh", "host.cuh", "api.h",
// "tiles.cuh".
const std::string& device_header(const std::string& name);

}  // namespace tessera
