#include "backend/cpu/module.h"

#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/cpu/compile.h"
#include "backend/cpu/emit.h"
#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

using KernelFunction = void (*)(void** arguments, long begin, long end, char* scratch);

// One call, ready to go: tensors are looked up in a table of addresses that each run fills.
struct Call {
  KernelFunction function;
  std::vector<size_t> tensors;
  int64_t units, chunk;
  bool workspace;
};

// What one run in flight needs for itself.
struct RunBuffers {
  AlignedBuffer arena, scratch, workspace;
  std::vector<void*> addresses;  // one per tensor
};

template <class T> void fill(AlignedBuffer& buffer, int64_t n, T x) {
  T* data = static_cast<T*>(buffer.data());
  for (int64_t i = 0; i < n; ++i) data[i] = x;
}

// Memory that holds a constant splat.
AlignedBuffer constant_data(const Type& type, const Rational& value) {
  AlignedBuffer buffer(static_cast<size_t>(type.bytes()));
  const int64_t n = num_elements(type.shape);
  const double x = value.to_double();
  switch (type.dtype) {
  case DType::F64: fill(buffer, n, x); break;
  case DType::F32: fill(buffer, n, static_cast<float>(x)); break;
  case DType::F16:
  case DType::BF16: fill(buffer, n, float_bits16(type.dtype, static_cast<float>(x))); break;
  case DType::I64: fill(buffer, n, value.num()); break;
  case DType::I32: fill(buffer, n, static_cast<int32_t>(value.num())); break;
  case DType::I8: fill(buffer, n, static_cast<int8_t>(value.num())); break;
  case DType::U8: fill(buffer, n, static_cast<uint8_t>(value.num())); break;
  case DType::Bool: fill(buffer, n, static_cast<uint8_t>(!value.is_zero())); break;
  }
  return buffer;
}

}  // namespace

uint16_t float_bits16(DType dtype, float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  const uint32_t sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
  if (dtype == DType::BF16) {
    if (a > 0x7f800000) return static_cast<uint16_t>(b >> 16 | 0x40);
    return static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
  CHECK(dtype == DType::F16);
  if (a > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal: multiples of 2^-24
    const float m = std::fabs(x) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(m)));
  }
  return static_cast<uint16_t>(sign | (a - 0x37fff001 + (a >> 13 & 1)) >> 13);
}

struct Module::Impl {
  std::vector<Type> inputs, outputs;
  Program program;
  std::string plan_text;
  std::unique_ptr<Library> library;
  KernelPool* pool = nullptr;
  std::vector<Call> calls;
  size_t scratch_per_worker = 0;
  std::vector<TensorId> input_ids, output_ids;
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
    buffers->arena = AlignedBuffer(static_cast<size_t>(program.plan.arena_bytes));
    buffers->scratch = AlignedBuffer(scratch_per_worker * static_cast<size_t>(pool->threads()));
    buffers->workspace = AlignedBuffer(static_cast<size_t>(program.workspace_bytes));
    buffers->addresses.resize(program.plan.tensors.size(), nullptr);
    for (size_t i = 0; i < program.plan.tensors.size(); ++i) {
      const TensorPlan& p = program.plan.tensors[i];
      if (p.place == Place::Arena && p.alias < 0) {
        buffers->addresses[i] = static_cast<char*>(buffers->arena.data()) + p.offset;
      }
    }
    for (const auto& [tensor, data] : constants) buffers->addresses[tensor] = data.data();
    return buffers;
  }
};

Module::Module(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Module::~Module() = default;

std::unique_ptr<Module> Module::compile(const Graph& graph, Cache& cache,
                                        const ModuleOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->program = emit_program(graph, options.isa);
  impl->plan_text = impl->program.plan.str(graph);
  impl->pool = options.pool != nullptr ? options.pool : &KernelPool::shared();
  CompileOptions compile;
  compile.isa = options.isa;
  compile.timeout_s = options.compile_timeout_s;
  impl->library = compile_and_load(impl->program.source, compile, cache);
  for (const Step& step : impl->program.steps) {
    Call call;
    call.function = reinterpret_cast<KernelFunction>(impl->library->symbol(step.symbol));
    for (TensorId t : step.arguments) call.tensors.push_back(t.index);
    call.units = step.units;
    call.chunk = step.chunk;
    call.workspace = step.workspace;
    impl->calls.push_back(std::move(call));
  }
  // Workers' scratch areas start on different pages.
  impl->scratch_per_worker =
      (static_cast<size_t>(impl->program.scratch_bytes) + 4095) / 4096 * 4096 + 128;
  impl->scratch_per_worker = (impl->scratch_per_worker + 63) / 64 * 64;
  impl->input_ids = graph.inputs();
  impl->output_ids = graph.outputs();
  for (TensorId t : graph.inputs()) impl->inputs.push_back(graph.type(t));
  for (TensorId t : graph.outputs()) impl->outputs.push_back(graph.type(t));
  for (size_t i = 0; i < impl->program.plan.tensors.size(); ++i) {
    if (impl->program.plan.tensors[i].place != Place::Constant) continue;
    const TensorId t(i);
    const auto& a = std::get<ConstAttrs>(graph.producer(t).attrs);
    impl->constants.emplace_back(i, constant_data(graph.type(t), a.value));
  }
  for (const Plan::Copy& c : impl->program.plan.copies)
    impl->copy_bytes.push_back(graph.type(c.from).bytes());
  return std::unique_ptr<Module>(new Module(std::move(impl)));
}

void Module::run(std::span<const void* const> inputs, std::span<void* const> outputs) const {
  const Impl& m = *impl_;
  if (inputs.size() != m.inputs.size() || outputs.size() != m.outputs.size()) {
    throw Error(ErrorKind::BadInput,
                "the program takes " + std::to_string(m.inputs.size()) + " inputs and gives " +
                    std::to_string(m.outputs.size()) + " outputs, but was called with " +
                    std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
  }
  std::unique_ptr<RunBuffers> buffers = m.take();
  std::vector<void*>& address = buffers->addresses;
  for (size_t i = 0; i < inputs.size(); ++i)
    address[m.input_ids[i].index] = const_cast<void*>(inputs[i]);
  const std::vector<TensorPlan>& plan = m.program.plan.tensors;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].place == Place::Output) address[i] = outputs[static_cast<size_t>(plan[i].index)];
    if (plan[i].alias >= 0) address[i] = address[static_cast<size_t>(plan[i].alias)];
  }
  struct Context {
    KernelFunction function;
    void** arguments;
    char* scratch;
    size_t scratch_per_worker;
  };
  void* arguments[64];
  std::vector<void*> many;
  for (const Call& call : m.calls) {
    void** list = arguments;
    if (call.tensors.size() + 1 > std::size(arguments)) {
      many.resize(call.tensors.size() + 1);
      list = many.data();
    }
    for (size_t i = 0; i < call.tensors.size(); ++i) list[i] = address[call.tensors[i]];
    if (call.workspace) list[call.tensors.size()] = buffers->workspace.data();
    Context context{call.function, list, static_cast<char*>(buffers->scratch.data()),
                    m.scratch_per_worker};
    m.pool->parallel_for(
        call.units, call.chunk,
        [](void* c, long begin, long end, int worker) {
          const Context& at = *static_cast<Context*>(c);
          at.function(at.arguments, begin, end,
                      at.scratch + static_cast<size_t>(worker) * at.scratch_per_worker);
        },
        &context);
  }
  for (size_t i = 0; i < m.program.plan.copies.size(); ++i) {
    const Plan::Copy& c = m.program.plan.copies[i];
    std::memcpy(outputs[static_cast<size_t>(c.output)], address[c.from.index],
                static_cast<size_t>(m.copy_bytes[i]));
  }
  const std::lock_guard lock(m.mutex);
  m.idle.push_back(std::move(buffers));
}

const std::vector<Type>& Module::input_types() const { return impl_->inputs; }
const std::vector<Type>& Module::output_types() const { return impl_->outputs; }
const std::string& Module::source() const { return impl_->program.source; }
int64_t Module::workspace_bytes() const { return impl_->program.plan.arena_bytes; }
const std::string& Module::plan_text() const { return impl_->plan_text; }
bool Module::from_cache() const { return impl_->library->from_cache(); }
double Module::compile_s() const { return impl_->library->compile_s(); }

}  // namespace tessera
