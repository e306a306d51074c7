// A compiled kernel graph: native functions run in phases on the kernel pool. The module owns its
// intermediate buffers; inputs and outputs are the caller's contiguous arrays.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/runtime.h"
#include "backend/host_calls.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace tessera {

struct Program;
class Module;

struct ModuleOptions {
  CpuIsa isa = best_isa();
  KernelPool* pool = nullptr;  // null: KernelPool::shared(). It has to outlive the module.
  const std::atomic<bool>* cancel = nullptr;  // compiling stops soon after it is set
  PlanOptions plan;
  bool exact = false;  // see emit_program
};

// What a module computed and packed once from one set of weights. Belongs to that module; valid as
// long as the weights' memory is there and keeps its values.
class PreparedWeights {
 public:
  int64_t bytes() const { return int64_t(memory_.size()); }  // of its own
  double seconds() const { return seconds_; }                // that making it took

 private:
  friend class Module;
  AlignedBuffer memory_;
  std::vector<std::pair<size_t, void*>> addresses_;  // by slot of the plan
  std::map<std::string, void*> made_;  // arrays that others may use, by what they are made from
  // Whose arrays are among the addresses.
  std::vector<std::shared_ptr<const PreparedWeights>> used_;
  const Module* module_ = nullptr;
  double seconds_ = 0;
};

// Safe to run from several threads at once; each run in flight has its own intermediate buffers.
class Module {
 public:
  // Emits, compiles (or finds in `cache`) and loads. `graph` is a kernel graph with static shapes.
  // Throws Error: Unsupported for what cannot be emitted (it names the operator), and what
  // compile_and_load throws.
  static std::unique_ptr<Module> compile(const Graph& graph, Cache& cache,
                                         const ModuleOptions& options = {});
  // The same from a program that emit_program made of `graph`.
  static std::unique_ptr<Module> load(const Graph& graph, Program program, Cache& cache,
                                      const ModuleOptions& options = {});
  ~Module();

  // Contiguous row-major data in the order and with the types of the graph's inputs and outputs;
  // f16 and bf16 as 16-bit words, bool as bytes 0 and 1. Nothing is allocated but what the first
  // runs keep for later ones. Outputs must not overlap anything but an input that they may
  // overwrite.
  // `prepared`: from `prepare` with the same weights. Without, the weights are prepared for this
  // run alone, which is always right and slow.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs,
           const PreparedWeights* prepared = nullptr) const;
  // Whether output `output` may be given the very memory of input `input`, which has as many bytes:
  // every element of the input is read before, or where, the output is written.
  bool may_overwrite(size_t input, size_t output) const;
  // Computes and packs what depends on weights alone; of `inputs` only weights are read, others may
  // be null. `others`: of further programs, from the same weights at the same places; arrays that
  // are the same are theirs, and kept alive.
  std::shared_ptr<const PreparedWeights>
  prepare(std::span<const void* const> inputs,
          std::span<const std::shared_ptr<const PreparedWeights>> others = {}) const;
  // Positions of the inputs that are weights; empty if nothing is prepared from any.
  const std::vector<size_t>& weights() const;

  const std::vector<Type>& input_types() const;
  const std::vector<Type>& output_types() const;
  const Graph& graph() const;  // the program as it was compiled: fused
  const std::string& source() const;
  // What it has others compute, in the order of the calls; its source lacks these.
  std::vector<HostStep> host_steps() const;
  // How its results are to be compared with the interpreter's, see CheckOptions::normwise.
  double normwise() const;
  // Bytes of what is prepared per set of weights, and the plan behind it, also as text.
  int64_t prepared_bytes() const;
  const Plan& plan() const;
  const std::string& plan_text() const;

 private:
  struct Impl;
  explicit Module(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The C++ source that `compile` would compile.
std::string emit_source(const Graph& graph, CpuIsa isa);

}  // namespace tessera
