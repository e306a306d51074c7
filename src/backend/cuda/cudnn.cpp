// Convolutions and attention by cuDNN.
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "backend/cuda/cudnn_graph.h"
#include "backend/cuda/libraries.h"
#include "backend/cuda/nvrtc.h"
#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace cudnn {
namespace {

constexpr size_t kLeastVersion = 90000;

// Attributes, see cudnn_graph.h.
constexpr int kHeuristicKind = 200, kHeuristicGraph = 201, kHeuristicResults = 202;
constexpr int kConfigEngine = 300, kNotes = 1303;
constexpr int kPlanHandle = 400, kPlanConfig = 401, kPlanWorkspace = 402;
constexpr int kGraphHandle = 800, kGraphOperations = 801;
constexpr int kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003;
// Ways that the library ranks by a model, and slow ones that can do almost everything.
constexpr std::array<int, 2> kHeuristics = {3, 2};
// What notes say of an engine's numbers: tensor cores (of f32: rounded factors), operands rounded
// to a narrower type, sums in one, transforms (errors relative to the largest result), and results
// that differ from run to run.
constexpr int kTensorCores = 0, kRoundsOperands = 1, kNarrowSums = 2, kFourier = 3, kVaries = 4,
              kWinograd = 5;
constexpr int64_t kMostConfigs = 256, kMostNotes = 16;

std::mutex mutex;  // of what follows
std::string path;
std::shared_ptr<const CudnnApi> loaded;

std::shared_ptr<const CudnnApi> api() {
  const std::lock_guard lock(mutex);
  if (loaded) return loaded;
  try {
    if (path.empty()) nvrtc_version();  // what engines that cuDNN compiles take is loaded then
  } catch (const Error&) {              // they are left out of its answers
  }
  const std::shared_ptr<const CudnnApi> api(new CudnnApi{SharedLibrary(
      "cuDNN", "version 9", cuda_places(path, {"libcudnn.so.9"}),
      "cuDNN 9 is not found: pip install nvidia-cudnn-cu13 (or -cu12, for a driver of CUDA 12)")});
  if (api->version() < kLeastVersion)
    throw Error(ErrorKind::ToolMissing, "cuDNN is of version " + std::to_string(api->version()) +
                                            ", and 9.0 is needed: pip install -U "
                                            "nvidia-cudnn-cu13");
  loaded = api;
  return api;
}

// cuDNN's own state on a device: one per context, since making one takes long. Calls are put on a
// stream one at a time.
struct Handle {
  std::shared_ptr<const CudnnApi> api;
  std::shared_ptr<CudaContext> context;
  void* handle = nullptr;
  std::mutex mutex;  // of the stream that it is set to

  ~Handle() {
    if (handle == nullptr) return;
    try {
      const CudaContext::Current current(*context);
      api->destroy(handle);
    } catch (const Error&) {  // the context is gone, and what is in it
    }
  }
  static std::shared_ptr<Handle> of(const std::shared_ptr<CudaContext>& context) {
    static std::mutex mutex;
    static std::map<const CudaContext*, std::weak_ptr<Handle>> handles;
    auto api = cudnn::api();
    const std::lock_guard lock(mutex);
    auto& known = handles[context.get()];
    if (auto made = known.lock(); made && made->api == api) return made;
    auto made = std::make_shared<Handle>();
    made->api = api;
    made->context = context;
    check_cudnn(*api, api->create(&made->handle), "start cuDNN on " + context->device().str());
    known = made;
    return made;
  }
};

// Whether an engine may be used for the call.
bool allowed(const CudnnApi& api, const LibraryCall& call, void* config) {
  CudnnDescriptor engine(api, kEngine);
  void* into = engine.get();
  int64_t count = 0;
  check_cudnn(api, api.get(config, kConfigEngine, kDescriptor, 1, &count, &into),
              "read an engine of cuDNN");
  std::array<int, kMostNotes> notes{};
  check_cudnn(api, api.get(engine.get(), kNotes, kNumericalNote, kMostNotes, &count, notes.data()),
              "read what cuDNN notes of an engine");
  for (int64_t i = 0; i < std::min(count, kMostNotes); ++i) {
    switch (notes[size_t(i)]) {
    case kTensorCores:
      if (call.dtype == DType::F32 && !call.tf32) return false;
      break;
    case kRoundsOperands:
    case kNarrowSums:
    case kFourier:
    case kVaries:
    case kWinograd: return false;
    default: break;
    }
  }
  return true;
}

class Call : public LibraryCallable {
 public:
  Call(const std::shared_ptr<CudaContext>& context, const LibraryCall& call, int64_t most)
      : call_(call), context_(context) {
    const CudaContext::Current current(*context);
    const RelaxedCapture relaxed(context->driver());
    handle_ = Handle::of(context);
    const CudnnApi& api = *handle_->api;
    operations_ = cudnn_operations(api, call);
    const std::string doing = "describe " + call.str() + " for cuDNN";
    graph_ = CudnnDescriptor(api, kGraph);
    graph_.set(kGraphHandle, kHandle, 1, &handle_->handle);
    auto list = mapped(operations_.operations, [&](const CudnnDescriptor& o) { return o.get(); });
    graph_.set(kGraphOperations, kDescriptor, int64_t(list.size()), list.data());
    if (graph_.finish())
      for (const int mode : kHeuristics)
        if (choose(mode, most)) return;
    throw Error(ErrorKind::Unsupported, "cuDNN " + cudnn_version() + " has no way for " +
                                            call.str() + " on " + context->device().str() +
                                            " with at most " + std::to_string(most >> 20) +
                                            " MiB of workspace");
  }

  int64_t workspace_bytes() const override { return workspace_; }

  void run(std::span<const CudaAddress> operands, CudaAddress out, CudaAddress workspace,
           CudaStream stream) const override {
    const CudnnApi& api = *handle_->api;
    const CudaContext::Current current(*context_);
    std::vector<int64_t> ids = operations_.operands;
    std::vector<const void*> pointers;
    for (int64_t id : ids)
      pointers.push_back(reinterpret_cast<const void*>(operands[size_t(id - 1)]));
    ids.push_back(CudnnOperations::kResult);
    pointers.push_back(reinterpret_cast<const void*>(out));
    // Numbers lie on the host.
    static constexpr float kHidden = -std::numeric_limits<float>::infinity();
    if (operations_.scaled) {
      ids.push_back(CudnnOperations::kScale);
      pointers.push_back(&operations_.scale);
    }
    if (operations_.masked) {
      ids.push_back(CudnnOperations::kMinusInfinity);
      pointers.push_back(&kHidden);
    }
    const void* work = reinterpret_cast<const void*>(workspace);
    CudnnDescriptor pack(api, kPack);
    pack.set_numbers(kPackIds, ids);
    pack.set(kPackPointers, kPointer, int64_t(pointers.size()), pointers.data());
    pack.set(kPackWorkspace, kPointer, 1, &work);
    CHECK(pack.finish()) << "cuDNN refuses addresses";
    const std::lock_guard lock(handle_->mutex);
    check_cudnn(api, api.set_stream(handle_->handle, stream), "set cuDNN's stream");
    check_cudnn(api, api.execute(handle_->handle, plan_.get(), pack.get()), "run " + call_.str());
  }

 private:
  // The first plan that is allowed, can be built and takes little enough; false if none is.
  bool choose(int mode, int64_t most) {
    const CudnnApi& api = *handle_->api;
    CudnnDescriptor heuristic(api, kHeuristic);
    heuristic.set(kHeuristicGraph, graph_);
    heuristic.set_mode(kHeuristicKind, kHeuristicMode, mode);
    if (!heuristic.finish()) return false;
    std::vector<CudnnDescriptor> configs;
    std::vector<void*> list;
    for (int64_t i = 0; i < kMostConfigs; ++i) {
      configs.emplace_back(api, kConfig);
      list.push_back(configs.back().get());
    }
    int64_t count = 0;
    const int status =
        api.get(heuristic.get(), kHeuristicResults, kDescriptor, kMostConfigs, &count, list.data());
    if (status >= kCudnnNotSupported && status < kCudnnInternal) return false;
    check_cudnn(api, status, "choose a way for " + call_.str());
    for (int64_t i = 0; i < std::min(count, kMostConfigs); ++i) {
      if (!allowed(api, call_, list[size_t(i)])) continue;
      CudnnDescriptor plan(api, kPlan);
      plan.set(kPlanHandle, kHandle, 1, &handle_->handle);
      plan.set(kPlanConfig, kDescriptor, 1, &list[size_t(i)]);
      // Heuristics also list what cannot be built here: NVRTC may be missing, memory too small.
      if (api.finish(plan.get()) != 0) continue;
      int64_t one = 0, bytes = 0;
      check_cudnn(api, api.get(plan.get(), kPlanWorkspace, kInt64, 1, &one, &bytes),
                  "read the workspace of " + call_.str());
      if (bytes > most) continue;
      workspace_ = bytes;
      plan_ = std::move(plan);
      config_ = std::move(configs[size_t(i)]);
      return true;
    }
    return false;
  }

  LibraryCall call_;
  std::shared_ptr<CudaContext> context_;
  std::shared_ptr<Handle> handle_;  // outlives descriptors
  CudnnOperations operations_;
  CudnnDescriptor graph_, config_, plan_;
  int64_t workspace_ = 0;
};

}  // namespace
}  // namespace cudnn

std::string cudnn_version() {
  const size_t v = cudnn::api()->version();
  return std::to_string(v / 10000) + "." + std::to_string(v % 10000 / 100) + "." +
         std::to_string(v % 100);
}

bool has_cudnn() {
  try {
    const auto driver = CudaDriver::get();
    const size_t made_with = cudnn::api()->cudart_version();
    require_driver_for(*driver, int(made_with / 1000), int(made_with % 1000 / 10));
    const std::lock_guard lock(cudnn::mutex);
    return driver->runs_host_code() == !cudnn::path.empty();
  } catch (const Error&) {
    return false;
  }
}

void use_cudnn(const std::string& where) {
  {
    const std::lock_guard lock(cudnn::mutex);
    cudnn::path = where;
    cudnn::loaded.reset();
  }
  forget_library_calls();
}

std::unique_ptr<const LibraryCallable> make_cudnn_callable(std::shared_ptr<CudaContext> context,
                                                           const LibraryCall& call,
                                                           int64_t most_workspace) {
  return std::make_unique<cudnn::Call>(context, call, most_workspace);
}

}  // namespace tessera
