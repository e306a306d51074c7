#include "backend/cuda/emit.h"

#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "backend/cuda/emit_joined.h"
#include "backend/cuda/flat.h"
#include "backend/cuda/nvrtc.h"
#include "backend/cuda/prelude.h"
#include "backend/cuda/windows.h"
#include "backend/jumps.h"
#include "backend/lower.h"
#include "backend/written.h"
#include "base/check.h"
#include "base/error.h"
#include "cost/slices.h"
#include "ir/build.h"
#include "ir/text.h"
#include "ir/window.h"

namespace tessera {
namespace {

// How plain products and reductions are split: enough blocks for all multiprocessors, tiles of a
// size that tensor cores keep busy.
Lowering gpu_lowering(const Target& target) {
  Lowering lowering;
  lowering.block_elements = 8192;
  const int64_t cores = std::max(1, target.cores);
  lowering.split = [cores](DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k) {
    const int64_t wide = size_in_bytes(dtype) == 2 ? 128 : 64;
    ProductTiles t;
    int64_t rows = std::min<int64_t>(m, wide), columns = std::min<int64_t>(n, wide);
    while (columns > 32 && batch * ceil_div(m, rows) * ceil_div(n, columns) < cores) columns /= 2;
    while (rows > 32 && batch * ceil_div(m, rows) * ceil_div(n, columns) < cores) rows /= 2;
    t.row_blocks = ceil_div(m, rows);
    t.column_blocks = ceil_div(n, columns);
    // Few rows: the weights are all there is to wait for, so barriers are few and tiles long.
    t.iterations = ceil_div(k, size_in_bytes(dtype) != 2 ? 32 : m <= 32 ? 128 : 64);
    return t;
  };
  return lowering;
}

// Columns of windows take so much intermediate memory at most; frameworks let cuDNN have as much.
constexpr int64_t kMostColumnBytes = int64_t{256} << 20;

// Stands for a function's name until it is known whether there is one with the same text.
const std::string kUnnamed = "k@";

// What fits in a block besides what the driver keeps for itself.
int64_t shared_limit(const CudaArch& arch, const Target& target) {
  const int64_t most = arch.shared_bytes();
  return target.kind == TargetKind::Gpu ? std::min(most, target.block_bytes()) : most;
}

EmitLimits emit_limits(const CudaArch& arch, const Target& target) {
  EmitLimits limits;
  limits.block = block_limits(arch, target);
  limits.arch = arch;
  limits.cores = std::max(1, target.cores);
  limits.tf32 = target.tf32;
  limits.cluster = std::min(arch.largest_cluster(), target.sm.cluster);
  return limits;
}

}  // namespace

CudaProgram emit_cuda(const Graph& graph, const CudaArch& arch, const PlanOptions& options,
                      const Target& target, const LibraryCalls& calls,
                      const std::vector<KernelJoin>& joins) {
  return emit_written_program(graph, arch, options, target, calls, joins, {});
}

CudaProgram emit_written_program(const Graph& graph, const CudaArch& arch,
                                 const PlanOptions& options, const Target& target,
                                 const LibraryCalls& calls, const std::vector<KernelJoin>& joins,
                                 const WrittenSources& written, bool watched) {
  require_runnable(graph);
  PlanBuilder plan(graph, options);
  const std::vector<std::string> lines = print_ops(graph);
  const Lowering lowering = gpu_lowering(target);
  const EmitLimits limits = emit_limits(arch, target);
  CudaProgram program;
  program.arch = arch;
  std::set<std::string> prelude;
  std::string kernels;
  std::map<std::string, std::string> name_of;  // functions by their text
  std::vector<CudaKernel> codes;
  int tickets = 0;  // of the kernels so far
  const auto add_kernel = [&](const BlockText& text, const std::string& line, Task task) {
    CudaKernel kernel;
    kernel.grid = text.grid;
    kernel.threads = text.threads;
    kernel.shared_bytes = text.shared_bytes;
    kernel.sum_registers = text.sum_registers;
    kernel.maps = text.maps;
    kernel.cluster = text.cluster;
    kernel.tickets = text.tickets;
    kernel.first_ticket = tickets;
    tickets += text.tickets;
    kernel.arguments = task.reads;
    kernel.arguments.insert(kernel.arguments.end(), task.writes.begin(), task.writes.end());
    kernels += "\n// " + line + "\n";
    const auto [it, fresh] = name_of.emplace(text.text, "k" + std::to_string(name_of.size()));
    kernel.name = it->second;
    if (fresh) {
      std::string named = text.text;
      for (size_t at; (at = named.find(kUnnamed)) != std::string::npos;)
        named.replace(at, kUnnamed.size(), kernel.name);
      kernels += "// " + std::to_string(text.grid[0]) + "×" + std::to_string(text.grid[1]) + "×" +
                 std::to_string(text.grid[2]) + " blocks of " + std::to_string(text.threads) +
                 " threads, " + std::to_string(text.shared_bytes) + " bytes of shared memory\n" +
                 named;
    } else {
      kernels += "// the same code as " + kernel.name + "\n";
    }
    task.code = int(codes.size());
    plan.add(std::move(task));
    codes.push_back(std::move(kernel));
  };
  // A kernel that puts zeros around a convolution's operand: the slot of what it writes.
  const auto pad_first = [&](OpId id, const LibraryCall& call, const Task& whole) {
    const int from = whole.reads[size_t(call.left)];
    const Type padded = padded_type(graph, id, call);
    const TensorId x = (call.reads.empty() ? graph.op(id).inputs : call.reads)[size_t(call.left)];
    PadAttrs attrs;
    attrs.low.assign(padded.shape.size(), 0);
    attrs.high = attrs.low;
    OpId core = id;
    for (OpId part : call.parts)
      if (is_convolution(graph.op(part).kind)) core = part;
    const ConvAttrs& around = graph.attrs<ConvAttrs>(graph.op(core));
    std::ranges::copy(around.low, attrs.low.begin() + 2);
    std::ranges::copy(around.high, attrs.high.begin() + 2);
    Graph pad;
    const TensorId in = pad.add_input(graph.type(x), "x");
    pad.set_outputs({build::pad(pad, in, attrs, "padded")});
    Task task;
    task.kind = TaskKind::Stage;
    task.op = id;
    task.once = plan.constant(x);
    task.reads = {from};
    task.layouts.resize(1);
    task.writes = {plan.workspace("padded", padded.bytes())};
    const int to = task.writes[0];
    add_kernel(emit_flat(kUnnamed, pad, pad.ops().back(), prelude), print_ops(pad).back(),
               std::move(task));
    return to;
  };
  // A kernel that lays the windows of a convolution's operand out: the slot of what it writes.
  const auto lay_out_columns = [&](OpId id, int64_t bytes, const Task& whole) {
    Task task;
    task.kind = TaskKind::Stage;
    task.op = id;
    task.once = plan.constant(graph.op(id).inputs[0]);
    task.reads = {whole.reads[0]};
    task.layouts.resize(1);
    task.writes = {plan.workspace("columns", bytes)};
    const int to = task.writes[0];
    add_kernel(emit_columns(kUnnamed, graph, graph.op(id), prelude),
               "the columns of " + lines[id.index], std::move(task));
    return to;
  };
  std::set<uint32_t> done_elsewhere;  // operators that a call at a later one does too
  for (const auto& [op, call] : calls)
    for (OpId part : call.parts) done_elsewhere.insert(part.index);
  const std::set<OpId> rounded = before_jumps(graph);
  const auto values_of = [&](OpId id, const Graph& block, const std::vector<Layout>& layouts = {}) {
    KernelValues values = kernel_values(block, layouts);
    values.rounds = rounded.count(id) > 0;
    return values;
  };
  // Both kernels of a join as one task.
  const auto add_joined = [&](const KernelJoin& join) {
    const Op &a = graph.op(join.first), &b = graph.op(join.second);
    Task task;
    task.kind = TaskKind::Stage;
    task.op = join.second;
    task.once = plan.once(join.second);
    std::vector<int> places(b.inputs.size(), -1);
    for (TensorId t : a.inputs) task.reads.push_back(plan.slot(t));
    for (size_t i = 0; i < b.inputs.size(); ++i) {
      for (uint32_t r = 0; r < a.num_results; ++r)
        if (a.result(r) == b.inputs[i]) places[i] = int(r);
      if (places[i] < 0) task.reads.push_back(plan.slot(b.inputs[i]));
    }
    task.layouts.resize(task.reads.size());
    for (const Op* op : {&b, &a})
      for (uint32_t r = 0; r < op->num_results; ++r)
        task.writes.push_back(plan.slot(op->result(r)));
    add_kernel(emit_joined(kUnnamed, join, values_of(join.first, graph.body(a)),
                           values_of(join.second, graph.body(b)), places, limits, prelude),
               lines[join.first.index] + "\n// and, in the same launch, " +
                   lines[join.second.index],
               std::move(task));
  };
  for (const KernelJoin& join : joins) {
    CHECK(plan.once(join.first) == plan.once(join.second)) << "a join of different times";
    done_elsewhere.insert(join.first.index);
  }
  const auto joined = [&](OpId id) {
    return std::ranges::any_of(joins, [&](const KernelJoin& j) { return j.second == id; });
  };
  // Whether code of an operator sees its operand as it is.
  const auto same_shape = [&](const Op& op, size_t operand) {
    const auto block = is_kernel(op.kind) ? std::nullopt : lower_to_block(graph, op, lowering);
    return !block ||
           block->type(block->inputs()[operand]).shape == graph.type(op.inputs[operand]).shape;
  };
  // Slices that operators read where they lie, by operator and operand, and those that nobody reads
  // in another way.
  std::map<uint32_t, std::vector<Layout>> views;
  std::set<uint32_t> unread;
  std::vector<bool> read(graph.tensors().size(), false);  // as an array
  for (TensorId t : graph.outputs()) read[plan.holder(t).index] = true;
  for (auto at = plan.ops().rbegin(); at != plan.ops().rend(); ++at) {
    const Op& op = graph.op(*at);
    const bool own =
        calls.count(at->index) == 0 && done_elsewhere.count(at->index) == 0 && !joined(*at);
    if (op.kind == OpKind::Slice && own && !plan.once(*at) && !read[op.result().index]) {
      unread.insert(at->index);
      continue;
    }
    std::vector<Layout>& layouts = views[at->index];
    layouts.resize(op.inputs.size());
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      TensorId t = op.inputs[i];
      if (own && !plan.once(graph.tensor(t).producer) && reads_slice_in_place(graph, *at, i) &&
          same_shape(op, i)) {
        const std::optional<SliceView> view = slice_view(graph, t);
        layouts[i] = view->layout;
        t = view->whole;
      }
      read[plan.holder(t).index] = true;
    }
  }
  for (OpId id : plan.ops()) {
    const Op& op = graph.op(id);
    if (done_elsewhere.count(id.index) || unread.count(id.index)) continue;
    if (const auto join =
            std::ranges::find_if(joins, [&](const KernelJoin& j) { return j.second == id; });
        join != joins.end()) {
      add_joined(*join);
      continue;
    }
    if (is_opaque(op.kind))
      throw Error(ErrorKind::Unsupported,
                  "opaque operator '" + std::get<OpaqueAttrs>(op.attrs).function + "' has no code");
    const auto call = calls.find(id.index);
    std::optional<Graph> lowered;
    std::optional<ConvolutionProduct> convolution;
    if (!is_kernel(op.kind) && call == calls.end()) {
      lowered = lower_to_block(graph, op, lowering);
      convolution = convolution_as_product(graph, op, lowering, kMostColumnBytes);
    }
    Task task;
    task.op = id;
    task.once = plan.once(id);
    const bool region = call != calls.end() && !call->second.reads.empty();
    if (region || (call != calls.end() && call->second.padded)) task.kind = TaskKind::Stage;
    for (TensorId t : region ? call->second.reads : op.inputs) task.reads.push_back(plan.slot(t));
    const std::vector<Layout>& layouts = views[id.index];
    for (size_t i = 0; i < layouts.size() && !region; ++i)
      if (layouts[i].view()) task.reads[i] = plan.slot(op.inputs[i], layouts[i]);
    if (call != calls.end() && call->second.padded)
      task.reads[size_t(call->second.left)] = pad_first(id, call->second, task);
    task.layouts = layouts;
    task.layouts.resize(task.reads.size());
    for (uint32_t r = 0; r < op.num_results; ++r) task.writes.push_back(plan.slot(op.result(r)));
    if (call != calls.end()) {
      CudaKernel made;
      made.name = "library";
      made.arguments = task.reads;
      made.arguments.insert(made.arguments.end(), task.writes.begin(), task.writes.end());
      made.call = call->second;
      kernels += "\n// " + lines[id.index] + "\n// No kernel: " + call->second.library() +
                 " does it, by one call (" + call->second.str() + ").\n";
      task.code = int(codes.size());
      plan.add(std::move(task));
      codes.push_back(std::move(made));
      continue;
    }
    if (convolution) {
      task.kind = TaskKind::Stage;
      task.reads = {task.reads[1], convolution->is_view
                                       ? task.reads[0]
                                       : lay_out_columns(id, convolution->columns.bytes(), task)};
      lowered = std::move(convolution->block);
    }
    const auto own = written_kernel(graph, op);
    add_kernel(own && written.count(own->source)
                   ? emit_written_cuda(kUnnamed, graph.body(op), *own, written, prelude, watched)
               : is_kernel(op.kind) || lowered
                   ? BlockEmitter(values_of(id, lowered ? *lowered : graph.body(op), layouts),
                                  limits, prelude)
                         .run(kUnnamed)
               : is_windowed(op.kind) ? emit_windows(kUnnamed, graph, op, prelude)
                                      : emit_flat(kUnnamed, graph, op, prelude, layouts),
               lines[id.index], std::move(task));
  }
  program.plan = plan.finish();
  for (const Task& task : program.plan.tasks) program.kernels.push_back(codes[size_t(task.code)]);
  program.source = "// Generated by Tessera for " + arch.str() + ": graph " + graph.name() +
                   "\n#include \"device.cuh\"\n" + cuda_prelude(prelude) + kernels;
  program.caller = cuda_caller(graph, program);
  return program;
}

int64_t CudaProgram::ticket_bytes() const {
  int64_t most = 0;
  for (const CudaKernel& k : kernels) most = std::max<int64_t>(most, k.first_ticket + k.tickets);
  return most * int64_t(sizeof(unsigned));
}

BlockLimits block_limits(const CudaArch& arch, const Target& target) {
  BlockLimits limits;
  limits.shared_bytes = shared_limit(arch, target);
  limits.shared_bytes_sm = limits.shared_bytes + (int64_t{1} << 10);
  if (target.banks > 0) limits.banks = target.banks;
  limits.matrix_stores = arch.major >= 9;
  // Twice what latency times bandwidth is of a multiprocessor (25 KB on H200, 11 KB on A100), so
  // that a stage that is being used up and late boxes do not show.
  limits.most_stages = 16;
  limits.bytes_in_flight = arch.major >= 9 ? int64_t{56} << 10 : int64_t{28} << 10;
  return limits;
}

std::vector<DescribedBlock> describe_cuda(const Graph& graph, const CudaArch& arch,
                                          const Target& target) {
  require_runnable(graph);
  PlanBuilder plan(graph, {});
  const Lowering lowering = gpu_lowering(target);
  const EmitLimits limits = emit_limits(arch, target);
  std::vector<DescribedBlock> out;
  for (OpId id : plan.ops()) {
    const Op& op = graph.op(id);
    std::optional<Graph> lowered;
    if (is_opaque(op.kind)) continue;
    if (!is_kernel(op.kind)) lowered = lower_to_block(graph, op, lowering);
    if (!is_kernel(op.kind) && !lowered) continue;
    std::set<std::string> prelude;
    out.push_back(BlockEmitter(kernel_values(lowered ? *lowered : graph.body(op)), limits, prelude)
                      .describe());
  }
  return out;
}

std::string standalone_source(const CudaProgram& program) {
  const auto without_includes = [](const std::string& text) {
    std::string out;
    for (size_t from = 0; from < text.size();) {
      const size_t to = std::min(text.find('\n', from), text.size() - 1);
      const std::string line = text.substr(from, to - from + 1);
      if (line.rfind("#include \"", 0) != 0 && line.rfind("#pragma once", 0) != 0) out += line;
      from = to + 1;
    }
    return out;
  };
  const std::string& device = device_header("device.cuh");
  const size_t bodies = device.find("#if defined(__CUDACC__)");
  return "#pragma nv_diag_suppress 177  // extents of tiles that a kernel does not need\n" +
         without_includes(device.substr(0, bodies)) + without_includes(device_header("ptx.cuh")) +
         "#define TS_WHERE\n#define TS_HERE\n#define TS_UNROLL _Pragma(\"unroll\")\n" +
         without_includes(device_header("tiles.cuh")) + without_includes(program.source) +
         "\n#if !defined(__CUDACC_RTC__)\n" + cuda_caller_runtime + program.caller + "#endif\n";
}

}  // namespace tessera
