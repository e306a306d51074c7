#include "backend/cpu/module.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backend/arrays.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/conv_costs.h"
#include "backend/cpu/emit.h"
#include "backend/cpu/fuse.h"
#include "backend/cpu/transposed_convolutions.h"
#include "backend/written.h"
#include "base/check.h"
#include "base/error.h"
#include "base/wall_clock.h"
#include "ir/text.h"

namespace tessera {

using KernelFunction = void (*)(void** arguments, long begin, long end, char* scratch);

// One call, ready to go: each run fills a table of all arguments.
struct KernelCall {
  KernelFunction function = nullptr;
  const LibraryStage* library = nullptr;
  const HostStep* host = nullptr;  // alone in its phase
  const PackJob* pack = nullptr;   // where there is none of these
  size_t arguments = 0;            // where they begin among those of all calls
  int task = 0;
  int64_t units = 1, together = 1;
  bool is_short = false;
};

// Calls that may run side by side; then everybody waits.
struct CallPhase {
  std::vector<KernelCall> calls;
  int64_t units = 0;
};

// What one run in flight needs for itself.
struct RunBuffers {
  AlignedBuffer arena, scratch;
  std::vector<void*> addresses;  // one per slot
  std::vector<void*> arguments;  // of all calls
  // Of Program::aligned: what stands for a caller's array, and what that was; else null.
  std::vector<AlignedBuffer> aligned;
  std::vector<void*> instead_of;
};

namespace {

// Units to hand out at a time; 0: the pool chooses. Whole groups of units that share work, unless
// some thread would then have nothing to do.
int64_t chunk_of(const KernelCall& call, int threads) {
  if (call.is_short) return (call.units + threads - 1) / threads;
  if (call.together <= 1) return 0;
  const int64_t usual = std::max<int64_t>(1, call.units / (threads * 8));
  const int64_t whole = (usual + call.together - 1) / call.together * call.together;
  return std::min(whole, (call.units + threads - 1) / threads);
}

}  // namespace

// Slots of prepared arrays that runs read and whose contents a text describes: values of the graph
// and their copies in another layout.
std::vector<std::pair<size_t, std::string>> shared_slots(const Graph& graph, const Plan& plan) {
  std::vector<bool> read(plan.slots.size(), false), listed(plan.slots.size(), false);
  for (const Task& task : plan.tasks)
    if (!task.once)
      for (int s : task.reads) read[size_t(plan.root(s))] = true;
  std::vector<std::pair<size_t, std::string>> result;
  for (const Task& task : plan.tasks) {
    if (!task.once || task.kind == TaskKind::Stage) continue;
    for (int s : task.writes) {
      const auto at = size_t(s);
      const Slot& slot = plan.slots[at];
      if (slot.place != Place::Kept || slot.alias >= 0 || !slot.tensor.valid() || !read[at] ||
          listed[at])
        continue;
      listed[at] = true;
      result.emplace_back(at, slot.layout.str() + " " + std::to_string(slot.bytes) + "\n" +
                                  print_cone(graph, slot.tensor));
    }
  }
  return result;
}

struct Module::Impl {
  Graph graph;
  std::vector<Type> inputs, outputs;
  Program program;
  std::string plan_text;
  std::unique_ptr<Library> library;
  KernelPool* pool = nullptr;
  std::vector<CallPhase> once, phases;
  std::vector<int> argument_slots;  // of all calls
  size_t scratch_per_worker = 0;
  std::vector<TensorId> input_ids;
  std::vector<size_t> weights;
  // Kept slots that runs read and another program may share, with what they are made from.
  std::vector<std::pair<size_t, std::string>> recipes;
  std::shared_ptr<const PreparedWeights> constants_only;  // what no weight is needed for
  std::vector<std::pair<size_t, AlignedBuffer>> constants;
  std::vector<int64_t> copy_bytes;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<RunBuffers>> idle;

  std::unique_ptr<RunBuffers> take() const {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        std::unique_ptr<RunBuffers> buffers = std::move(idle.back());
        idle.pop_back();
        return buffers;
      }
    }
    auto buffers = std::make_unique<RunBuffers>();
    buffers->arena = AlignedBuffer(size_t(program.plan.arena.bytes));
    buffers->scratch = AlignedBuffer(scratch_per_worker * size_t(pool->threads()));
    buffers->addresses.resize(program.plan.slots.size(), nullptr);
    for (size_t i = 0; i < program.plan.slots.size(); ++i) {
      const Slot& s = program.plan.slots[i];
      if (s.place == Place::Arena && s.alias < 0)
        buffers->addresses[i] = static_cast<char*>(buffers->arena.data()) + s.offset;
    }
    for (const auto& [slot, data] : constants) buffers->addresses[slot] = data.data();
    return buffers;
  }
  void give_back(std::unique_ptr<RunBuffers> buffers) const {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(buffers));
  }

  // Addresses of the caller's arrays and of what was prepared; the rest is in the buffers.
  void fill_addresses(RunBuffers& buffers, std::span<const void* const> in,
                      std::span<void* const> out,
                      const std::vector<std::pair<size_t, void*>>* kept) const {
    std::vector<void*>& address = buffers.addresses;
    for (size_t i = 0; i < in.size(); ++i) address[input_ids[i].index] = const_cast<void*>(in[i]);
    const std::vector<Slot>& slots = program.plan.slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      const Slot& s = slots[i];
      if (s.alias < 0 && s.place == Place::Output && !out.empty())
        address[i] = out[size_t(s.index)];
    }
    if (kept != nullptr)
      for (const auto& [slot, memory] : *kept) address[slot] = memory;
    const size_t n = program.aligned.size();
    buffers.instead_of.assign(n, nullptr);
    buffers.aligned.resize(n);
    for (size_t k = 0; k < n; ++k) {
      const auto& [slot, bytes] = program.aligned[k];
      if (reinterpret_cast<uintptr_t>(address[slot]) % static_cast<uintptr_t>(bytes) == 0) continue;
      const auto size = size_t(slots[slot].bytes);
      if (buffers.aligned[k].size() == 0) buffers.aligned[k] = AlignedBuffer(size);
      buffers.instead_of[k] = address[slot];
      if (slots[slot].place == Place::Input)
        std::memcpy(buffers.aligned[k].data(), address[slot], size);
      address[slot] = buffers.aligned[k].data();
    }
    for (size_t i = 0; i < slots.size(); ++i)
      if (slots[i].alias >= 0) address[i] = address[size_t(program.plan.root(int(i)))];
    buffers.arguments.resize(argument_slots.size());
    for (size_t i = 0; i < argument_slots.size(); ++i)
      buffers.arguments[i] = address[size_t(argument_slots[i])];
  }

  void run_phases(const std::vector<CallPhase>& list, RunBuffers& buffers) const;
};

void Module::Impl::run_phases(const std::vector<CallPhase>& list, RunBuffers& buffers) const {
  void** const all_arguments = buffers.arguments.data();
  char* const all_scratch = static_cast<char*>(buffers.scratch.data());
  for (const CallPhase& phase : list) {
    if (phase.calls.empty()) continue;
    const KernelCall& first = phase.calls[0];
    if (first.host != nullptr) {
      call_host(*first.host, all_arguments + first.arguments, pool->threads());
      continue;
    }
    const long chunk = phase.calls.size() == 1 ? chunk_of(first, pool->threads()) : 0;
    pool->parallel_for(phase.units, chunk, [&](long begin, long end, int worker) {
      char* const scratch = all_scratch + size_t(worker) * scratch_per_worker;
      long base = 0;  // units of the calls before
      for (const KernelCall& call : phase.calls) {
        if (base >= end) break;
        const long from = std::max(begin, base) - base;
        const long to = std::min(end, base + call.units) - base;
        base += call.units;
        if (from >= to) continue;
        void** const arguments = all_arguments + call.arguments;
        if (call.library != nullptr) {
          for (long unit = from; unit < to; ++unit) {
            (*call.library)(arguments, unit, scratch);
            if (call.function != nullptr) call.function(arguments, unit, unit + 1, scratch);
          }
        } else if (call.function != nullptr) {
          call.function(arguments, from, to, scratch);
        } else {
          call.pack->run(arguments[0], arguments[1], from, to);
        }
      }
    });
  }
}

Module::Module(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Module::~Module() = default;

std::unique_ptr<Module> Module::compile(const Graph& graph, Cache& cache,
                                        const ModuleOptions& options) {
  WrittenSources written;
  const Graph checked = with_checked_bodies(graph, cache, false, options.isa, {}, written);
  Graph laid_out = options.plan.images ? channels_last(checked, options.isa)
                                       : without_transposed_convolutions(checked);
  if (options.plan.fuse)
    laid_out = fuse_operators(laid_out, options.isa, options.plan.weights, options.plan.compared);
  const KernelPool& pool = options.pool != nullptr ? *options.pool : KernelPool::shared();
  PlanOptions plan = options.plan;
  if (plan.images && plan.algorithms.empty())
    plan.algorithms = fastest_algorithms(laid_out, options.isa, pool.threads(), cache, plan);
  return load(
      laid_out,
      emit_program(laid_out, options.isa, plan, default_cpu_target(), &written, options.exact),
      cache, options);
}

std::unique_ptr<Module> Module::load(const Graph& graph, Program program, Cache& cache,
                                     const ModuleOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->graph = graph;
  impl->program = std::move(program);
  const Plan& plan = impl->program.plan;
  impl->plan_text = plan.str(graph);
  impl->pool = options.pool != nullptr ? options.pool : &KernelPool::shared();
  CompileOptions compile;
  compile.isa = options.isa;
  compile.cancel = options.cancel;
  impl->library = compile_and_load(impl->program.source, compile, cache);
  const auto bytes_of = [&](const Step& step) {
    int64_t bytes = 0;
    for (int s : step.arguments) bytes += plan.slots[size_t(s)].bytes;
    return bytes;
  };
  const auto phases = [&](const Schedule& schedule) {
    std::vector<CallPhase> list;
    for (const std::vector<int>& tasks : schedule.phases) {
      CallPhase phase;
      for (int t : tasks) {
        const Step& step = impl->program.steps[size_t(t)];
        KernelCall call;
        call.task = t;
        if (step.library) call.library = &step.library;
        if (step.host)
          call.host = &*step.host;
        else if (step.symbol.empty())
          call.pack = &step.pack;
        else
          call.function = reinterpret_cast<KernelFunction>(impl->library->symbol(step.symbol));
        call.arguments = impl->argument_slots.size();
        impl->argument_slots.insert(impl->argument_slots.end(), step.arguments.begin(),
                                    step.arguments.end());
        call.units = step.units;
        call.together = step.together;
        call.is_short = step.streams && bytes_of(step) <= kShortBytes;
        if (call.host != nullptr) {  // the others wait
          list.push_back({{std::move(call)}, 1});
          continue;
        }
        phase.units += call.units;
        phase.calls.push_back(std::move(call));
      }
      if (!phase.calls.empty()) list.push_back(std::move(phase));
    }
    return list;
  };
  impl->once = phases(plan.once);
  impl->phases = phases(plan.run);
  // Workers' scratch areas start on different pages.
  impl->scratch_per_worker = (size_t(impl->program.scratch_bytes) + 4095) / 4096 * 4096 + 128;
  impl->scratch_per_worker = (impl->scratch_per_worker + 63) / 64 * 64;
  impl->input_ids = graph.inputs();
  for (TensorId t : graph.inputs()) impl->inputs.push_back(graph.type(t));
  for (TensorId t : graph.outputs()) impl->outputs.push_back(graph.type(t));
  impl->weights = plan.weights(graph);
  impl->recipes = shared_slots(graph, plan);
  for (size_t i = 0; i < graph.tensors().size(); ++i) {
    if (plan.slots[i].place != Place::Constant || plan.slots[i].alias >= 0) continue;
    const TensorId t(i);
    const auto& a = std::get<ConstAttrs>(graph.producer(t).attrs);
    AlignedBuffer& data =
        impl->constants.emplace_back(i, AlignedBuffer(size_t(graph.type(t).bytes()))).second;
    fill_constant(graph.type(t), a.value, data.data());
  }
  for (const Plan::Copy& c : plan.copies) impl->copy_bytes.push_back(graph.type(c.from).bytes());
  std::unique_ptr<Module> module(new Module(std::move(impl)));
  if (module->impl_->weights.empty() && !module->impl_->once.empty()) {
    const std::vector<const void*> none(module->impl_->inputs.size(), nullptr);
    module->impl_->constants_only = module->prepare(none);
  }
  return module;
}

std::shared_ptr<const PreparedWeights>
Module::prepare(std::span<const void* const> inputs,
                std::span<const std::shared_ptr<const PreparedWeights>> others) const {
  const Impl& m = *impl_;
  CHECK(inputs.size() == m.inputs.size()) << "prepare takes one pointer per input";
  const WallClock clock;
  auto prepared = std::make_shared<PreparedWeights>();
  prepared->module_ = this;
  const Plan& plan = m.program.plan;
  // Which tasks are still to run: what others have is not made again, nor what only that needs.
  std::vector<void*> found(plan.slots.size(), nullptr);
  for (const auto& [slot, recipe] : m.recipes) {
    for (const auto& other : others) {
      const auto at = other->made_.find(recipe);
      if (at == other->made_.end()) continue;
      found[slot] = at->second;
      if (std::ranges::find(prepared->used_, other) == prepared->used_.end())
        prepared->used_.push_back(other);
      break;
    }
  }
  std::vector<CallPhase> once = m.once;
  std::vector<bool> needed(plan.slots.size(), false);
  for (const Task& task : plan.tasks)
    if (!task.once)
      for (int s : task.reads) needed[size_t(plan.root(s))] = true;
  for (const Plan::Copy& copy : plan.copies) needed[size_t(plan.root(int(copy.from.index)))] = true;
  for (size_t p = once.size(); p-- > 0;) {
    std::erase_if(once[p].calls, [&](const KernelCall& call) {
      const std::vector<int>& made = plan.tasks[size_t(call.task)].writes;
      return std::ranges::none_of(made, [&](int s) {
        const auto at = size_t(plan.root(s));
        return plan.slots[at].place != Place::Kept || (needed[at] && found[at] == nullptr);
      });
    });
    once[p].units = 0;
    for (const KernelCall& call : once[p].calls) {
      once[p].units += call.units;
      for (int s : plan.tasks[size_t(call.task)].reads) needed[size_t(plan.root(s))] = true;
    }
  }
  // Memory as planned; one after the other where most of it is there already.
  size_t bytes = size_t(plan.kept.bytes);
  std::vector<size_t> offsets(plan.slots.size(), 0);
  if (!prepared->used_.empty()) bytes = 0;
  const auto own = [&](size_t i) {
    return plan.slots[i].place == Place::Kept && plan.slots[i].alias < 0 && found[i] == nullptr;
  };
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (!own(i)) continue;
    offsets[i] = prepared->used_.empty() ? size_t(plan.slots[i].offset) : bytes;
    if (!prepared->used_.empty() && needed[i])
      bytes += (size_t(plan.slots[i].bytes) + 63) / 64 * 64;
  }
  prepared->memory_ = AlignedBuffer(bytes, m.pool);
  char* memory = static_cast<char*>(prepared->memory_.data());
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (found[i] != nullptr) prepared->addresses_.emplace_back(i, found[i]);
    if (own(i)) prepared->addresses_.emplace_back(i, memory + offsets[i]);
  }
  for (const auto& [slot, recipe] : m.recipes)
    if (found[slot] == nullptr) prepared->made_.emplace(recipe, memory + offsets[slot]);
  std::unique_ptr<RunBuffers> buffers = m.take();
  m.fill_addresses(*buffers, inputs, {}, &prepared->addresses_);
  m.run_phases(once, *buffers);
  m.give_back(std::move(buffers));
  prepared->seconds_ = clock.seconds();
  return prepared;
}

void Module::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                 const PreparedWeights* prepared) const {
  const Impl& m = *impl_;
  if (inputs.size() != m.inputs.size() || outputs.size() != m.outputs.size()) {
    bad_input("the program takes " + std::to_string(m.inputs.size()) + " inputs and gives " +
              std::to_string(m.outputs.size()) + " outputs, but was called with " +
              std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
  }
  std::shared_ptr<const PreparedWeights> own;
  if (prepared == nullptr) {
    own = m.weights.empty() ? m.constants_only : prepare(inputs);
    prepared = own.get();
  }
  CHECK(prepared == nullptr || prepared->module_ == this) << "weights prepared by another module";
  std::unique_ptr<RunBuffers> buffers = m.take();
  m.fill_addresses(*buffers, inputs, outputs, prepared ? &prepared->addresses_ : nullptr);
  m.run_phases(m.phases, *buffers);
  for (size_t k = 0; k < m.program.aligned.size(); ++k) {
    const Slot& slot = m.program.plan.slots[m.program.aligned[k].first];
    if (slot.place == Place::Output && buffers->instead_of[k] != nullptr)
      std::memcpy(buffers->instead_of[k], buffers->aligned[k].data(), size_t(slot.bytes));
  }
  for (size_t i = 0; i < m.program.plan.copies.size(); ++i) {
    const Plan::Copy& c = m.program.plan.copies[i];
    std::memcpy(outputs[size_t(c.output)], buffers->addresses[c.from.index],
                size_t(m.copy_bytes[i]));
  }
  m.give_back(std::move(buffers));
}

bool Module::may_overwrite(size_t input, size_t output) const {
  CHECK(input < impl_->inputs.size() && output < impl_->outputs.size()) << "no such argument";
  return tessera::may_overwrite(impl_->graph, impl_->program.plan, input, output);
}

const std::vector<size_t>& Module::weights() const { return impl_->weights; }
const std::vector<Type>& Module::input_types() const { return impl_->inputs; }
const std::vector<Type>& Module::output_types() const { return impl_->outputs; }
double Module::normwise() const { return impl_->program.normwise; }
const Graph& Module::graph() const { return impl_->graph; }
const std::string& Module::source() const { return impl_->program.source; }
std::vector<HostStep> Module::host_steps() const {
  std::vector<HostStep> steps;
  for (const Step& step : impl_->program.steps)
    if (step.host) steps.push_back(*step.host);
  return steps;
}
int64_t Module::prepared_bytes() const { return impl_->program.plan.kept.bytes; }
const Plan& Module::plan() const { return impl_->program.plan; }
const std::string& Module::plan_text() const { return impl_->plan_text; }

}  // namespace tessera
