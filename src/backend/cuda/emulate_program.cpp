#include "backend/cuda/emulate_program.h"

#include <cstring>
#include <new>

#include "backend/arrays.h"
#include "base/check.h"
#include "eval/eval.h"

#include "backend/cuda/device/device.cuh"

namespace tessera {
namespace {

struct AlignedMemory {
  explicit AlignedMemory(int64_t bytes)
      : data(static_cast<std::byte*>(
            ::operator new (size_t(std::max<int64_t>(bytes, 1)), std::align_val_t{256}))) {}
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  ~AlignedMemory() { ::operator delete (data, std::align_val_t{256}); }
  std::byte* data;
};

}  // namespace

ts::TensorMap host_tensor_map(const TensorMapSpec& spec, void* data) {
  return ts::host::tensor_map(static_cast<char*>(data) + spec.offset * spec.element_bytes,
                              int(spec.rows), int(spec.columns), spec.pitch * spec.element_bytes,
                              spec.element_bytes, spec.box_rows, spec.box_columns, spec.swizzled);
}

EmulatedKernels::EmulatedKernels(const std::string& source, const std::vector<std::string>& names,
                                 int optimize) {
  if (names.empty()) return;  // libraries do everything
  Cache nowhere({"/dev/null", [](const std::string&) {}});
  library_ = load_host_kernels(source, names, nowhere, optimize);
  reinterpret_cast<void (*)(const void*)>(library_->symbol("tessera_bind"))(emulator_api());
  for (const std::string& name : names)
    kernels_[name] = static_cast<const HostKernel*>(library_->symbol("tessera_entry_" + name));
}

void EmulatedKernels::call(const std::string& name, void** arguments) const {
  const HostKernel& kernel = *kernels_.at(name);
  std::vector<void*> parameters;
  for (int i = 0; i < kernel.parameters; ++i)
    parameters.push_back(kernel.bytes[i] == sizeof(void*) ? static_cast<void*>(arguments + i)
                                                          : arguments[i]);
  kernel.call(parameters.data());
}

struct EmulatedProgram::Impl {
  CudaProgram program;
  std::vector<Type> inputs, outputs;
  std::vector<int64_t> copy_bytes;
  std::vector<std::pair<size_t, std::vector<std::byte>>> constants;  // by slot
  int grain = 2;  // bytes of the smallest elements
  std::unique_ptr<EmulatedKernels> kernels;
  std::map<int, Graph> libraries;  // by task: what a library does in it
};

EmulatedProgram::EmulatedProgram(const Graph& graph, CudaProgram program)
    : impl_(std::make_unique<Impl>()) {
  Impl& m = *impl_;
  m.program = std::move(program);
  for (TensorId t : graph.inputs()) m.inputs.push_back(graph.type(t));
  for (TensorId t : graph.outputs()) m.outputs.push_back(graph.type(t));
  m.grain = smallest_element(m.program.source);
  const Plan& plan = m.program.plan;
  for (const Plan::Copy& c : plan.copies) m.copy_bytes.push_back(graph.type(c.from).bytes());
  for (size_t i = 0; i < graph.tensors().size(); ++i) {
    if (plan.slots[i].place != Place::Constant || plan.slots[i].alias >= 0) continue;
    const TensorId t{uint32_t(i)};
    const auto& a = std::get<ConstAttrs>(graph.producer(t).attrs);
    m.constants.emplace_back(i, size_t(graph.type(t).bytes()));
    fill_constant(graph.type(t), a.value, m.constants.back().second.data());
  }

  std::vector<std::string> names;
  for (size_t i = 0; i < m.program.kernels.size(); ++i)
    if (m.program.kernels[i].call)
      m.libraries.emplace(int(i),
                          call_program(graph, plan.tasks[i].op, *m.program.kernels[i].call));
    else
      names.push_back(m.program.kernels[i].name);
  m.kernels = std::make_unique<EmulatedKernels>(m.program.source, names);
}

EmulatedProgram::~EmulatedProgram() = default;

const CudaProgram& EmulatedProgram::program() const { return impl_->program; }

std::optional<KernelFault> EmulatedProgram::run(std::span<const void* const> inputs,
                                                std::span<void* const> outputs,
                                                uint64_t seed) const {
  const Impl& m = *impl_;
  const Plan& plan = m.program.plan;
  CHECK(inputs.size() == m.inputs.size() && outputs.size() == m.outputs.size())
      << "a program takes one pointer per input and output";
  const AlignedMemory arena(plan.arena.bytes), kept(plan.kept.bytes);
  // NaN everywhere: what is read without having been written shows.
  std::memset(arena.data, 0xff, size_t(plan.arena.bytes));
  std::memset(kept.data, 0xff, size_t(plan.kept.bytes));
  const auto address = [&](int slot) -> std::byte* {
    const int root = plan.root(slot);
    const Slot& s = plan.slots[size_t(root)];
    switch (s.place) {
    case Place::Input: return static_cast<std::byte*>(const_cast<void*>(inputs[size_t(s.index)]));
    case Place::Output: return static_cast<std::byte*>(outputs[size_t(s.index)]);
    case Place::Arena: return arena.data + s.offset;
    case Place::Kept: return kept.data + s.offset;
    case Place::Constant:
      for (const auto& [at, bytes] : m.constants)
        if (at == size_t(root)) return const_cast<std::byte*>(bytes.data());
      break;
    }
    unreachable("a slot without memory");
  };
  AlignedMemory tickets(m.program.ticket_bytes());
  std::memset(tickets.data, 0, size_t(m.program.ticket_bytes()));
  std::vector<int> order;
  for (const Schedule* schedule : {&plan.once, &plan.run})
    for (const std::vector<int>& phase : schedule->phases)
      order.insert(order.end(), phase.begin(), phase.end());
  for (int t : order) {
    const CudaKernel& k = m.program.kernels[size_t(t)];
    const Task& task = plan.tasks[size_t(t)];
    if (const auto library = m.libraries.find(t); library != m.libraries.end()) {
      std::vector<NDArray> operands;
      for (size_t i = 0; i < task.reads.size(); ++i)
        operands.push_back(
            from_memory(library->second.type(library->second.inputs()[i]), address(task.reads[i])));
      const std::vector<NDArray> results = eval(library->second, operands);
      for (size_t i = 0; i < results.size(); ++i) {
        const std::vector<std::byte> bytes = to_memory(results[i]);
        std::memcpy(address(task.writes[i]), bytes.data(), bytes.size());
      }
      continue;
    }
    EmulatedLaunch launch;
    launch.grid = k.grid;
    launch.threads = k.threads;
    launch.shared_bytes = k.shared_bytes;
    launch.seed = seed;
    launch.grain = m.grain;
    std::vector<void*> arguments;
    std::vector<ts::TensorMap> maps;
    for (size_t i = 0; i < k.arguments.size(); ++i) {
      const int slot = k.arguments[i];
      const bool written = i >= task.reads.size();
      std::byte* const data = address(slot);
      launch.buffers.push_back(
          {data, plan.slots[size_t(plan.root(slot))].bytes, written, !written});
      arguments.push_back(data);
    }
    if (k.tickets > 0) {
      std::byte* const data = tickets.data + size_t(k.first_ticket) * sizeof(unsigned);
      launch.buffers.push_back(
          {data, int64_t(k.tickets) * int64_t(sizeof(unsigned)), true, true, true});
      arguments.push_back(data);
    }
    for (const TensorMapSpec& spec : k.maps)
      maps.push_back(host_tensor_map(spec, arguments[size_t(spec.argument)]));
    for (ts::TensorMap& map : maps) arguments.push_back(&map);
    if (std::optional<KernelFault> fault =
            emulate(launch, [&] { m.kernels->call(k.name, arguments.data()); }))
      return fault;
  }
  for (size_t i = 0; i < plan.copies.size(); ++i)
    std::memcpy(outputs[size_t(plan.copies[i].output)], address(int(plan.copies[i].from.index)),
                size_t(m.copy_bytes[i]));
  return std::nullopt;
}

}  // namespace tessera
