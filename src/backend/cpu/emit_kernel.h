// Code for one kernel: a block graph becomes one function over a range of blocks,
// `void NAME(void** args, long begin, long end, char* scratch)`.
#pragma once

#include <set>
#include <string>

#include "backend/cpu/dot.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/panel_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/stream_kernels.h"
#include "backend/values.h"

namespace tessera {

// What the kernels of one translation unit share.
struct UnitContext {
  CpuIsa isa = CpuIsa::Generic;
  std::set<std::string> prelude;
  MicroKernels micro_kernels;
  DotKernels dot_kernels;
  RowKernels row_kernels;
  PanelKernels panel_kernels;
  StreamKernels stream_kernels;
};

struct KernelText {
  std::string text;
  int64_t scratch_bytes = 0;  // per worker
  // What all blocks share is computed once per run by NAME_once(args, 0, 1, scratch) into a
  // workspace of this size, whose address is the argument after the results. 0: no such function.
  int64_t workspace_bytes = 0;
  int64_t together = 1;  // neighbouring blocks that one call had better run
};

// `layouts`: of the operands, as far as they are not row-major.
KernelText emit_kernel(const std::string& name, const Graph& block_graph, UnitContext& unit,
                       const std::vector<Layout>& layouts = {});

// A kernel-level operator other than products and reductions: every output element is an
// expression of operands in memory. One unit of work is a slab of the output.
struct ElementwiseText {
  std::string text;
  int64_t units = 1;
};
// `layouts`: of the operands, as far as they are views; only where reads_views(op.kind).
ElementwiseText emit_elementwise(const std::string& name, const Graph& graph, const Op& op,
                                 UnitContext& unit, const std::vector<Layout>& layouts = {});
bool reads_views(OpKind kind);

}  // namespace tessera
