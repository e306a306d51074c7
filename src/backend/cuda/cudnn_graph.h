// Calls as cuDNN's backend interface describes them: graphs of operations on tensors
// (docs.nvidia.com/deeplearning/cudnn/backend, "cudnn_graph Library"). Declared here because no
// header of cuDNN's is needed to build Tessera.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/shared_library.h"
#include "cost/library_call.h"

namespace tessera {

struct CudnnApi {
  SharedLibrary library;
  size_t (*version)() = library.need("cudnnGetVersion");  // 10000 · major + 100 · minor + patch
  size_t (*cudart_version)() = library.need(
      "cudnnGetCudartVersion");  // of the CUDA it was made with: 1000 · major + 10 · minor
  const char* (*error_text)(int) = library.need("cudnnGetErrorString");
  int (*create)(void** handle) = library.need("cudnnCreate");
  int (*destroy)(void* handle) = library.need("cudnnDestroy");
  int (*set_stream)(void* handle, void* stream) = library.need("cudnnSetStream");
  int (*make)(int kind, void** descriptor) = library.need("cudnnBackendCreateDescriptor");
  int (*unmake)(void* descriptor) = library.need("cudnnBackendDestroyDescriptor");
  int (*finish)(void* descriptor) = library.need("cudnnBackendFinalize");
  int (*set)(void* descriptor, int name, int type, int64_t count,
             const void* values) = library.need("cudnnBackendSetAttribute");
  int (*get)(const void* descriptor, int name, int type, int64_t wanted, int64_t* count,
             void* values) = library.need("cudnnBackendGetAttribute");
  int (*execute)(void* handle, void* plan, void* pack) = library.need("cudnnBackendExecute");
};

// Statuses from here on say that a graph is valid and not supported.
inline constexpr int kCudnnNotSupported = 3000, kCudnnInternal = 4000;

// Throws Error: Unsupported for those, else Device.
void check_cudnn(const CudnnApi& api, int status, const std::string& doing);

// A descriptor; values are set one attribute at a time, then it is finished.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnApi& api, int kind);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  ~CudnnDescriptor();

  void* get() const { return descriptor_; }
  void set(int name, int type, int64_t count, const void* values);
  void set(int name, const CudnnDescriptor& value);
  void set_number(int name, int64_t value);
  void set_numbers(int name, const std::vector<int64_t>& values);
  // An enumerator: modes and data types are of types of their own.
  void set_mode(int name, int type, int value);
  // False where the library does not support what is described; throws Error{Device} else.
  bool finish();

 private:
  const CudnnApi* api_ = nullptr;
  void* descriptor_ = nullptr;
};

// Numbers of the interface that plans need too.
namespace cudnn {
inline constexpr int kHandle = 0, kDataType = 1, kBoolean = 2, kInt64 = 3, kFloat = 4, kDouble = 5,
                     kPointer = 6, kConvolutionMode = 7, kHeuristicMode = 8, kNumericalNote = 11,
                     kPointwiseMode = 14, kDescriptor = 15, kReduction = 18;  // types of attributes
inline constexpr int kEngine = 2, kConfig = 3, kHeuristic = 4, kPlan = 5, kGraph = 15, kPack = 16;
}  // namespace cudnn

// A call's operations, their tensors by unique ids: operand i of the call is i + 1.
struct CudnnOperations {
  static constexpr int64_t kResult = 100, kScale = 101, kMinusInfinity = 102;
  std::deque<CudnnDescriptor> parts;  // tensors and what operations refer to
  std::vector<CudnnDescriptor> operations;
  std::vector<int64_t> operands;  // ids of the call's operands that take part
  float scale = 1;                // read from the host when the call runs
  bool scaled = false, masked = false;
};

// Throws Error{Unsupported} naming what cuDNN has no operation for.
CudnnOperations cudnn_operations(const CudnnApi& api, const LibraryCall& call);

}  // namespace tessera
