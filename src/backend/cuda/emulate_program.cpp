#include "backend/cuda/emulate_program.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <set>

#include "backend/arrays.h"
#include "backend/compiler.h"
#include "backend/cuda/nvrtc.h"
#include "backend/host_kernels.h"
#include "base/check.h"
#include "base/error.h"
#include "base/process.h"
#include "eval/eval.h"

#include "backend/cuda/device/device.cuh"

namespace tessera {
namespace {

// Calls kernels with their parameters as an array of pointers: to buffers, and to maps.
const char* const kCalls = R"(
template <class T> struct ts_argument { static T of(void* p) { return *static_cast<T*>(p); } };
template <class T> struct ts_argument<T*> { static T* of(void* p) { return static_cast<T*>(p); } };
template <class... P, int... i>
void ts_call(void (*kernel)(P...), void** arguments, std::integer_sequence<int, i...>) {
  kernel(ts_argument<P>::of(arguments[i])...);
}
template <class... P> void ts_call(void (*kernel)(P...), void** arguments) {
  ts_call(kernel, arguments, std::make_integer_sequence<int, int(sizeof...(P))>{});
}
extern "C" void ts_bind(const ts::host::Api* api) { ts::host::api = api; }
)";

struct AlignedMemory {
  explicit AlignedMemory(int64_t bytes)
      : data(static_cast<std::byte*>(
            ::operator new (size_t(std::max<int64_t>(bytes, 1)), std::align_val_t{256}))) {}
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  ~AlignedMemory() { ::operator delete (data, std::align_val_t{256}); }
  std::byte* data;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tessera-cuda-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw Error(ErrorKind::Io, "cannot make a folder in the temporary directory");
    path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error(ErrorKind::Io, "cannot write " + path.string() + " (is the disk full?)");
}

}  // namespace

ts::TensorMap host_tensor_map(const TensorMapSpec& spec, void* data) {
  return ts::host::tensor_map(static_cast<char*>(data) + spec.offset * spec.element_bytes,
                              int(spec.rows), int(spec.columns), spec.pitch * spec.element_bytes,
                              spec.element_bytes, spec.box_rows, spec.box_columns, spec.swizzled);
}

EmulatedKernels::EmulatedKernels(const std::string& source, const std::vector<std::string>& names,
                                 int optimize) {
  if (names.empty()) return;  // libraries do everything
  const TemporaryFolder folder;
  for (const char* header : {"device.cuh", "host.cuh", "api.h", "tiles.cuh"})
    write_text(folder.path / header, device_header(header));
  std::string text = source + "\n#include <utility>\n" + kCalls;
  const std::set<std::string> distinct(names.begin(), names.end());
  for (const std::string& name : distinct)
    text += "extern \"C\" void call_" + name + "(void** a) { ts_call(&" + name + ", a); }\n";
  const std::string from = (folder.path / "kernels.cpp").string(),
                    to = (folder.path / "kernels.so").string();
  write_text(from, text);
  const Compiler compiler = find_compiler();
  const ProcessResult result =
      run_process({compiler.path, "-std=c++17", "-O" + std::to_string(optimize), "-fPIC", "-shared",
                   "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-o", to, from},
                  300);
  if (result.exit_code != 0)
    throw Error(ErrorKind::Internal,
                compiler.path + " refuses generated CUDA:\n" + result.err.substr(0, 4000));
  library_ = dlopen(to.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr)
    throw Error(ErrorKind::Internal, std::string("cannot load emulated kernels: ") + dlerror());
  const auto bind = reinterpret_cast<void (*)(const ts::host::Api*)>(dlsym(library_, "ts_bind"));
  CHECK(bind != nullptr) << "emulated kernels cannot be bound";
  bind(emulator_api());
  for (const std::string& name : distinct) {
    const auto call = reinterpret_cast<void (*)(void**)>(dlsym(library_, ("call_" + name).c_str()));
    CHECK(call != nullptr) << name << " is not among the emulated kernels";
    kernels_[name] = call;
  }
}

EmulatedKernels::~EmulatedKernels() {
  if (library_ != nullptr) dlclose(library_);
}

void EmulatedKernels::call(const std::string& name, void** arguments) const {
  kernels_.at(name)(arguments);
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
    const Type& type = graph.type(t);
    NDArray x = NDArray::zeros(type.dtype, extents(type.shape));
    for (double& real : x.reals) real = round_to(type.dtype, a.value.to_double());
    for (int64_t& number : x.ints) number = wrap_to(type.dtype, a.value.num());
    m.constants.emplace_back(i, to_memory(x));
  }

  std::vector<std::string> names;
  for (size_t i = 0; i < m.program.kernels.size(); ++i) {
    if (m.program.kernels[i].call)
      m.libraries.emplace(int(i),
                          call_program(graph, plan.tasks[i].op, *m.program.kernels[i].call));
    else
      names.push_back(m.program.kernels[i].name);
  }
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
