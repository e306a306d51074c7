// CUDA kernels as code of this machine: the system's compiler takes their source with the device
// functions' host bodies (cuda/device/host.cuh). What the stand-in for a driver loads instead of a
// GPU's binary.
#pragma once
#include <string>
#include <vector>

#include "backend/cache.h"

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

// A shared library, as bytes, of `source`, which includes "device.cuh" and defines these kernels.
// Throws what compile_and_load does.
std::string host_kernels(const std::string& source, const std::vector<std::string>& kernels,
                         Cache& cache);

}  // namespace tessera
