// CUDA's driver, loaded when it is first asked for: devices, contexts and memory. Every call is
// checked; what fails is an Error that says which limit was met and what to do.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/driver_api.h"

namespace tessera {

// The driver's library. Kinds of errors: ToolMissing (no driver, or one too old), NotFound (no such
// device), OutOfMemory, Device (a kernel failed; the text says whether the context survived it).
class CudaDriver {
 public:
  // Loads libcuda.so.1 the first time. Throws Error{ToolMissing}.
  static std::shared_ptr<const CudaDriver> get();
  // For tests: another library from now on; empty for the system's again. What holds the former
  // goes on with it.
  static void use_library(const std::string& path);

  const CudaApi& api() const { return api_; }
  // Its version as 1000 · major + 10 · minor of the CUDA that it was made for.
  int version() const { return version_; }
  // Kernels are code of this machine and not a GPU's: the library is a stand-in.
  bool runs_host_code() const { return runs_host_code_; }

  // Throws unless `result` is 0. `doing`: "load the kernels", for "cannot …" in the message.
  void check(int result, const std::string& doing) const;
  // "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
  std::string describe(int result) const;

 private:
  explicit CudaDriver(const std::string& path);
  CudaApi api_;
  int version_ = 0;
  bool runs_host_code_;
};

// "12.4"
std::string cuda_version_text(int version);

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;  // of the device
  int64_t shared_bytes = 0;  // most of a block
  int64_t l2_bytes = 0;
  int threads = 1024;  // most of a block
  int multiprocessors = 0;
  // What kernels for this device are compiled for: "sm_80", "sm_90a".
  std::string arch() const;
  // "NVIDIA H100 (cuda:0, compute capability 9.0)"
  std::string str() const;
};

// All devices; empty where there are none. Throws Error{ToolMissing} without a driver.
std::vector<CudaDevice> cuda_devices();

// Throws Error{ToolMissing} where binaries of the CUDA toolkit `major`.`minor` need a newer driver
// (docs.nvidia.com/deploy/cuda-compatibility: those of one major version run on all its drivers).
void require_driver_for(const CudaDriver& driver, int toolkit_major, int toolkit_minor);

// The primary context of a device, which the CUDA runtime and frameworks use too. Kept as long as
// this lives; never reset.
class CudaContext {
 public:
  // One per device and process. Throws Error{NotFound} for a device that is not there.
  static std::shared_ptr<CudaContext> of(int ordinal);
  ~CudaContext();

  const CudaDriver& driver() const { return *driver_; }
  const CudaDevice& device() const { return device_; }
  CudaHandle handle() const { return handle_; }

  // As CudaDriver::check. After an error that a context does not survive, all later calls throw
  // that error again.
  void check(int result, const std::string& doing);

  // Makes the context current on this thread and restores what was there.
  class Current {
   public:
    explicit Current(CudaContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    CudaContext& context_;
  };

 private:
  CudaContext(std::shared_ptr<const CudaDriver> driver, CudaDevice device);
  std::shared_ptr<const CudaDriver> driver_;
  CudaDevice device_;
  CudaHandle handle_ = nullptr;
  int number_ = 0;  // the driver's, of the device
  std::mutex mutex_;
  std::string broken_;  // why nothing works any more
};

// Lets this thread do what would spoil a capture of a CUDA graph that is under way on another
// stream or thread (allocate, synchronise): nothing of it is captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  int mode_ = 2;
};

// Memory of a device, aligned to 256 bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Throws Error{OutOfMemory} telling how much is free. `what`: "the intermediate results".
  DeviceMemory(std::shared_ptr<CudaContext> context, int64_t bytes, const std::string& what);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  CudaAddress address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  void fill(const void* data, CudaStream stream);  // from the host; waits
  void clear();                                    // zeros; waits, also while something is captured
  void read(void* data, CudaStream stream) const;  // to the host; waits

 private:
  std::shared_ptr<CudaContext> context_;
  CudaAddress address_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace tessera
