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

struct OpCode {
  OpId id;
  std::optional<Graph> lowered;  // block graph of an operator that has none of its own
  std::vector<Layout> layouts;   // by operand
  // What the operator is computed as, if that is a block graph.
  const Graph* block(const Graph& graph) const {
    if (lowered) return &*lowered;
    const Op& op = graph.op(id);
    return op.kind == OpKind::Kernel ? &graph.body(op) : nullptr;
  }
};

// Packing a tile takes as long as so many more rows of the product, and more where its columns lie
// in order.
constexpr double kRowsOfPacking = 4, kRowsOfTurning = 8;
constexpr double kTilesOverVectors = 8;  // how much faster AMX multiplies

// What the kernels could read in panels, priced.
std::vector<LayoutDemand> demands(const Graph& graph, const PlanBuilder& plan,
                                  const std::vector<OpCode>& codes, CpuIsa isa,
                                  const Target& target) {
  std::vector<LayoutDemand> out;
  for (size_t c = 0; c < codes.size(); ++c) {
    const Op& op = graph.op(codes[c].id);
    const Graph* block = codes[c].block(graph);
    if (block == nullptr || written_kernel(graph, op)) continue;
    for (const PanelOperand& p : panel_operands(kernel_values(*block), isa)) {
      const size_t operand = size_t(p.operand);
      if (!innermost_two(p.layout)) continue;
      const Type& type = graph.type(op.inputs[operand]);
      if (type.rank() < 2) continue;
      const bool converts = size_in_bytes(type.dtype) < 4;
      // A pass over memory costs more than packing tiles in the cache, even several times, and wide
      // elements that are not packed lie near.
      if ((p.packed || !converts) && !plan.constant(op.inputs[operand])) continue;
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
      double factor = p.copied ? target.copied_operand : target.strided_operand;
      if (p.packed) {
        const double tiles = converts && isa == CpuIsa::Amx ? kTilesOverVectors : 1;
        factor = 1 + tiles * (p.copied ? kRowsOfTurning : kRowsOfPacking) / double(p.rows);
      }
      d.options.push_back({Layout{}, seconds * factor});
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
    const Graph* block = code.block(graph);
    if (block == nullptr && (is_windowed(op.kind) || rearranges(op.kind))) continue;
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
std::optional<KernelText> short_kernel(const std::string& name, const Graph& block,
                                       const std::vector<Layout>& layouts, UnitContext& unit) {
  KernelValues values = kernel_values(block, layouts);
  values.rounds = unit.rounds;
  int64_t bytes = 0;
  for (size_t i = 0; i < values.argument_extents.size(); ++i)
    bytes += product_of(values.argument_extents[i]) * size_in_bytes(values.argument_dtypes[i]);
  if (bytes > kShortBytes) return std::nullopt;
  const std::optional<WholeKernel> whole = whole_kernel(values);
  if (!whole) return std::nullopt;
  return emit_whole(name, *whole, values.argument_dtypes, unit);
}

// Writes the code of one operator after the other, and the tasks and steps that run it.
class CpuProgramEmitter {
 public:
  CpuProgramEmitter(const Graph& graph, CpuIsa isa, const PlanOptions& options,
                    const Target& target, const WrittenSources* written, bool exact)
      : graph_(graph), options_(options), target_(target), written_(written), plan_(graph, options),
        lines_(print_ops(graph)), rounded_(before_jumps(graph)) {
    unit_.isa = isa;
    for (size_t i = 0; exact && i < graph.ops().size(); ++i) rounded_.insert(OpId(i));
  }

  Program run() {
    const std::vector<ImageStep> images =
        options_.images ? image_steps(graph_, unit_.isa) : std::vector<ImageStep>();
    std::map<OpId, const ImageStep*> step_of;  // by the window that it begins with
    for (const ImageStep& s : images) step_of[s.window] = &s;
    std::vector<OpCode> codes = codes_of(images);
    if (options_.layout) lay_out(images, codes);
    for (const OpCode& code : codes) {
      unit_.rounds = rounded_.count(code.id) > 0;
      const auto image = step_of.find(code.id);
      if (image != step_of.end())
        add_image(*image->second);
      else
        add_operator(code);
    }
    finish_plan();
    program_.source =
        fmt("// Generated by Tessera for $0: graph $1\n", to_string(unit_.isa), graph_.name()) +
        prelude(unit_.prelude) + unit_.shared.text() + kernels_;
    return std::move(program_);
  }

 private:
  // What has code of its own: everything but what is part of an image's step.
  std::vector<OpCode> codes_of(const std::vector<ImageStep>& images) {
    std::set<OpId> windows, within;
    for (const ImageStep& s : images) {
      plan_.look(graph_.op(s.before).result(), s.image);
      windows.insert(s.window);
      within.insert(s.before);
      within.insert(s.after.begin(), s.after.end());
    }
    std::vector<OpCode> codes;
    const Lowering lowering = cpu_lowering(unit_.isa);
    for (OpId id : plan_.ops()) {
      const Op& op = graph_.op(id);
      if (within.count(id) > 0) continue;
      if (op.kind == OpKind::Opaque)
        if (const std::string why = host_problem(opaque_step(graph_, op)); !why.empty())
          throw Error(ErrorKind::Unsupported, fmt("opaque operator '$0' has no code: $1",
                                                  graph_.attrs<OpaqueAttrs>(op).function, why));
      OpCode code{id, std::nullopt, std::vector<Layout>(op.inputs.size())};
      if (op.kind != OpKind::Kernel && windows.count(id) == 0)
        code.lowered = lower_to_block(graph_, op, lowering);
      codes.push_back(std::move(code));
    }
    return codes;
  }

  void lay_out(const std::vector<ImageStep>& images, std::vector<OpCode>& codes) {
    const std::vector<LayoutDemand> wanted = demands(graph_, plan_, codes, unit_.isa, target_);
    const LayoutChoice choice = choose_layouts(graph_, plan_, wanted, target_, options_.compared);
    for (size_t i = 0; i < wanted.size(); ++i)
      codes[size_t(wanted[i].user)].layouts[size_t(wanted[i].operand)] = choice.layouts[i];
    read_through_slices(graph_, plan_, codes);
    drop_unread_slices(graph_, plan_, images, codes);
  }

  // The name of a function. The layers of a deep model share theirs.
  std::string define(const std::string& text) {
    const auto [it, fresh] = symbol_of_.emplace(text, fmt("k$0", symbol_of_.size()));
    if (!fresh) {
      kernels_ += fmt("// the same code as $0\n", it->second);
      return it->second;
    }
    size_t from = 0;
    for (size_t at; (at = text.find(kUnnamed, from)) != std::string::npos;) {
      kernels_.append(text, from, at - from).append(it->second);
      from = at + kUnnamed.size();
    }
    kernels_.append(text, from);
    return it->second;
  }

  int workspace(const std::string& what, int64_t bytes) {
    return plan_.workspace(fmt("k$0.$1", steps_.size(), what), bytes);
  }

  void add(Task task, Step step) {
    if (step.arguments.empty()) {
      step.arguments = task.reads;
      step.arguments.insert(step.arguments.end(), task.writes.begin(), task.writes.end());
    }
    program_.scratch_bytes = std::max(program_.scratch_bytes, step.scratch_bytes);
    task.code = int(steps_.size());
    plan_.add(std::move(task));
    steps_.push_back(std::move(step));
  }

  void add(Task task, Step step, const KernelText& text) {
    step.units = text.units;
    step.scratch_bytes = text.scratch_bytes;
    step.together = text.together;
    step.symbol = define(text.text);
    if (text.workspace_bytes > 0) {
      // A task of its own fills the workspace and reads only operands. Both functions take
      // operands, results and workspace.
      Task first = task;
      first.writes = {workspace("shared", text.workspace_bytes)};
      step.arguments = task.reads;
      step.arguments.insert(step.arguments.end(), task.writes.begin(), task.writes.end());
      step.arguments.push_back(first.writes[0]);
      task.reads.push_back(first.writes[0]);
      Step once = step;
      once.symbol += "_once";
      once.units = text.first_units;
      add(std::move(first), std::move(once));
    }
    add(std::move(task), std::move(step));
  }

  void add_image(const ImageStep& image) {
    const Op& op = graph_.op(image.window);
    for (OpId id : image.after) unit_.rounds = unit_.rounds || rounded_.count(id) > 0;
    const ConvAlgorithm algorithm =
        choose_algorithm(graph_, image, unit_.isa, int(target_.cores), options_);
    program_.normwise = std::max(program_.normwise, normwise(algorithm));
    kernels_ += fmt("\n// $0\n", lines_[image.window.index]);
    if (op.kind == OpKind::Conv) kernels_ += fmt("// $0\n", name(algorithm));
    for (size_t i = 1; i < image.after.size(); ++i)
      kernels_ += fmt("// $0\n", lines_[image.after[i].index]);
    const ImageCode text =
        emit_image_step(kUnnamed, graph_, image, algorithm, unit_, int(target_.cores));
    std::vector<int> memory = mapped(op.inputs, [&](TensorId t) { return plan_.slot(t); });
    for (TensorId t : image.more) memory.push_back(plan_.slot(t));
    memory.push_back(plan_.slot(image.result));
    for (int64_t bytes : text.workspace_bytes)
      memory.push_back(workspace(std::to_string(memory.size()), bytes));
    for (const ImageStage& stage : text.stages) {
      Task task;
      task.kind = TaskKind::Stage;
      task.op = image.window;
      task.once = stage.of_weights ? plan_.constant(op.inputs[1]) : plan_.once(image.window);
      Step step;
      for (int i : stage.reads) task.reads.push_back(memory[size_t(i)]);
      task.writes = {memory[size_t(stage.writes)]};
      step.units = stage.units;
      step.scratch_bytes = stage.scratch_bytes;
      step.library = stage.library;
      if (!stage.code.text().empty()) step.symbol = define(stage.code.text());
      add(std::move(task), std::move(step));
    }
  }

  void add_operator(const OpCode& code) {
    const Op& op = graph_.op(code.id);
    Task task;
    task.op = code.id;
    task.once = plan_.once(code.id);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      task.reads.push_back(plan_.slot(op.inputs[i], code.layouts[i]));
      task.layouts.push_back(code.layouts[i]);
    }
    for (uint32_t r = 0; r < op.num_results; ++r) task.writes.push_back(plan_.slot(op.result(r)));
    kernels_ += fmt("\n// $0\n", lines_[code.id.index]);
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (!code.layouts[i].row_major())
        kernels_ += fmt("// operand $0: $1\n", i, code.layouts[i].str());
    std::optional<WrittenKernel> own;
    if (written_ != nullptr) own = written_kernel(graph_, op);
    if (own && written_->count(own->source))
      for (const auto& [operand, bytes] : written_alignment(graph_.body(op), *own, *written_))
        program_.aligned.emplace_back(size_t(task.reads[operand]), bytes);
    if (op.kind == OpKind::Opaque) {
      HostStep host = opaque_step(graph_, op);
      host.number = opaque_steps_++;
      add_host(std::move(task), std::move(host), {});
    } else if (own && is_call(*own, *written_)) {
      add_call(std::move(task), op, *own);
    } else if (own && written_->count(own->source)) {
      const WrittenText text = emit_written(kUnnamed, graph_.body(op), *own, *written_, unit_);
      add(std::move(task), {}, KernelText{text.text, text.units});
    } else if (const Graph* block = code.block(graph_)) {
      if (!code.lowered) task.in_place = in_place_kernel(graph_, op);
      if (task.in_place >= 0 && !code.layouts[size_t(task.in_place)].row_major())
        task.in_place = -1;
      add_block(std::move(task), *block, code.layouts);
    } else if (is_windowed(op.kind)) {
      add(std::move(task), {}, emit_windows(kUnnamed, graph_, op, unit_));
    } else {
      task.in_place = in_place_operand(graph_, op);
      if (task.in_place >= 0 && code.layouts[size_t(task.in_place)].view()) task.in_place = -1;
      Step step;
      step.streams = true;
      add(std::move(task), std::move(step),
          emit_elementwise(kUnnamed, graph_, op, unit_, code.layouts));
    }
  }

  void add_host(Task task, HostStep host, std::vector<int> arguments) {
    kernels_ += fmt("// $0, computed by $1\n", host.text, find_host(host.host)->version());
    Step step;
    step.host = std::move(host);
    step.arguments = std::move(arguments);
    add(std::move(task), std::move(step));
  }

  // A call that a person wrote, of a library.
  void add_call(Task task, const Op& op, const WrittenKernel& own) {
    const auto threads = int(target_.cores);
    const Graph& body = graph_.body(op);
    WrittenCall call = written_call(body, own, *written_, false, threads);
    std::vector<int> arguments = mapped(call.operands, [&](size_t i) { return task.reads[i]; });
    const int result = task.writes[0];
    if (!call.product) {
      arguments.push_back(result);
      return add_host(std::move(task), std::move(call.step), std::move(arguments));
    }
    kernels_ += fmt("// computed by oneDNN $0\n", onednn().version);
    const size_t second = call.product->weights;
    if (plan_.constant(op.inputs[call.operands[second]])) {
      // Laid out once, as the library likes it.
      call = written_call(body, own, *written_, true, threads);
      Task pack;
      pack.kind = TaskKind::Stage;
      pack.op = task.op;
      pack.once = true;
      pack.reads = {arguments[second]};
      pack.writes = {workspace("packed", call.product->weight_bytes)};
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
    Step step;
    step.units = call.product->units;
    step.scratch_bytes = call.product->scratch_bytes;
    step.library = [product = call.product](void** args, int64_t part, char* scratch) {
      product->run(args, part, scratch);
    };
    step.arguments = std::move(arguments);
    step.arguments.push_back(result);
    add(std::move(task), std::move(step));
  }

  void add_block(Task task, const Graph& block, std::vector<Layout> layouts) {
    for (size_t i = 0; i < layouts.size(); ++i)
      if (!layouts[i].row_major() && !layouts[i].view())
        layouts[i] = for_rank(layouts[i], layouts[i].order.size(),
                              block.type(block.inputs()[i]).shape.size());
    Step step;
    step.streams = true;
    if (const std::optional<KernelText> text = short_kernel(kUnnamed, block, layouts, unit_))
      return add(std::move(task), std::move(step), *text);
    step.streams =
        std::ranges::none_of(block.ops(), [](const Op& o) { return is_product(o.kind); });
    add(std::move(task), std::move(step), emit_kernel(kUnnamed, block, unit_, layouts));
  }

  void finish_plan() {
    program_.plan = plan_.finish();
    const Plan& plan = program_.plan;
    for (auto& [slot, bytes] : program_.aligned) slot = size_t(plan.root(int(slot)));
    std::erase_if(program_.aligned, [&](const auto& a) {
      const Place place = plan.slots[a.first].place;
      return place != Place::Input && place != Place::Output;  // all other memory is ours
    });
    for (const Task& task : plan.tasks) {
      if (task.kind != TaskKind::Pack) {
        program_.steps.push_back(steps_[size_t(task.code)]);
        continue;
      }
      Step step;
      const Slot& to = plan.slots[size_t(task.writes[0])];
      const Type& type = graph_.type(to.tensor);
      step.pack = {to.layout, extents(type.shape), size_in_bytes(type.dtype)};
      step.units = step.pack.units();
      step.arguments = {task.reads[0], task.writes[0]};
      program_.steps.push_back(std::move(step));
    }
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const Target& target_;
  const WrittenSources* written_;
  PlanBuilder plan_;
  const std::vector<std::string> lines_;  // operators as text
  std::set<OpId> rounded_;
  UnitContext unit_;
  std::string kernels_;
  std::map<std::string, std::string> symbol_of_;  // functions by their text
  Program program_;
  std::vector<Step> steps_;  // of tasks of generated code, in the order they are added
  int opaque_steps_ = 0;
};

}  // namespace

Program emit_program(const Graph& graph, CpuIsa isa, const PlanOptions& options,
                     const Target& target, const WrittenSources* written, bool exact) {
  require_runnable(graph);
  return CpuProgramEmitter(graph, isa, options, target, written, exact).run();
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
