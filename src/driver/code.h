// Compiled code of one graph for the target of a session, and how fast it is.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/module.h"
#include "backend/cuda_code.h"
#include "cost/gpu_model.h"

namespace tessera {

struct CompiledCode {
  std::shared_ptr<Module> cpu;     // one of these two
  std::shared_ptr<CudaCode> cuda;  // loaded where its device is here
  double model_seconds = 0;        // that the target's cost model expects of the graph
  std::vector<GpuTimes> modelled;  // of code for a GPU: its kernels by the model without scales

  explicit operator bool() const { return cpu != nullptr || cuda != nullptr; }
  const std::string& source() const { return cpu ? cpu->source() : cuda->program.source; }
  // Whether it can run here.
  bool runs() const { return cpu != nullptr || cuda->module != nullptr; }
};

// Code that agrees with the interpreter of its graph; only Session::check makes one.
class CheckedCode {
 public:
  const Graph& graph() const { return graph_; }
  const CompiledCode& code() const { return code_; }

 private:
  friend class Session;
  CheckedCode(Graph graph, CompiledCode code) : graph_(std::move(graph)), code_(std::move(code)) {}
  Graph graph_;
  CompiledCode code_;
};

// Where a target's code runs. Targets of GPUs are "cuda" (the first device of this machine),
// "cuda:N" (its device N), "cuda:sm_90a" (an architecture) or a description such as "h100"; where
// no such device is here, code is made and compiled for it and cannot run.
struct CodePlace {
  bool gpu = false;
  CudaArch arch;
  std::string description;               // of a GPU: the name of its target
  std::shared_ptr<CudaContext> context;  // null: not here
  std::string why_not;                   // it is not here
  // The GPU, as its driver describes it; "" where it is not here.
  std::string device() const { return context ? context->device().str() : ""; }
};
CodePlace place_of(const std::string& target, const std::string& directory);

}  // namespace tessera
