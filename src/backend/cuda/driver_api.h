// The functions of CUDA's driver interface that Tessera calls, as the driver's library exports them
// (docs.nvidia.com/cuda/cuda-driver-api); declared here because no header of CUDA's is needed to
// build Tessera. Handles are opaque; functions return 0 or an error's number.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tessera {

using CudaAddress = uint64_t;  // of device memory
using CudaStream = void*;      // null: the default stream
using CudaHandle = void*;      // a context, module, function, event, graph

// A tensor map as the driver encodes it (CUtensorMap; of 128 bytes since CUDA 13, 64 before).
struct alignas(128) CudaTensorMap {
  uint64_t words[16];
};

// A launch (CUlaunchConfig) without further attributes.
struct CudaLaunchConfig {
  unsigned grid[3] = {}, block[3] = {};
  unsigned shared_bytes = 0;
  CudaStream stream = nullptr;
  void* attributes = nullptr;
  unsigned attribute_count = 0;
};

struct CudaApi {
  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*error_name)(int, const char**);
  int (*error_text)(int, const char**);

  int (*device_count)(int*);
  int (*device_get)(int*, int);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*device_memory)(size_t*, int);

  int (*primary_retain)(CudaHandle*, int);
  int (*primary_release)(int);
  int (*context_push)(CudaHandle);
  int (*context_pop)(CudaHandle*);
  int (*context_current)(CudaHandle*);
  int (*context_synchronize)();
  int (*exchange_capture_mode)(int*);

  int (*memory_info)(size_t*, size_t*);
  int (*allocate)(CudaAddress*, size_t);
  int (*release)(CudaAddress);
  int (*copy_to_device)(CudaAddress, const void*, size_t, CudaStream);
  int (*copy_to_host)(void*, CudaAddress, size_t, CudaStream);
  int (*copy_on_device)(CudaAddress, CudaAddress, size_t, CudaStream);
  int (*fill)(CudaAddress, unsigned char, size_t, CudaStream);
  int (*pointer_attribute)(void*, int, CudaAddress);

  int (*module_load)(CudaHandle*, const void*);
  int (*module_unload)(CudaHandle);
  int (*module_function)(CudaHandle*, CudaHandle, const char*);
  int (*function_attribute)(int*, int, CudaHandle);
  int (*set_function_attribute)(CudaHandle, int, int);
  int (*launch)(CudaHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CudaStream, void**, void**);

  int (*stream_create)(CudaStream*, unsigned);
  int (*stream_destroy)(CudaStream);
  int (*stream_synchronize)(CudaStream);
  int (*stream_context)(CudaStream, CudaHandle*);
  int (*stream_capture)(CudaStream, int*, uint64_t*, CudaHandle*, const CudaHandle**, size_t*);
  int (*stream_wait)(CudaStream, CudaHandle, unsigned);
  int (*event_create)(CudaHandle*, unsigned);
  int (*event_destroy)(CudaHandle);
  int (*event_record)(CudaHandle, CudaStream);
  int (*event_synchronize)(CudaHandle);
  int (*event_elapsed)(float*, CudaHandle, CudaHandle);

  int (*begin_capture)(CudaStream, int);
  int (*end_capture)(CudaStream, CudaHandle*);
  int (*graph_instantiate)(CudaHandle*, CudaHandle, unsigned long long);
  int (*graph_launch)(CudaHandle, CudaStream);
  int (*graph_destroy)(CudaHandle);
  int (*graph_exec_destroy)(CudaHandle);

  // From driver 11.8 and 12.0 on; null before.
  int (*active_clusters)(int*, CudaHandle, const CudaLaunchConfig*);
  int (*encode_tiled)(CudaTensorMap*, int type, uint32_t rank, CudaAddress, const uint64_t* extents,
                      const uint64_t* pitches, const uint32_t* box, const uint32_t* steps,
                      int interleave, int swizzle, int promotion, int fill);
};

// Errors that are told apart (CUresult).
namespace cuda_error {
inline constexpr int kOutOfMemory = 2, kNotInitialized = 3, kDeinitialized = 4, kStub = 34,
                     kNoDevice = 100, kInvalidDevice = 101, kInvalidImage = 200, kNoBinary = 209,
                     kInvalidHandle = 400, kNotFound = 500, kIllegalAddress = 700,
                     kOutOfResources = 701, kLaunchTimeout = 702, kContextDestroyed = 709,
                     kAssert = 710, kHardwareStack = 714, kIllegalInstruction = 715,
                     kMisaligned = 716, kInvalidAddressSpace = 717, kInvalidPc = 718,
                     kLaunchFailed = 719, kMismatch = 803, kCaptureUnsupported = 900,
                     kCaptureInvalidated = 901, kCaptureImplicit = 906;
}

// Attributes (CUdevice_attribute, CUfunction_attribute, CUpointer_attribute).
namespace cuda_attribute {
inline constexpr int kThreadsPerBlock = 1, kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75,
                     kMinor = 76, kSharedPerMultiprocessor = 81, kSharedPerBlock = 97;
inline constexpr int kFunctionThreads = 0, kFunctionStaticShared = 1, kFunctionLocalBytes = 3,
                     kFunctionRegisters = 4, kFunctionDynamicShared = 8;
inline constexpr int kPointerMemoryType = 2, kPointerDevice = 9, kPointerManaged = 8;
inline constexpr int kMemoryDevice = 2;
}  // namespace cuda_attribute

}  // namespace tessera
