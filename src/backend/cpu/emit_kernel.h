// Code for one kernel: a block graph becomes one function over a range of blocks,
// `void NAME(void** args, long begin, long end, char* scratch)`.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/dot.h"
#include "backend/cpu/image_kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/panel_kernels.h"
#include "backend/cpu/stream_kernels.h"
#include "backend/cpu/tile_text.h"
#include "backend/cpu/whole.h"
#include "backend/nest.h"
#include "backend/values.h"

namespace tessera {

// Elements per unit of work: at most some microseconds, so that sharing them out costs little.
inline constexpr int64_t kUnitElements = 8192;

// What the kernels of one translation unit share.
struct UnitContext {
  CpuIsa isa = CpuIsa::Generic;
  bool rounds = false;  // see KernelValues
  std::set<std::string> prelude;
  SharedText shared;
};

struct KernelText {
  std::string text;
  int64_t units = 1;          // of work: blocks, or pieces of the results
  int64_t scratch_bytes = 0;  // per worker
  // What all units share is computed once per run by NAME_once, over so many units, into a
  // workspace of this size, whose address is the argument after the results. 0: no such function.
  int64_t workspace_bytes = 0, first_units = 1;
  int64_t together = 1;  // neighbouring units that one call had better run
};

// `layouts`: of the operands, as far as they are not row-major.
KernelText emit_kernel(const std::string& name, const Graph& block_graph, UnitContext& unit,
                       const std::vector<Layout>& layouts = {});

// A kernel-level operator other than products and reductions: every output element is an
// expression of operands in memory. One unit of work is a slab of the output.
// `layouts`: of the operands, as far as they are views. None of those that rearranges(op.kind)
// says: they take their operands as one run of elements, or by tiles.
KernelText emit_elementwise(const std::string& name, const Graph& graph, const Op& op,
                            UnitContext& unit, const std::vector<Layout>& layouts = {});

// A kernel of which whole_kernel() is known: blocks and loops as suit arrays that stay in the
// cache. One unit of work is a slab of the results. Null where there is nothing to gain.
std::optional<KernelText> emit_whole(const std::string& name, const WholeKernel& whole,
                                     const std::vector<DType>& argument_dtypes, UnitContext& unit);

// Elements of results of the same extents, each at its argument: the loops of all that is
// elementwise. `operands`: how many arguments are read.
KernelText emit_map(const std::string& name, const KernelValues& values,
                    const std::vector<int64_t>& extents,
                    const std::vector<std::pair<int, int>>& results,
                    const std::vector<DType>& argument_dtypes, size_t operands, UnitContext& unit);

// The beginning of a generated function; with its arguments by type, operands that are views from
// their first element on, and a workspace if it has a type.
void open_kernel(Code& code, const std::string& name);
void open_function(Code& code, const std::string& name, const std::vector<DType>& argument_dtypes,
                   size_t operands, const std::vector<Layout>& layouts,
                   const std::string& workspace_type = "");

}  // namespace tessera
