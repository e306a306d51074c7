// Whether what driver_api.h declares is what CUDA's own header says; only compiled, where that is.
#include <cuda.h>

#include <type_traits>
#include <utility>

#include "backend/cuda/driver_api.h"

namespace error = tessera::cuda_error;
namespace attribute = tessera::cuda_attribute;

#define EQUAL(ours, theirs) static_assert(int(ours) == int(theirs), #theirs)
EQUAL(error::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
EQUAL(error::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
EQUAL(error::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
EQUAL(error::kStub, CUDA_ERROR_STUB_LIBRARY);
EQUAL(error::kNoDevice, CUDA_ERROR_NO_DEVICE);
EQUAL(error::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
EQUAL(error::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
EQUAL(error::kNoBinary, CUDA_ERROR_NO_BINARY_FOR_GPU);
EQUAL(error::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
EQUAL(error::kNotFound, CUDA_ERROR_NOT_FOUND);
EQUAL(error::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
EQUAL(error::kOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
EQUAL(error::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
EQUAL(error::kContextDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
EQUAL(error::kAssert, CUDA_ERROR_ASSERT);
EQUAL(error::kHardwareStack, CUDA_ERROR_HARDWARE_STACK_ERROR);
EQUAL(error::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
EQUAL(error::kMisaligned, CUDA_ERROR_MISALIGNED_ADDRESS);
EQUAL(error::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
EQUAL(error::kInvalidPc, CUDA_ERROR_INVALID_PC);
EQUAL(error::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
EQUAL(error::kMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
EQUAL(error::kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
EQUAL(error::kCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
EQUAL(error::kCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
EQUAL(attribute::kThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
EQUAL(attribute::kMultiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
EQUAL(attribute::kL2Bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
EQUAL(attribute::kMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
EQUAL(attribute::kMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
EQUAL(attribute::kSharedPerMultiprocessor,
      CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
EQUAL(attribute::kSharedPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
EQUAL(attribute::kFunctionThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
EQUAL(attribute::kFunctionStaticShared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
EQUAL(attribute::kFunctionLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
EQUAL(attribute::kFunctionRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
EQUAL(attribute::kFunctionDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
EQUAL(attribute::kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
EQUAL(attribute::kPointerDevice, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
EQUAL(attribute::kPointerManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
EQUAL(attribute::kMemoryDevice, CU_MEMORYTYPE_DEVICE);
// Numbers that stand where they are used (driver.cpp, cuda_module.cpp, graph_clock.cpp).
EQUAL(214, CUDA_ERROR_ECC_UNCORRECTABLE);
EQUAL(220, CUDA_ERROR_NVLINK_UNCORRECTABLE);
EQUAL(226, CUDA_ERROR_CONTAINED);
EQUAL(912, CUDA_ERROR_INVALID_CLUSTER_SIZE);
EQUAL(14, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
EQUAL(0, CU_TENSOR_MAP_DATA_TYPE_UINT8);
EQUAL(1, CU_TENSOR_MAP_DATA_TYPE_UINT16);
EQUAL(2, CU_TENSOR_MAP_DATA_TYPE_UINT32);
EQUAL(1, CU_TENSOR_MAP_SWIZZLE_32B);
EQUAL(2, CU_TENSOR_MAP_SWIZZLE_64B);
EQUAL(3, CU_TENSOR_MAP_SWIZZLE_128B);
EQUAL(3, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
EQUAL(1, CU_STREAM_CAPTURE_STATUS_ACTIVE);
EQUAL(2, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
EQUAL(1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
EQUAL(2, CU_STREAM_CAPTURE_MODE_RELAXED);
EQUAL(1, CU_STREAM_NON_BLOCKING);
static_assert(sizeof(tessera::CudaTensorMap) == sizeof(CUtensorMap));
static_assert(sizeof(tessera::CudaLaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(tessera::CudaLaunchConfig, shared_bytes) ==
              offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(tessera::CudaLaunchConfig, attribute_count) ==
              offsetof(CUlaunchConfig, numAttrs));
static_assert(alignof(tessera::CudaTensorMap) >= alignof(CUtensorMap));

// Functions take arguments of the same sizes.
template <class F> struct Sizes;
template <class R, class... A> struct Sizes<R(A...)> {
  using type = std::index_sequence<sizeof(R), sizeof(A)...>;
};
template <class F> struct Sizes<F*> : Sizes<F> {};
#define SAME(ours, theirs)                                                                         \
  static_assert(std::is_same_v<Sizes<decltype(tessera::CudaApi::ours)>::type,                      \
                               Sizes<decltype(theirs)>::type>,                                     \
                #theirs)
SAME(init, cuInit);
SAME(driver_version, cuDriverGetVersion);
SAME(error_name, cuGetErrorName);
SAME(error_text, cuGetErrorString);
SAME(device_count, cuDeviceGetCount);
SAME(device_get, cuDeviceGet);
SAME(device_name, cuDeviceGetName);
SAME(device_attribute, cuDeviceGetAttribute);
SAME(device_memory, cuDeviceTotalMem);
SAME(primary_retain, cuDevicePrimaryCtxRetain);
SAME(primary_release, cuDevicePrimaryCtxRelease);
SAME(context_push, cuCtxPushCurrent);
SAME(context_pop, cuCtxPopCurrent);
SAME(context_current, cuCtxGetCurrent);
SAME(context_synchronize, cuCtxSynchronize);
SAME(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
SAME(memory_info, cuMemGetInfo);
SAME(allocate, cuMemAlloc);
SAME(release, cuMemFree);
SAME(copy_to_device, cuMemcpyHtoDAsync);
SAME(copy_to_host, cuMemcpyDtoHAsync);
SAME(copy_on_device, cuMemcpyDtoDAsync);
SAME(fill, cuMemsetD8Async);
SAME(pointer_attribute, cuPointerGetAttribute);
SAME(module_load, cuModuleLoadData);
SAME(module_unload, cuModuleUnload);
SAME(module_function, cuModuleGetFunction);
SAME(function_attribute, cuFuncGetAttribute);
SAME(set_function_attribute, cuFuncSetAttribute);
SAME(launch, cuLaunchKernel);
SAME(stream_create, cuStreamCreate);
SAME(stream_destroy, cuStreamDestroy);
SAME(stream_synchronize, cuStreamSynchronize);
SAME(stream_context, cuStreamGetCtx);
SAME(stream_wait, cuStreamWaitEvent);
SAME(event_create, cuEventCreate);
SAME(event_destroy, cuEventDestroy);
SAME(event_record, cuEventRecord);
SAME(event_synchronize, cuEventSynchronize);
SAME(event_elapsed, cuEventElapsedTime);
SAME(begin_capture, cuStreamBeginCapture);
SAME(end_capture, cuStreamEndCapture);
SAME(graph_instantiate, cuGraphInstantiateWithFlags);
SAME(graph_launch, cuGraphLaunch);
SAME(graph_destroy, cuGraphDestroy);
SAME(graph_exec_destroy, cuGraphExecDestroy);
SAME(active_clusters, cuOccupancyMaxActiveClusters);
SAME(encode_tiled, cuTensorMapEncodeTiled);
