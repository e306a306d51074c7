#include "backend/cpu/emit.h"

#include <algorithm>
#include <set>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/emit_images.h"
#include "backend/cpu/emit_kernel.h"
#include "backend/cpu/emit_windows.h"
#include "backend/cpu/fuse.h"
#include "backend/cpu/lowering.h"
#include "backend/cpu/module.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/operands.h"
#include "backend/cpu/prelude.h"
#include "backend/fmt.h"
#include "backend/jumps.h"
#include "backend/lower.h"
#include "backend/written.h"
#include "base/error.h"
#include "ir/text.h"
#include "ir/window.h"
#include "plan/choose_layouts.h"

namespace tessera {
namespace {

// The layout of a block graph's argument for the tensor behind it, which may have its leading axes
// apart; both differ in the innermost two only.
Layout for_rank(const Layout& layout, size_t from, size_t to) {
  Layout out = layout;
  out.order.clear();
  for (size_t i = 0; i < to; ++i) {
    const int axis = i + 2 < to ? int(i) : layout.order[from - (to - i)];
    out.order.push_back(i + 2 < to ? axis : axis + int(to) - int(from));
  }
  return out;
}

// True when the layout only rearranges the innermost two axes.
bool innermost_two(const Layout& layout) {
  for (size_t i = 0; i + 2 < layout.order.size(); ++i)
    if (layout.order[i] != int(i)) return false;
  return layout.order.size() >= 2;
}

// Stands for a function's name until it is known whether there is one with the same text.
const std::string kUnnamed = "k@";

struct OpCode {
  OpId id;
  std::optional<Graph> lowered;  // block graph of an operator that has none of its own
  std::vector<Layout> block_layouts, layouts;  // by operand: as the block and the tensor see it
};

// What the kernels could read in panels, priced.
std::vector<LayoutDemand> demands(const Graph& graph, const PlanBuilder& plan,
                                  const std::vector<OpCode>& codes, CpuIsa isa,
                                  const Target& target) {
  std::vector<LayoutDemand> out;
  for (size_t c = 0; c < codes.size(); ++c) {
    const Op& op = graph.op(codes[c].id);
    const Graph* block = codes[c].lowered            ? &*codes[c].lowered
                         : op.kind == OpKind::Kernel ? &graph.body(op)
                                                     : nullptr;
    if (block == nullptr || written_kernel(graph, op)) continue;
    for (const PanelOperand& p : panel_operands(kernel_values(*block), isa)) {
      const size_t operand = size_t(p.operand);
      if (!innermost_two(p.layout)) continue;
      const Type& type = graph.type(op.inputs[operand]);
      if (type.rank() < 2) continue;
      // A pass over memory costs more than packing tiles in the cache, even several times.
      if (p.packed && !plan.constant(op.inputs[operand])) continue;
      LayoutDemand d;
      d.user = int(c);
      d.operand = p.operand;
      d.tensor = op.inputs[operand];
      const double compute = p.flops / (target.matmul_rate(type.dtype) * double(target.cores));
      const Layout panels =
          for_rank(p.layout, block->type(block->inputs()[operand]).shape.size(), type.shape.size());
      // What fills up the tiles' last panels is read as well.
      Layout together = panels;
      together.tile = 0;
      const std::vector<int64_t> shape = extents(type.shape);
      const double filled =
          double(layout_elements(panels, shape)) / double(layout_elements(together, shape));
      const double memory = double(type.bytes()) / target.levels[0].bandwidth;
      const double seconds = std::max(compute, memory);
      const double factor = p.copied ? target.copied_operand : target.strided_operand;
      // Kernels pack strips as they go: the more rows share that, the less copies are worth.
      const double sharing = plan.constant(d.tensor) ? 1 : std::max(1.0, p.row_panels / 2);
      const double excess = (factor - 1) / sharing;
      d.options.push_back({Layout{}, seconds * (1 + excess)});
      d.options.push_back({panels, std::max(compute, memory * filled)});
      out.push_back(std::move(d));
    }
  }
  return out;
}

// Slices are read where they lie, but by products, which want rows of neighbours. Layouts of
// operands that have none yet.
void read_through_slices(const Graph& graph, const PlanBuilder& plan, std::vector<OpCode>& codes) {
  for (OpCode& code : codes) {
    const Op& op = graph.op(code.id);
    const Graph* block = code.lowered                ? &*code.lowered
                         : op.kind == OpKind::Kernel ? &graph.body(op)
                                                     : nullptr;
    if (block == nullptr && (is_windowed(op.kind) || !reads_views(op.kind))) continue;
    if (written_kernel(graph, op)) continue;  // reads whole arrays
    const bool products = block != nullptr && std::ranges::any_of(block->ops(), [](const Op& o) {
                            return is_product(o.kind);
                          });
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const std::optional<SliceView> view = slice_view(graph, op.inputs[i]);
      if (!view || !code.layouts[i].row_major() || plan.once(graph.tensor(op.inputs[i]).producer))
        continue;
      const Type& type = graph.type(op.inputs[i]);
      const bool rows =
          type.shape.empty() || view->layout.strides.back() == 1 || type.shape.back().extent == 1;
      // Lowered operators may see an operand in another shape.
      const bool same = block == nullptr || block->type(block->inputs()[i]).shape == type.shape;
      if (same && (rows || !products)) code.layouts[i] = view->layout;
    }
  }
}

// Drops the code of slices that nobody reads as arrays of their own.
void drop_unread_slices(const Graph& graph, const PlanBuilder& plan,
                        const std::vector<ImageStep>& images, std::vector<OpCode>& codes) {
  std::vector<bool> read(graph.tensors().size(), false);
  for (const ImageStep& s : images) {
    read[plan.holder(s.image).index] = true;
    for (TensorId t : s.more) read[plan.holder(t).index] = true;
  }
  for (TensorId t : graph.outputs()) read[plan.holder(t).index] = true;
  for (size_t c = codes.size(); c-- > 0;) {
    const Op& op = graph.op(codes[c].id);
    if (op.kind == OpKind::Slice && !read[op.result().index]) {
      codes.erase(codes.begin() + static_cast<std::ptrdiff_t>(c));
      continue;
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool view = codes[c].layouts[i].view();
      const TensorId t = view ? slice_view(graph, op.inputs[i])->whole : op.inputs[i];
      read[plan.holder(t).index] = true;
    }
  }
}

// The code of a block graph that stays in the cache and needs no tiles, if it is one.
std::optional<ElementwiseText> short_kernel(const std::string& name, const Graph& block,
                                            const std::vector<Layout>& layouts, UnitContext& unit) {
  KernelValues values = kernel_values(block, layouts);
  values.rounds = unit.rounds;
  int64_t bytes = 0;
  for (size_t i = 0; i < values.argument_extents.size(); ++i) {
    int64_t elements = 1;
    for (int64_t n : values.argument_extents[i]) elements *= n;
    bytes += elements * size_in_bytes(values.argument_dtypes[i]);
  }
  if (bytes > kShortBytes) return std::nullopt;
  const std::optional<WholeKernel> whole = whole_kernel(values);
  if (!whole) return std::nullopt;
  return emit_whole(name, *whole, values.argument_dtypes, unit);
}

}  // namespace

Program emit_program(const Graph& graph, CpuIsa isa, const PlanOptions& options,
                     const Target& target, const WrittenSources* written, bool exact) {
  require_runnable(graph);
  PlanBuilder plan(graph, options);
  std::vector<OpCode> codes;
  const Lowering lowering = cpu_lowering(isa);
  // Operators that are part of an image's step, and the step of those that come last.
  std::vector<ImageStep> images;
  if (options.images) images = image_steps(graph, isa);
  std::map<OpId, const ImageStep*> step_of;
  std::set<OpId> within;
  for (const ImageStep& s : images) {
    plan.look(graph.op(s.before).result(), s.image);
    within.insert(s.before);
    within.insert(s.after.begin(), s.after.end());
    step_of[s.window] = &s;
  }
  for (OpId id : plan.ops()) {
    const Op& op = graph.op(id);
    if (within.count(id) > 0) continue;
    if (op.kind == OpKind::Opaque)
      if (const std::string why = host_problem(opaque_step(graph, op)); !why.empty())
        throw Error(ErrorKind::Unsupported, "opaque operator '" +
                                                graph.attrs<OpaqueAttrs>(op).function +
                                                "' has no code: " + why);
    OpCode code;
    code.id = id;
    if (op.kind != OpKind::Kernel && step_of.count(id) == 0)
      code.lowered = lower_to_block(graph, op, lowering);
    code.layouts.resize(op.inputs.size());
    codes.push_back(std::move(code));
  }
  if (options.layout) {
    const std::vector<LayoutDemand> wanted = demands(graph, plan, codes, isa, target);
    const LayoutChoice choice =
        choose_layouts(graph, plan, wanted, target, {.compared = options.compared});
    for (size_t i = 0; i < wanted.size(); ++i) {
      OpCode& code = codes[size_t(wanted[i].user)];
      code.layouts[size_t(wanted[i].operand)] = choice.layouts[i];
    }
    read_through_slices(graph, plan, codes);
    drop_unread_slices(graph, plan, images, codes);
  }

  const std::vector<std::string> lines = print_ops(graph);
  UnitContext unit;
  unit.isa = isa;
  std::set<OpId> rounded = before_jumps(graph);
  for (size_t i = 0; exact && i < graph.ops().size(); ++i) rounded.insert(OpId(i));
  std::string kernels;
  // Functions by their text: the layers of a deep model share theirs.
  std::map<std::string, std::string> symbol_of;
  const auto define = [&](const std::string& text) {
    const auto [it, fresh] = symbol_of.emplace(text, "k" + std::to_string(symbol_of.size()));
    if (!fresh) {
      kernels += "// the same code as " + it->second + "\n";
      return it->second;
    }
    size_t from = 0;
    for (size_t at; (at = text.find(kUnnamed, from)) != std::string::npos;) {
      kernels.append(text, from, at - from).append(it->second);
      from = at + kUnnamed.size();
    }
    kernels.append(text, from);
    return it->second;
  };
  Program program;
  std::vector<Step> code_steps;  // of tasks of generated code, in the order they are added
  const auto add = [&](Task task, Step step) {
    if (step.arguments.empty()) {
      step.arguments = task.reads;
      step.arguments.insert(step.arguments.end(), task.writes.begin(), task.writes.end());
    }
    program.scratch_bytes = std::max(program.scratch_bytes, step.scratch_bytes);
    task.code = int(code_steps.size());
    plan.add(std::move(task));
    code_steps.push_back(std::move(step));
  };
  // A task of its own, the function with _once, that fills a workspace for the step and reads only
  // operands. Both functions take operands, results and workspace.
  const auto add_first = [&](Task& task, Step& step, int64_t bytes, int64_t units) {
    const int workspace =
        plan.workspace("k" + std::to_string(code_steps.size()) + ".shared", bytes);
    Task first = task;
    first.writes = {workspace};
    step.arguments = task.reads;
    step.arguments.insert(step.arguments.end(), task.writes.begin(), task.writes.end());
    step.arguments.push_back(workspace);
    Step once = step;
    once.symbol += "_once";
    once.units = units;
    task.reads.push_back(workspace);
    first.code = int(code_steps.size());
    plan.add(std::move(first));
    code_steps.push_back(std::move(once));
  };
  int opaque_steps = 0;
  for (const OpCode& code : codes) {
    const Op& op = graph.op(code.id);
    unit.rounds = rounded.count(code.id) > 0;
    if (step_of.count(code.id) > 0) {
      const ImageStep& image = *step_of[code.id];
      for (OpId id : image.after) unit.rounds = unit.rounds || rounded.count(id) > 0;
      const ConvAlgorithm algorithm =
          choose_algorithm(graph, image, isa, int(target.cores), options);
      program.normwise = std::max(program.normwise, normwise(algorithm));
      kernels += "\n// " + lines[code.id.index] + "\n";
      if (op.kind == OpKind::Conv) kernels += std::string("// ") + name(algorithm) + "\n";
      for (size_t i = 1; i < image.after.size(); ++i)
        kernels += "// " + lines[image.after[i].index] + "\n";
      const ImageCode text =
          emit_image_step(kUnnamed, graph, image, algorithm, unit, int(target.cores));
      std::vector<int> memory;
      for (TensorId t : op.inputs) memory.push_back(plan.slot(t));
      for (TensorId t : image.more) memory.push_back(plan.slot(t));
      memory.push_back(plan.slot(image.result));
      for (int64_t bytes : text.workspace_bytes)
        memory.push_back(plan.workspace(fmt("k$0.$1", code_steps.size(), memory.size()), bytes));
      for (const ImageStage& stage : text.stages) {
        Task task;
        task.kind = TaskKind::Stage;
        task.op = code.id;
        task.once = stage.of_weights ? plan.constant(op.inputs[1]) : plan.once(code.id);
        Step step;
        for (int i : stage.reads) task.reads.push_back(memory[size_t(i)]);
        for (int i : stage.writes) task.writes.push_back(memory[size_t(i)]);
        step.units = stage.units;
        step.scratch_bytes = stage.scratch_bytes;
        step.library = stage.library;
        if (!stage.text.empty()) step.symbol = define(stage.text);
        add(std::move(task), std::move(step));
      }
      continue;
    }
    Step step;
    Task task;
    task.op = code.id;
    task.once = plan.once(code.id);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      task.reads.push_back(plan.slot(op.inputs[i], code.layouts[i]));
      task.layouts.push_back(code.layouts[i]);
    }
    for (uint32_t r = 0; r < op.num_results; ++r) task.writes.push_back(plan.slot(op.result(r)));
    kernels += "\n// " + lines[code.id.index] + "\n";
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (code.layouts[i].row_major()) continue;
      kernels += fmt("// operand $0: $1\n", i, code.layouts[i].str());
    }
    const std::optional<WrittenKernel> own =
        written != nullptr ? written_kernel(graph, op) : std::nullopt;
    if (own && written->count(own->source))
      for (const auto& [operand, bytes] : written_alignment(graph.body(op), *own, *written))
        program.aligned.emplace_back(size_t(task.reads[operand]), bytes);
    if (op.kind == OpKind::Opaque) {
      step.host = opaque_step(graph, op);
      step.host->number = opaque_steps++;
      kernels +=
          fmt("// $0, computed by $1\n", step.host->text, find_host(step.host->host)->version());
    } else if (own && is_call(*own, *written)) {
      const auto threads = int(target.cores);
      WrittenCall call = written_call(graph.body(op), *own, *written, false, threads);
      std::vector<int> arguments;
      for (size_t i : call.operands) arguments.push_back(task.reads[i]);
      if (call.product) {
        kernels += "// computed by oneDNN " + onednn().version + "\n";
        const size_t second = call.product->weights();
        if (plan.constant(op.inputs[call.operands[second]])) {
          // Laid out once, as the library likes it.
          call = written_call(graph.body(op), *own, *written, true, threads);
          Task pack;
          pack.kind = TaskKind::Stage;
          pack.op = code.id;
          pack.once = true;
          pack.reads = {arguments[second]};
          pack.writes = {plan.workspace("k" + std::to_string(code_steps.size()) + ".packed",
                                        call.product->weight_bytes())};
          arguments[second] = pack.writes[0];
          task.reads = arguments;
          task.layouts.assign(arguments.size(), Layout{});
          task.kind = TaskKind::Stage;
          Step once;
          once.library = [product = call.product](void** args, int64_t, char*) {
            product->pack(args[0], args[1]);
          };
          add(std::move(pack), std::move(once));
        }
        step.units = call.product->units();
        step.scratch_bytes = call.product->scratch_bytes();
        step.library = [product = call.product](void** args, int64_t part, char* scratch) {
          product->run(args, part, scratch);
        };
        step.arguments = std::move(arguments);
        step.arguments.push_back(task.writes[0]);
        add(std::move(task), std::move(step));
        continue;
      }
      kernels +=
          fmt("// $0, computed by $1\n", call.step.text, find_host(call.step.host)->version());
      step.arguments = std::move(arguments);
      step.arguments.push_back(task.writes[0]);
      step.host = std::move(call.step);
    } else if (own && written->count(own->source)) {
      const WrittenText text = emit_written(kUnnamed, graph.body(op), *own, *written, unit);
      step.units = text.units;
      step.symbol = define(text.text);
    } else if (op.kind == OpKind::Kernel || code.lowered) {
      const Graph& block = code.lowered ? *code.lowered : graph.body(op);
      std::vector<Layout> layouts = code.layouts;
      if (!code.lowered) task.in_place = in_place_kernel(graph, op);
      if (task.in_place >= 0 && !layouts[size_t(task.in_place)].row_major()) task.in_place = -1;
      for (size_t i = 0; i < layouts.size(); ++i) {
        if (layouts[i].row_major() || layouts[i].view()) continue;
        layouts[i] = for_rank(layouts[i], layouts[i].order.size(),
                              block.type(block.inputs()[i]).shape.size());
      }
      if (const std::optional<ElementwiseText> text =
              short_kernel(kUnnamed, block, layouts, unit)) {
        step.units = text->units;
        step.streams = true;
        step.symbol = define(text->text);
        if (text->workspace_bytes > 0)
          add_first(task, step, text->workspace_bytes, text->first_units);
        add(std::move(task), std::move(step));
        continue;
      }
      const KernelText text = emit_kernel(kUnnamed, block, unit, layouts);
      step.units = block.num_blocks();
      step.scratch_bytes = text.scratch_bytes;
      step.together = text.together;
      step.streams =
          std::ranges::none_of(block.ops(), [](const Op& o) { return is_product(o.kind); });
      step.symbol = define(text.text);
      if (text.workspace_bytes > 0) add_first(task, step, text.workspace_bytes, 1);
    } else if (is_windowed(op.kind)) {
      const WindowText text = emit_windows(kUnnamed, graph, op, unit);
      step.units = text.units;
      step.scratch_bytes = text.scratch_bytes;
      step.symbol = define(text.text);
      if (text.workspace_bytes > 0) add_first(task, step, text.workspace_bytes, text.staging_units);
    } else {
      task.in_place = in_place_operand(graph, op);
      if (task.in_place >= 0 && code.layouts[size_t(task.in_place)].view()) task.in_place = -1;
      const ElementwiseText text = emit_elementwise(kUnnamed, graph, op, unit, code.layouts);
      step.units = text.units;
      step.streams = true;
      step.symbol = define(text.text);
    }
    add(std::move(task), std::move(step));
  }
  program.plan = plan.finish();
  for (auto& [slot, bytes] : program.aligned) slot = size_t(program.plan.root(int(slot)));
  std::erase_if(program.aligned, [&](const auto& a) {
    const Place place = program.plan.slots[a.first].place;
    return place != Place::Input && place != Place::Output;  // all other memory is ours
  });
  for (const Task& task : program.plan.tasks) {
    if (task.kind != TaskKind::Pack) {
      program.steps.push_back(code_steps[size_t(task.code)]);
      continue;
    }
    Step step;
    const Slot& to = program.plan.slots[size_t(task.writes[0])];
    const Type& type = graph.type(to.tensor);
    step.pack = {to.layout, extents(type.shape), size_in_bytes(type.dtype)};
    step.units = step.pack.units();
    step.arguments = {task.reads[0], task.writes[0]};
    program.steps.push_back(std::move(step));
  }
  program.source = fmt("// Generated by Tessera for $0: graph $1\n$2$3$4$5$6$7$8$9", to_string(isa),
                       graph.name(), prelude(unit.prelude), unit.micro_kernels.text(),
                       unit.dot_kernels.text(), unit.row_kernels.text(), unit.panel_kernels.text(),
                       unit.stream_kernels.text(), unit.image_kernels.text(), kernels);
  return program;
}

std::string emit_source(const Graph& graph, CpuIsa isa) {
  Program program = emit_program(fuse_operators(channels_last(graph, isa), isa), isa);
  for (const Step& step : program.steps)
    if (step.host)
      throw Error(ErrorKind::Unsupported,
                  fmt("$0 has no code: it is computed by $1 where a program runs", step.host->text,
                      step.host->host));
  return std::move(program.source);
}

}  // namespace tessera
