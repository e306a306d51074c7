// Is a body that a person wrote what its def says? Nothing can prove that, so it is run: at several
// sizes, settings and element types, on ordinary and special values, beside the interpreter, in a
// process of its own that may crash or hang.
#pragma once
#include <atomic>
#include <memory>

#include "backend/cuda/driver.h"
#include "backend/cuda/emit.h"
#include "backend/written.h"
#include "cost/target.h"

namespace tessera {

struct BodyCheckOptions {
  uint64_t seed = 1;
  int sizes = 3;          // different ones for each element type
  int settings = 4;       // at most so many at each
  double timeout_s = 10;  // processor time of one run of the code, at least 1
  CpuIsa isa = best_isa();
  // Of CUDA: what code is emitted for. Raw CUDA also needs the device, else it is only compiled.
  CudaArch arch;
  Target gpu;
  std::shared_ptr<CudaContext> context;
  const std::atomic<bool>* cancel = nullptr;
};

// Compiles and runs a body; what came of it is recorded, a refusal too. On a CPU first with every
// index checked and what parallel iterations store compared, then as it is used, its operands and
// its result between pages that may not be touched. CUDA with the device functions runs in the
// emulator. Throws Error: ToolMissing, Cancelled, Io, and BadInput where guards allow no sizes.
BodyRecord check_body(const patterns::Pattern&, size_t body, Cache& cache,
                      const BodyCheckOptions& options);

}  // namespace tessera
