#include "backend/cuda/library.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "backend/cuda/libraries.h"
#include "base/error.h"

namespace tessera {
namespace {

// What is known of calls: whether there is a way, and those that are in use. Building one asks
// heuristics and may compile kernels, which takes cuDNN a tenth of a second.
struct KnownCall {
  std::weak_ptr<CudaContext> context;
  LibraryCall call;
  bool has_way = false;
  std::weak_ptr<const LibraryCallable> callable;
};

std::mutex calls_mutex;  // of what follows
std::vector<KnownCall> all_known;

constexpr size_t kMostKnown = 4096;

// Where it stands in a graph does not matter to a library.
LibraryCall anywhere(LibraryCall call) {
  call.parts.clear();
  call.reads.clear();
  return call;
}

KnownCall& known(const std::shared_ptr<CudaContext>& context, const LibraryCall& call) {
  for (KnownCall& k : all_known)
    if (k.call == call && k.context.lock() == context) return k;
  std::erase_if(all_known, [](const KnownCall& k) { return k.context.expired(); });
  if (all_known.size() >= kMostKnown) all_known.clear();
  std::shared_ptr<const LibraryCallable> made;
  bool has_way = true;
  try {
    made = make_library_callable(context, call, most_library_bytes(call, context->device()));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Unsupported && e.kind() != ErrorKind::ToolMissing) throw;
    has_way = false;
  }
  all_known.push_back({context, call, has_way, made});
  return all_known.back();
}

}  // namespace

void forget_library_calls() {
  const std::lock_guard lock(calls_mutex);
  all_known.clear();
}

int64_t most_library_bytes(const LibraryCall& call, const CudaDevice& device) {
  // What cuBLAS' documentation recommends (cublasSetWorkspace); convolutions by transforms want
  // more, and a quarter of a gigabyte is what frameworks let them have.
  if (call.kind == LibraryCall::Kind::Matmul) return int64_t{device.major >= 9 ? 32 : 4} << 20;
  return std::min(int64_t{256} << 20, device.memory_bytes / 16);
}

std::unique_ptr<const LibraryCallable> make_library_callable(std::shared_ptr<CudaContext> context,
                                                             const LibraryCall& call,
                                                             int64_t most_workspace) {
  return call.kind == LibraryCall::Kind::Matmul
             ? make_cublaslt_callable(std::move(context), call, most_workspace)
             : make_cudnn_callable(std::move(context), call, most_workspace);
}

std::shared_ptr<const LibraryCallable> library_callable(const std::shared_ptr<CudaContext>& context,
                                                        const LibraryCall& asked) {
  const LibraryCall call = anywhere(asked);
  const std::lock_guard lock(calls_mutex);
  for (const KnownCall& k : all_known)
    if (k.call == call && k.context.lock() == context)
      if (auto made = k.callable.lock()) return made;
  std::shared_ptr<const LibraryCallable> made =
      make_library_callable(context, call, most_library_bytes(call, context->device()));
  std::erase_if(all_known,
                [&](const KnownCall& k) { return k.call == call && k.context.lock() == context; });
  all_known.push_back({context, call, true, made});
  return made;
}

bool library_has_way(const std::shared_ptr<CudaContext>& context, const LibraryCall& call) {
  const std::lock_guard lock(calls_mutex);
  return known(context, anywhere(call)).has_way;
}

}  // namespace tessera
