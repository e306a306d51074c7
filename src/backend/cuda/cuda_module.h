// A program for a GPU, loaded on a device: kernels launched, and libraries called, in the order of
// the plan on a stream of the caller's. The module owns intermediate memory; inputs and outputs are
// the caller's contiguous arrays on the device.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/driver.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/library.h"
#include "ir/graph.h"

namespace tessera {

// What a module computed once from one set of weights. Belongs to that module; valid as long as the
// weights keep their values.
class CudaWeights {
 public:
  int64_t bytes() const { return memory_.bytes(); }
  double seconds() const { return seconds_; }  // that making it took

 private:
  friend class CudaModule;
  DeviceMemory memory_;
  double seconds_ = 0;
};

// Safe to use from several threads. Calls on one stream run in order; each stream, and each capture
// of a CUDA graph, has intermediate memory of its own, made by the first call on it and kept as
// long as the module: later calls neither allocate nor wait.
class CudaModule {
 public:
  // `image`: the program's kernels as a binary for the device. Throws Error: Unsupported where the
  // device has not the architecture, the threads or the shared memory that a kernel takes,
  // OutOfMemory, Device, and what LibraryCallable throws.
  CudaModule(const Graph& graph, CudaProgram program, const std::string& image,
             std::shared_ptr<CudaContext> context);
  ~CudaModule();

  // Addresses in the order and with the types of the graph's inputs and outputs, in memory of the
  // module's device, multiples of 16; formats as Module::run (cpu/module.h). Returns when all is
  // launched; the first call waits until it is done, so that a kernel that fails is told here and
  // not by whoever uses the device next. Outputs must not overlap anything but an input that they
  // may overwrite.
  // `prepared`: from `prepare` with the same weights; without, the weights are prepared for this
  // call alone. Throws BadInput, Usage (in a capture, where something has to be done before),
  // OutOfMemory, Device.
  void run(std::span<const CudaAddress> inputs, std::span<const CudaAddress> outputs,
           const CudaWeights* prepared, CudaStream stream) const;
  // Computes what depends on weights alone, and waits for it; of `inputs` only weights are read.
  std::shared_ptr<const CudaWeights> prepare(std::span<const CudaAddress> inputs,
                                             CudaStream stream) const;
  // The same on arrays of the host: copied there and back. For checks (CompiledFunction).
  void run_on_host_arrays(std::span<const void* const> inputs,
                          std::span<void* const> outputs) const;

  bool may_overwrite(size_t input, size_t output) const;
  // Positions of the inputs that are weights; empty if nothing is prepared from any.
  const std::vector<size_t>& weights() const { return weights_; }
  const std::vector<Type>& input_types() const { return inputs_; }
  const std::vector<Type>& output_types() const { return outputs_; }
  const CudaProgram& program() const { return program_; }
  const std::shared_ptr<CudaContext>& context() const { return context_; }
  // Of intermediate tensors and libraries per stream, and of what is prepared per set of weights.
  int64_t workspace_bytes() const { return program_.plan.arena.bytes + library_bytes_; }
  int64_t prepared_bytes() const { return program_.plan.kept.bytes; }

 private:
  CudaModule(const Graph& graph, CudaProgram program, std::shared_ptr<CudaContext> context);
  struct Launch;
  struct Buffers;
  Buffers& buffers(CudaStream stream, uint64_t capture) const;
  // The capture that is under way on a stream; 0: none.
  uint64_t capture_of(CudaStream stream) const;
  void fill_addresses(Buffers& buffers, std::span<const CudaAddress> inputs,
                      std::span<const CudaAddress> outputs, CudaAddress kept) const;
  void launch(const std::vector<Launch>& list, Buffers& buffers, CudaStream stream) const;
  void require_array(CudaAddress address, const char* what, size_t index, const Type& type) const;
  std::shared_ptr<const CudaWeights> prepare_locked(std::span<const CudaAddress> inputs,
                                                    CudaStream stream) const;

  Graph graph_;
  CudaProgram program_;
  std::shared_ptr<CudaContext> context_;
  CudaHandle module_ = nullptr;
  std::vector<Type> inputs_, outputs_;
  std::vector<size_t> weights_;
  std::vector<Launch> once_, run_;
  int64_t library_bytes_ = 0;  // the most that a library's call needs besides its arrays
  std::vector<std::pair<size_t, DeviceMemory>> constants_;  // by slot
  std::shared_ptr<const CudaWeights> constants_only_;       // what no weight is needed for
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Buffers>> buffers_;
  mutable bool proven_ = false;  // a call came to its end
};

}  // namespace tessera
