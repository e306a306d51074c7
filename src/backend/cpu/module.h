// A compiled kernel graph: one native function per kernel, run in order on the kernel pool. The
// module owns its intermediate buffers; inputs and outputs are the caller's contiguous arrays.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/runtime.h"
#include "ir/graph.h"

namespace tessera {

struct ModuleOptions {
  CpuIsa isa = best_isa();
  KernelPool* pool = nullptr;  // null: KernelPool::shared()
  double compile_timeout_s = 120;
};

// Safe to run from several threads at once; each run in flight has its own intermediate buffers.
class Module {
 public:
  // Emits, compiles (or finds in `cache`) and loads. `graph` is a kernel graph with static shapes.
  // Throws Error: Unsupported for what cannot be emitted (it names the operator), and what
  // compile_and_load throws.
  static std::unique_ptr<Module> compile(const Graph& graph, Cache& cache,
                                         const ModuleOptions& options = {});
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Contiguous row-major data in the order and with the types of the graph's inputs and outputs;
  // f16 and bf16 as 16-bit words, bool as bytes 0 and 1. Outputs must not overlap anything.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs) const;

  const std::vector<Type>& input_types() const;
  const std::vector<Type>& output_types() const;
  const std::string& source() const;
  // Bytes of intermediate tensors between kernels, and the plan behind them as text.
  int64_t workspace_bytes() const;
  const std::string& plan_text() const;
  bool from_cache() const;
  double compile_s() const;

 private:
  struct Impl;
  explicit Module(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// `x` rounded to f16 or bf16, as the 16-bit word that modules read and write.
uint16_t float_bits16(DType dtype, float x);

// The C++ source that `compile` would compile.
std::string emit_source(const Graph& graph, CpuIsa isa);

}  // namespace tessera
