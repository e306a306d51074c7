// The functions of CUDA's driver interface that Tessera calls, as the driver's library exports them
// (docs.nvidia.com/cuda/cuda-driver-api); declared here because no header of CUDA's is needed to
// build Tessera. Handles are opaque; functions return 0 or an error's number.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/shared_library.h"

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
  SharedLibrary library;
  int (*init)(unsigned) = library.need("cuInit");
  int (*driver_version)(int*) = library.need("cuDriverGetVersion");
  int (*error_name)(int, const char**) = library.need("cuGetErrorName");
  int (*error_text)(int, const char**) = library.need("cuGetErrorString");

  int (*device_count)(int*) = library.need("cuDeviceGetCount");
  int (*device_get)(int*, int) = library.need("cuDeviceGet");
  int (*device_name)(char*, int, int) = library.need("cuDeviceGetName");
  int (*device_attribute)(int*, int, int) = library.need("cuDeviceGetAttribute");
  int (*device_memory)(size_t*, int) = library.need("cuDeviceTotalMem_v2");

  int (*primary_retain)(CudaHandle*, int) = library.need("cuDevicePrimaryCtxRetain");
  int (*primary_release)(int) = library.need("cuDevicePrimaryCtxRelease_v2");
  int (*context_push)(CudaHandle) = library.need("cuCtxPushCurrent_v2");
  int (*context_pop)(CudaHandle*) = library.need("cuCtxPopCurrent_v2");
  int (*context_current)(CudaHandle*) = library.need("cuCtxGetCurrent");
  int (*context_synchronize)() = library.need("cuCtxSynchronize");
  int (*exchange_capture_mode)(int*) = library.need("cuThreadExchangeStreamCaptureMode");

  int (*memory_info)(size_t*, size_t*) = library.need("cuMemGetInfo_v2");
  int (*allocate)(CudaAddress*, size_t) = library.need("cuMemAlloc_v2");
  int (*release)(CudaAddress) = library.need("cuMemFree_v2");
  int (*copy_to_device)(CudaAddress, const void*, size_t,
                        CudaStream) = library.need("cuMemcpyHtoDAsync_v2");
  int (*copy_to_host)(void*, CudaAddress, size_t,
                      CudaStream) = library.need("cuMemcpyDtoHAsync_v2");
  int (*copy_on_device)(CudaAddress, CudaAddress, size_t,
                        CudaStream) = library.need("cuMemcpyDtoDAsync_v2");
  int (*fill)(CudaAddress, unsigned char, size_t, CudaStream) = library.need("cuMemsetD8Async");
  int (*pointer_attribute)(void*, int, CudaAddress) = library.need("cuPointerGetAttribute");

  int (*module_load)(CudaHandle*, const void*) = library.need("cuModuleLoadData");
  int (*module_unload)(CudaHandle) = library.need("cuModuleUnload");
  int (*module_function)(CudaHandle*, CudaHandle,
                         const char*) = library.need("cuModuleGetFunction");
  int (*function_attribute)(int*, int, CudaHandle) = library.need("cuFuncGetAttribute");
  int (*set_function_attribute)(CudaHandle, int, int) = library.need("cuFuncSetAttribute");
  int (*launch)(CudaHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CudaStream, void**, void**) = library.need("cuLaunchKernel");

  int (*stream_create)(CudaStream*, unsigned) = library.need("cuStreamCreate");
  int (*stream_destroy)(CudaStream) = library.need("cuStreamDestroy_v2");
  int (*stream_synchronize)(CudaStream) = library.need("cuStreamSynchronize");
  int (*stream_context)(CudaStream, CudaHandle*) = library.need("cuStreamGetCtx");
  int (*stream_capture)(CudaStream, int*, uint64_t*, CudaHandle*, const CudaHandle**,
                        size_t*) = library.need("cuStreamGetCaptureInfo_v2");
  int (*stream_wait)(CudaStream, CudaHandle, unsigned) = library.need("cuStreamWaitEvent");
  int (*event_create)(CudaHandle*, unsigned) = library.need("cuEventCreate");
  int (*event_destroy)(CudaHandle) = library.need("cuEventDestroy_v2");
  int (*event_record)(CudaHandle, CudaStream) = library.need("cuEventRecord");
  int (*event_synchronize)(CudaHandle) = library.need("cuEventSynchronize");
  int (*event_elapsed)(float*, CudaHandle, CudaHandle) = library.need("cuEventElapsedTime");

  int (*begin_capture)(CudaStream, int) = library.need("cuStreamBeginCapture_v2");
  int (*end_capture)(CudaStream, CudaHandle*) = library.need("cuStreamEndCapture");
  int (*graph_instantiate)(CudaHandle*, CudaHandle,
                           unsigned long long) = library.need("cuGraphInstantiateWithFlags");
  int (*graph_launch)(CudaHandle, CudaStream) = library.need("cuGraphLaunch");
  int (*graph_destroy)(CudaHandle) = library.need("cuGraphDestroy");
  int (*graph_exec_destroy)(CudaHandle) = library.need("cuGraphExecDestroy");

  // From driver 11.8 and 12.0 on; null before.
  int (*active_clusters)(int*, CudaHandle,
                         const CudaLaunchConfig*) = library.find("cuOccupancyMaxActiveClusters");
  int (*encode_tiled)(CudaTensorMap*, int type, uint32_t rank, CudaAddress, const uint64_t* extents,
                      const uint64_t* pitches, const uint32_t* box, const uint32_t* steps,
                      int interleave, int swizzle, int promotion,
                      int fill) = library.find("cuTensorMapEncodeTiled");
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
