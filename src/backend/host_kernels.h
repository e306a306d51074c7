// CUDA kernels as code of this machine: the system's compiler takes their source with the device
// functions' host bodies (cuda/device/host.cuh). What the emulator runs, and what the stand-in for
// a driver loads instead of a GPU's binary.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cpu/compile.h"

namespace tessera {

// What the code exports for kernel NAME, as tessera_entry_NAME. It also exports tessera_bind, which
// takes emulator_api() and must be called first.
struct HostKernel {
  void (*call)(void** parameters);  // what a thread does; pointers to the parameters
  int parameters;
  const int* bytes;  // of each parameter
  int grain;         // smallest_element of the source
};

// Bytes of the smallest elements that CUDA source moves, 1 or 2: what races are looked for in
// (EmulatedLaunch::grain).
int smallest_element(const std::string& source);

// `source`, which includes "device.cuh" and defines these kernels. `optimize`: the compiler's
// level. Throws what compile_and_load does.
std::unique_ptr<Library> load_host_kernels(const std::string& source,
                                           const std::vector<std::string>& kernels, Cache& cache,
                                           int optimize = 1);
// The same as the bytes of a shared library.
std::string host_kernels(const std::string& source, const std::vector<std::string>& kernels,
                         Cache& cache);

}  // namespace tessera
