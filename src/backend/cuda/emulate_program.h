// Runs the very source that a GPU would run, on the host: compiled by the system's C++ compiler
// against the host bodies of the device functions, kernel after kernel in the emulator.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/emit.h"
#include "backend/cuda/emulator.h"
#include "backend/host_kernels.h"

namespace ts {
struct TensorMap;
}

namespace tessera {

// A map of the array at `data` as kernels in the emulator take it.
ts::TensorMap host_tensor_map(const TensorMapSpec& spec, void* data);

// Kernels of a source that includes "device.cuh", as functions of this machine.
class EmulatedKernels {
 public:
  // `optimize`: the compiler's level. Throws as EmulatedProgram does.
  EmulatedKernels(const std::string& source, const std::vector<std::string>& names,
                  int optimize = 1);
  // What a thread does: for emulate(). Arguments are buffers, and pointers to what is passed by
  // value.
  void call(const std::string& name, void** arguments) const;

 private:
  std::unique_ptr<Library> library_;
  std::map<std::string, const HostKernel*> kernels_;
};

class EmulatedProgram {
 public:
  // `graph` is what `program` was made of; what libraries do in it the interpreter does. Throws
  // Error: ToolMissing without a compiler, Internal where it refuses the source.
  EmulatedProgram(const Graph& graph, CudaProgram program);
  ~EmulatedProgram();

  // Contiguous row-major arrays in the order and with the types of the graph's inputs and outputs,
  // in memory format. `seed`: of the order in which threads run. The first fault ends the run.
  std::optional<KernelFault> run(std::span<const void* const> inputs,
                                 std::span<void* const> outputs, uint64_t seed = 1) const;
  const CudaProgram& program() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
