#include "backend/cuda/cuda_module.h"

#include <algorithm>
#include <map>

#include "backend/arrays.h"
#include "base/check.h"
#include "base/error.h"
#include "base/wall_clock.h"

namespace tessera {
namespace {

constexpr int kArrayAlignment = 16;  // of arrays, in bytes: that of the widest access
constexpr size_t kMostBuffers = 32;
constexpr int kInvalidClusterSize = 912;  // CUDA_ERROR_INVALID_CLUSTER_SIZE

constexpr int kPromote256 = 3;  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B

std::string kib(int64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

std::string no_room(const CudaKernel& k, const CudaDevice& device) {
  return "kernel " + k.name + " meets in clusters of " + std::to_string(k.cluster) +
         " blocks, of " + kib(k.shared_bytes) + " of shared memory each, which is more than " +
         device.str() + " has room for side by side";
}

// Binaries run on the same generation from their minor version on; those of one architecture alone
// nowhere else (docs.nvidia.com/cuda/blackwell-compatibility-guide).
bool runs_on(const CudaArch& arch, const CudaDevice& device) {
  if (arch.major != device.major) return false;
  return arch.specific ? arch.minor == device.minor : arch.minor <= device.minor;
}

}  // namespace

// One kernel, or a library's call, ready to go: slots are looked up in a table of addresses that
// each call fills.
struct CudaModule::Launch {
  CudaHandle function = nullptr;
  std::shared_ptr<const LibraryCallable> library;  // or null
  const CudaKernel* kernel = nullptr;
  std::vector<int> slots;  // of its arguments, aliases resolved
};

// What calls on one stream, or in one capture, need.
struct CudaModule::Buffers {
  CudaStream stream = nullptr;
  uint64_t capture = 0;
  DeviceMemory arena;
  DeviceMemory library;                // one for all calls: they run one after another
  DeviceMemory tickets;                // every launch leaves them as it found them, at zero
  std::vector<CudaAddress> addresses;  // one per slot
  struct Map {
    CudaAddress address = 0;
    CudaTensorMap map{};
  };
  std::map<const TensorMapSpec*, Map> maps;  // as they were last needed
};

CudaModule::CudaModule(const Graph& graph, CudaProgram program,
                       std::shared_ptr<CudaContext> context)
    : graph_(graph), program_(std::move(program)), context_(std::move(context)) {}

// Delegates, so that the destructor unloads the kernels if anything after loading them throws.
CudaModule::CudaModule(const Graph& graph, CudaProgram program, const std::string& image,
                       std::shared_ptr<CudaContext> context)
    : CudaModule(graph, std::move(program), std::move(context)) {
  const CudaDevice& device = context_->device();
  const CudaApi& api = context_->driver().api();
  if (!runs_on(program_.arch, device))
    throw Error(ErrorKind::Unsupported, "the program is compiled for " + program_.arch.str() +
                                            ", which " + device.str() +
                                            " does not run; use target cuda:" + device.arch());
  const Plan& plan = program_.plan;
  CHECK(program_.kernels.size() == plan.tasks.size()) << "one kernel per task";
  for (const CudaKernel& k : program_.kernels) {
    if (k.shared_bytes > device.shared_bytes)
      throw Error(ErrorKind::Unsupported,
                  "kernel " + k.name + " takes " + kib(k.shared_bytes) +
                      " of shared memory, and a block on " + device.str() + " has at most " +
                      kib(device.shared_bytes) +
                      "; optimize for this device (target cuda:" + device.arch() + ")");
    if (k.threads > device.threads)
      throw Error(ErrorKind::Unsupported, "kernel " + k.name + " takes " +
                                              std::to_string(k.threads) + " threads a block, and " +
                                              device.str() + " has at most " +
                                              std::to_string(device.threads));
    if (!k.maps.empty() && api.encode_tiled == nullptr)
      throw Error(ErrorKind::ToolMissing, "the driver is too old: it is for CUDA " +
                                              cuda_version_text(context_->driver().version()) +
                                              ", and copying boxes takes 12.0 or later; update it");
  }
  const CudaContext::Current current(*context_);
  const RelaxedCapture relaxed(context_->driver());
  if (std::ranges::any_of(program_.kernels, [](const CudaKernel& k) { return !k.call; }))
    context_->check(api.module_load(&module_, image.data()), "load kernels on " + device.str());
  const auto prepare_launch = [&](int task) {
    const CudaKernel& k = program_.kernels[size_t(task)];
    Launch l;
    l.kernel = &k;
    for (int s : k.arguments) l.slots.push_back(plan.root(s));
    if (k.call) {
      l.library = library_callable(context_, *k.call);
      library_bytes_ = std::max(library_bytes_, l.library->workspace_bytes());
      return l;
    }
    context_->check(api.module_function(&l.function, module_, k.name.c_str()), "find " + k.name);
    context_->check(api.set_function_attribute(l.function, cuda_attribute::kFunctionDynamicShared,
                                               int(k.shared_bytes)),
                    "give " + k.name + " " + kib(k.shared_bytes) + " of shared memory");
    constexpr int kLargeClusters = 14;  // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    if (k.cluster > CudaArch::portable_cluster)
      context_->check(api.set_function_attribute(l.function, kLargeClusters, 1),
                      "allow large clusters of " + k.name);
    if (k.cluster > 1 && api.active_clusters != nullptr) {
      CudaLaunchConfig config;
      for (size_t d = 0; d < 3; ++d) config.grid[d] = unsigned(k.grid[d]);
      config.block[0] = unsigned(k.threads);
      config.block[1] = config.block[2] = 1;
      config.shared_bytes = unsigned(k.shared_bytes);
      int clusters = 0;
      const int asked = api.active_clusters(&clusters, l.function, &config);
      if (asked != kInvalidClusterSize)
        context_->check(asked, "ask for room for the clusters of " + k.name);
      if (clusters == 0) throw Error(ErrorKind::Unsupported, no_room(k, device));
    }
    int threads = 0;
    context_->check(api.function_attribute(&threads, cuda_attribute::kFunctionThreads, l.function),
                    "ask for the limits of " + k.name);
    if (threads < k.threads)
      throw Error(ErrorKind::Unsupported, "kernel " + k.name + " takes so many registers that " +
                                              device.str() + " runs at most " +
                                              std::to_string(threads) + " threads a block, not " +
                                              std::to_string(k.threads));
    return l;
  };
  for (const auto& [schedule, list] : {std::pair{&plan.once, &once_}, std::pair{&plan.run, &run_}})
    for (const std::vector<int>& phase : schedule->phases)
      for (int task : phase) list->push_back(prepare_launch(task));
  for (TensorId t : graph_.inputs()) inputs_.push_back(graph_.type(t));
  for (TensorId t : graph_.outputs()) outputs_.push_back(graph_.type(t));
  weights_ = plan.weights(graph_);
  for (size_t i = 0; i < graph_.tensors().size(); ++i) {
    if (plan.slots[i].place != Place::Constant || plan.slots[i].alias >= 0) continue;
    const TensorId t(i);
    const auto& a = std::get<ConstAttrs>(graph_.producer(t).attrs);
    std::vector<std::byte> data(size_t(graph_.type(t).bytes()));
    fill_constant(graph_.type(t), a.value, data.data());
    DeviceMemory memory(context_, int64_t(data.size()), "the constants");
    memory.fill(data.data(), nullptr);
    constants_.emplace_back(i, std::move(memory));
  }
  if (weights_.empty() && !once_.empty())
    constants_only_ = prepare(std::vector<CudaAddress>(inputs_.size(), 0), nullptr);
}

CudaModule::~CudaModule() {
  if (module_ == nullptr) return;
  try {
    const CudaContext::Current current(*context_);
    const RelaxedCapture relaxed(context_->driver());
    context_->driver().api().module_unload(module_);
  } catch (const Error&) {  // the context is gone, and the module with it
  }
}

uint64_t CudaModule::capture_of(CudaStream stream) const {
  int status = 0;
  uint64_t id = 0;
  context_->check(
      context_->driver().api().stream_capture(stream, &status, &id, nullptr, nullptr, nullptr),
      "launch on this stream");
  if (status == 2)
    throw Error(ErrorKind::Usage,
                "the capture of a CUDA graph on this stream was spoilt by an earlier call that "
                "cannot be captured; end it and begin again");
  return status == 1 ? id : 0;
}

CudaModule::Buffers& CudaModule::buffers(CudaStream stream, uint64_t capture) const {
  for (const auto& b : buffers_)
    if (b->stream == stream && b->capture == capture) return *b;
  if (capture == 0 && buffers_.size() >= kMostBuffers &&
      context_->driver().api().context_synchronize() == 0)
    std::erase_if(buffers_, [](const auto& b) { return b->capture == 0; });
  auto made = std::make_unique<Buffers>();
  made->stream = stream;
  made->capture = capture;
  made->arena = DeviceMemory(context_, program_.plan.arena.bytes, "the intermediate results");
  made->library = DeviceMemory(context_, library_bytes_, "the workspace of libraries");
  if (const int64_t bytes = program_.ticket_bytes(); bytes > 0) {
    made->tickets = DeviceMemory(context_, bytes, "the tickets of blocks");
    made->tickets.clear();
  }
  const std::vector<Slot>& slots = program_.plan.slots;
  made->addresses.resize(slots.size(), 0);
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i].place == Place::Arena && slots[i].alias < 0)
      made->addresses[i] = made->arena.address() + CudaAddress(slots[i].offset);
  for (const auto& [slot, memory] : constants_) made->addresses[slot] = memory.address();
  buffers_.push_back(std::move(made));
  return *buffers_.back();
}

void CudaModule::fill_addresses(Buffers& buffers, std::span<const CudaAddress> in,
                                std::span<const CudaAddress> out, CudaAddress kept) const {
  std::vector<CudaAddress>& address = buffers.addresses;
  for (size_t i = 0; i < in.size(); ++i) address[graph_.inputs()[i].index] = in[i];
  const std::vector<Slot>& slots = program_.plan.slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].alias >= 0) continue;
    if (slots[i].place == Place::Output && !out.empty()) address[i] = out[size_t(slots[i].index)];
    if (slots[i].place == Place::Kept) address[i] = kept + CudaAddress(slots[i].offset);
  }
}

void CudaModule::launch(const std::vector<Launch>& list, Buffers& buffers,
                        CudaStream stream) const {
  const CudaApi& api = context_->driver().api();
  std::vector<void*> parameters;
  std::vector<CudaAddress> operands;
  for (const Launch& l : list) {
    const CudaKernel& k = *l.kernel;
    if (l.library) {
      operands.clear();
      for (int s : l.slots) operands.push_back(buffers.addresses[size_t(s)]);
      l.library->run(operands, operands.back(), buffers.library.address(), stream);
      continue;
    }
    parameters.clear();
    for (int s : l.slots) parameters.push_back(&buffers.addresses[size_t(s)]);
    CudaAddress tickets =
        buffers.tickets.address() + CudaAddress(k.first_ticket) * sizeof(unsigned);
    if (k.tickets > 0) parameters.push_back(&tickets);
    for (const TensorMapSpec& spec : k.maps) {
      Buffers::Map& m = buffers.maps[&spec];
      const CudaAddress address = buffers.addresses[size_t(l.slots[size_t(spec.argument)])] +
                                  CudaAddress(spec.offset) * CudaAddress(spec.element_bytes);
      if (m.address != address) {
        const uint64_t extents[2] = {uint64_t(spec.columns), uint64_t(spec.rows)};
        const uint64_t pitch = uint64_t(spec.pitch) * uint64_t(spec.element_bytes);
        const uint32_t box[2] = {uint32_t(spec.box_columns), uint32_t(spec.box_rows)};
        const uint32_t steps[2] = {1, 1};
        context_->check(api.encode_tiled(&m.map, spec.type(), 2, address, extents, &pitch, box,
                                         steps, 0, spec.swizzle(), kPromote256, 0),
                        "describe boxes of an array of " + std::to_string(spec.rows) + " x " +
                            std::to_string(spec.columns) + " elements for " + k.name);
        m.address = address;
      }
      parameters.push_back(&m.map);
    }
    const int result = api.launch(l.function, unsigned(k.grid[0]), unsigned(k.grid[1]),
                                  unsigned(k.grid[2]), unsigned(k.threads), 1, 1,
                                  unsigned(k.shared_bytes), stream, parameters.data(), nullptr);
    if (result == cuda_error::kInvalidHandle)
      bad_input("the stream is not one of " + context_->device().str() +
                ", where the program is loaded");
    if (result == kInvalidClusterSize)
      throw Error(ErrorKind::Unsupported, no_room(k, context_->device()));
    context_->check(result, "launch " + k.name);
  }
}

void CudaModule::require_array(CudaAddress address, const char* what, size_t index,
                               const Type& type) const {
  if (type.bytes() == 0) return;
  const std::string name = std::string(what) + " " + std::to_string(index);
  const CudaApi& api = context_->driver().api();
  int device = -1;
  if (address == 0 || api.pointer_attribute(&device, cuda_attribute::kPointerDevice, address) != 0)
    bad_input(name + " is not in memory that CUDA knows; the program runs on " +
              context_->device().str());
  if (device != context_->device().ordinal)
    bad_input(name + " is on cuda:" + std::to_string(device) + ", and the program is loaded on " +
              context_->device().str());
  if (address % kArrayAlignment != 0)
    throw Error(
        ErrorKind::BadInput,
        name + " begins at an address that is no multiple of " + std::to_string(kArrayAlignment) +
            " bytes (a part of another array?); give it memory of its own, as clone() does");
}

void CudaModule::run(std::span<const CudaAddress> inputs, std::span<const CudaAddress> outputs,
                     const CudaWeights* prepared, CudaStream stream) const {
  if (inputs.size() != inputs_.size() || outputs.size() != outputs_.size())
    bad_input("the program takes " + std::to_string(inputs_.size()) + " inputs and gives " +
              std::to_string(outputs_.size()) + " outputs, but was called with " +
              std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
  const CudaContext::Current current(*context_);
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < inputs.size(); ++i) require_array(inputs[i], "input", i, inputs_[i]);
  for (size_t i = 0; i < outputs.size(); ++i) require_array(outputs[i], "output", i, outputs_[i]);
  const uint64_t capture = capture_of(stream);
  std::shared_ptr<const CudaWeights> own;
  if (prepared == nullptr) {
    if (capture != 0 && !weights_.empty())
      throw Error(ErrorKind::Usage,
                  "the weights must be prepared before a CUDA graph is captured: call once with "
                  "them first, with the option freeze");
    own = weights_.empty() ? constants_only_ : prepare_locked(inputs, stream);
    prepared = own.get();
  }
  CHECK(prepared == nullptr || prepared->bytes() == program_.plan.kept.bytes)
      << "weights prepared by another module";
  Buffers& b = buffers(stream, capture);
  fill_addresses(b, inputs, outputs, prepared != nullptr ? prepared->memory_.address() : 0);
  launch(run_, b, stream);
  const CudaApi& api = context_->driver().api();
  for (const Plan::Copy& c : program_.plan.copies) {
    const int from = program_.plan.root(int(c.from.index));
    context_->check(api.copy_on_device(outputs[size_t(c.output)], b.addresses[size_t(from)],
                                       size_t(graph_.type(c.from).bytes()), stream),
                    "copy a result");
  }
  // Weights that only this call has must stay until it is done.
  const bool wait = (own != nullptr && own != constants_only_) || (!proven_ && capture == 0);
  if (!wait) return;
  const RelaxedCapture relaxed(context_->driver());
  context_->check(api.stream_synchronize(stream), "run the program");
  proven_ = true;
}

std::shared_ptr<const CudaWeights> CudaModule::prepare(std::span<const CudaAddress> inputs,
                                                       CudaStream stream) const {
  CHECK(inputs.size() == inputs_.size()) << "prepare takes one address per input";
  const CudaContext::Current current(*context_);
  const std::lock_guard lock(mutex_);
  for (size_t i : weights_) require_array(inputs[i], "input", i, inputs_[i]);
  return prepare_locked(inputs, stream);
}

std::shared_ptr<const CudaWeights> CudaModule::prepare_locked(std::span<const CudaAddress> inputs,
                                                              CudaStream stream) const {
  const WallClock clock;
  if (capture_of(stream) != 0)
    throw Error(ErrorKind::Usage, "weights cannot be prepared while a CUDA graph is captured: call "
                                  "once with them before");
  auto prepared = std::make_shared<CudaWeights>();
  prepared->memory_ = DeviceMemory(context_, program_.plan.kept.bytes, "the prepared weights");
  Buffers& b = buffers(stream, 0);
  fill_addresses(b, inputs, {}, prepared->memory_.address());
  launch(once_, b, stream);
  const RelaxedCapture relaxed(context_->driver());
  // Other streams may use them at once.
  context_->check(context_->driver().api().stream_synchronize(stream), "prepare the weights");
  prepared->seconds_ = clock.seconds();
  return prepared;
}

void CudaModule::run_on_host_arrays(std::span<const void* const> inputs,
                                    std::span<void* const> outputs) const {
  std::vector<DeviceMemory> memory;
  std::vector<CudaAddress> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    memory.emplace_back(context_, inputs_[i].bytes(), "the inputs");
    memory.back().fill(inputs[i], nullptr);
    in.push_back(memory.back().address());
  }
  const size_t first = memory.size();
  for (const Type& t : outputs_) {
    memory.emplace_back(context_, t.bytes(), "the outputs");
    out.push_back(memory.back().address());
  }
  run(in, out, nullptr, nullptr);
  for (size_t i = 0; i < outputs.size(); ++i) memory[first + i].read(outputs[i], nullptr);
}

bool CudaModule::may_overwrite(size_t input, size_t output) const {
  CHECK(input < inputs_.size() && output < outputs_.size()) << "no such argument";
  return tessera::may_overwrite(graph_, program_.plan, input, output);
}

}  // namespace tessera
