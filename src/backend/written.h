// Kernels that a person wrote (ir/written.h): their texts, found by hash among those that `check`
// has recorded, with holes filled by generated expressions.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "backend/body_records.h"
#include "backend/cpu/emit_kernel.h"
#include "backend/cpu/onednn.h"
#include "backend/cuda/block_emitter.h"
#include "backend/cuda/emit.h"
#include "backend/host_calls.h"
#include "search/patterns/code.h"

namespace tessera {

// Patterns of one body, by their hash (patterns::source_of).
using WrittenSources = std::map<std::string, patterns::Pattern>;

// The same program with written kernels whose bodies are checked for this machine, the others by
// what they mean. What is kept is added to `sources`.
Graph with_checked_bodies(const Graph&, Cache& cache, bool cuda, CpuIsa isa,
                          const std::string& device, WrittenSources& sources);

// `watched`: also checks each index and notices what two parallel iterations store (body_check.h).
struct WrittenText {
  std::string text;
  int64_t units = 1;
};
// Throws Error(BadInput) where the kernel is not what the body's def says.
WrittenText emit_written(const std::string& name, const Graph& block, const WrittenKernel&,
                         const WrittenSources&, UnitContext& unit, bool watched = false);
BlockText emit_written_cuda(const std::string& name, const Graph& block, const WrittenKernel&,
                            const WrittenSources&, std::set<std::string>& prelude,
                            bool watched = false);

// The call that a body is, and which operands of the kernel it takes, in order. Throws like
// emit_written.
struct WrittenCall {
  HostStep step;                              // of the process
  std::shared_ptr<const OneDnnCall> product;  // or of oneDNN
  std::vector<size_t> operands;
};
bool is_call(const WrittenKernel&, const WrittenSources&);
// `packed` and `threads`: of products. Throws Error(Unsupported) where oneDNN cannot.
WrittenCall written_call(const Graph& block, const WrittenKernel&, const WrittenSources&,
                         bool packed = false, int threads = 1);
// Operands of the kernel whose addresses are multiples of so many bytes, as guards say.
std::vector<std::pair<size_t, int64_t>> written_alignment(const Graph& block, const WrittenKernel&,
                                                          const WrittenSources&);

// `target` tells how much shared memory a block may have and what decides about tiles. Throws
// Error{Unsupported} naming the operator, or the limit, that cannot be met.
// `joins`: kernels that are one launch with an earlier one (cost/kernel_join.h). Kernels of
// `sources` are those texts; `watched`: their indices are checked, for the emulator alone.
CudaProgram emit_cuda(const Graph& graph, const CudaArch& arch, const PlanOptions& options,
                      const Target& target, const LibraryCalls& calls = {},
                      const std::vector<KernelJoin>& joins = {}, const WrittenSources& sources = {},
                      bool watched = false);

}  // namespace tessera
