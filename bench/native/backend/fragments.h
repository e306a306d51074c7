// What threads of a device hold after the device functions that move and multiply matrices, to be
// compared with what the emulator says.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cache.h"

namespace tessera {

// A kernel of one block that writes `words` words: NAME(const int* in, unsigned* out), with
// `box_columns` also a TensorMap of `in`, as 13 rows of 72 elements of 16 bits in boxes of 16 rows.
struct FragmentKernel {
  std::string name;
  int threads = 32;
  int words = 0;
  int box_columns = 0;
  bool swizzled = false;
};

// Compiles `source` for device `ordinal` and runs each kernel with 32 KB of shared memory and, as
// `in`, the numbers 0, 1, 2 … of 16 bits. Throws as compile_cuda_kernels and CudaModule do.
std::vector<std::vector<uint32_t>> read_fragments(const std::string& source,
                                                  const std::vector<FragmentKernel>& kernels,
                                                  int ordinal, Cache& cache);

}  // namespace tessera
