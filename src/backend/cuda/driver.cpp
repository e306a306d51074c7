#include "backend/cuda/driver.h"

#include <map>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// What a stand-in for the driver exports, and no driver does.
constexpr const char* kHostCodeMark = "tessera_stand_in_driver";
constexpr int kOldest = 11040;  // CUDA 11.4

std::mutex driver_mutex;  // of what follows
std::string library_path;
std::shared_ptr<const CudaDriver> loaded_driver;
std::map<int, std::weak_ptr<CudaContext>> contexts;

// Errors that no context survives.
bool sticky(int result) {
  using namespace cuda_error;
  switch (result) {
  case 214:  // an uncorrectable error of memory
  case 220:  // of NVLink
  case 226:  // contained, and
  case kIllegalAddress:
  case kLaunchTimeout:
  case kAssert:
  case kHardwareStack:
  case kIllegalInstruction:
  case kMisaligned:
  case kInvalidAddressSpace:
  case kInvalidPc:
  case kLaunchFailed: return true;
  default: return false;
  }
}

std::string mib(int64_t bytes) {
  if (bytes < 1 << 20) return std::to_string((bytes + 1023) >> 10) + " KiB";
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

SharedLibrary library_of_driver(const std::string& path) {
  const std::string name = path.empty() ? "libcuda.so.1" : path;
  return SharedLibrary(
      "CUDA driver", "one for CUDA " + cuda_version_text(kOldest) + " or later", {name},
      "there is no CUDA driver on this machine (" + name +
          " is not found): running on a GPU takes NVIDIA's driver; kernels can be made, "
          "compiled and emulated without, with a target that names an architecture, such as "
          "cuda:sm_90a");
}

}  // namespace

CudaDriver::CudaDriver(const std::string& path)
    : api_{library_of_driver(path)},
      runs_host_code_(api_.library.find(kHostCodeMark).at != nullptr) {
  const int result = api_.init(0);
  // Without a device it does not start, and there is nothing wrong with it.
  if (result != 0 && result != cuda_error::kNoDevice) {
    std::string advice;
    if (result == cuda_error::kStub)
      advice = "; this is the library that programs are linked with, not the driver: take its "
               "folder out of LD_LIBRARY_PATH";
    if (result == cuda_error::kMismatch)
      advice = "; the driver was replaced while it ran: restart the machine";
    throw Error(ErrorKind::ToolMissing,
                "the CUDA driver does not start: " + describe(result) + advice);
  }
  api_.driver_version(&version_);
}

std::shared_ptr<const CudaDriver> CudaDriver::get() {
  std::lock_guard lock(driver_mutex);
  if (!loaded_driver) loaded_driver.reset(new CudaDriver(library_path));
  return loaded_driver;
}

void CudaDriver::use_library(const std::string& path) {
  std::lock_guard lock(driver_mutex);
  library_path = path;
  loaded_driver.reset();
  contexts.clear();
}

std::string CudaDriver::describe(int result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  api_.error_name(result, &name);
  api_.error_text(result, &text);
  std::string said = name != nullptr ? name : "error " + std::to_string(result);
  if (text != nullptr) said += std::string(": ") + text;
  return said;
}

void CudaDriver::check(int result, const std::string& doing) const {
  using namespace cuda_error;
  if (result == 0) return;
  const std::string what = "cannot " + doing + ": " + describe(result);
  if (sticky(result))
    throw Error(ErrorKind::Device,
                what + "; a kernel that ran before, of Tessera or of another library, failed, and "
                       "nothing on this device works any more in this process: restart it");
  switch (result) {
  case kOutOfMemory: throw Error(ErrorKind::OutOfMemory, what);
  case kNoDevice:
  case kInvalidDevice: throw Error(ErrorKind::NotFound, what);
  case kContextDestroyed:
    throw Error(ErrorKind::Device, what + "; somebody reset the device: load the program again");
  case kNotInitialized:
  case kDeinitialized:
    throw Error(ErrorKind::Device, what + "; CUDA does not work in a process that was forked after "
                                          "it was first used: start it with spawn");
  case kInvalidImage:
  case kNoBinary:
    throw Error(ErrorKind::Unsupported, what + "; the kernels are for another architecture or the "
                                               "driver is too old for them");
  case kCaptureUnsupported:
  case kCaptureInvalidated:
  case kCaptureImplicit:
    throw Error(ErrorKind::Usage, what + "; the call does not fit into the CUDA graph that is "
                                         "being captured: call once before the capture begins");
  default: throw Error(ErrorKind::Device, what);
  }
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string CudaDevice::arch() const {
  // Instructions of one generation alone: warp-group products and the like.
  const bool specific = major >= 9;
  return "sm_" + std::to_string(major * 10 + minor) + (specific ? "a" : "");
}

std::string CudaDevice::str() const {
  return name + " (cuda:" + std::to_string(ordinal) + ", compute capability " +
         std::to_string(major) + "." + std::to_string(minor) + ")";
}

namespace {

CudaDevice device_of(const CudaDriver& driver, int ordinal) {
  const CudaApi& a = driver.api();
  CudaDevice d;
  d.ordinal = ordinal;
  int device = 0;
  driver.check(a.device_get(&device, ordinal), "use device cuda:" + std::to_string(ordinal));
  char name[256] = "";
  driver.check(a.device_name(name, sizeof name, device), "ask a device for its name");
  d.name = name;
  const auto attribute = [&](int which) {
    int value = 0;
    driver.check(a.device_attribute(&value, which, device), "ask a device for its limits");
    return value;
  };
  d.major = attribute(cuda_attribute::kMajor);
  d.minor = attribute(cuda_attribute::kMinor);
  d.shared_bytes = attribute(cuda_attribute::kSharedPerBlock);
  d.threads = attribute(cuda_attribute::kThreadsPerBlock);
  d.multiprocessors = attribute(cuda_attribute::kMultiprocessors);
  d.l2_bytes = attribute(cuda_attribute::kL2Bytes);
  size_t bytes = 0;
  driver.check(a.device_memory(&bytes, device), "ask a device for its memory");
  d.memory_bytes = int64_t(bytes);
  return d;
}

int count_devices(const CudaDriver& driver) {
  int count = 0;
  const int result = driver.api().device_count(&count);
  // A driver without a device has not been started.
  if (result == cuda_error::kNoDevice || result == cuda_error::kNotInitialized) return 0;
  driver.check(result, "count the devices");
  return count;
}

}  // namespace

std::vector<CudaDevice> cuda_devices() {
  const auto driver = CudaDriver::get();
  std::vector<CudaDevice> devices;
  const int count = count_devices(*driver);
  for (int i = 0; i < count; ++i) devices.push_back(device_of(*driver, i));
  return devices;
}

void require_driver_for(const CudaDriver& driver, int toolkit_major, int toolkit_minor) {
  if (driver.version() >= toolkit_major * 1000) return;
  const int has = driver.version() / 1000;
  throw Error(ErrorKind::ToolMissing,
              "the driver is too old: it is for CUDA " + cuda_version_text(driver.version()) +
                  ", and NVRTC is of CUDA " + std::to_string(toolkit_major) + "." +
                  std::to_string(toolkit_minor) +
                  ": update the driver, or pip install "
                  "nvidia-cuda-nvrtc-cu" +
                  std::to_string(has) + " and uninstall nvidia-cuda-nvrtc");
}

CudaContext::CudaContext(std::shared_ptr<const CudaDriver> driver, CudaDevice device)
    : driver_(std::move(driver)), device_(std::move(device)) {
  driver_->check(driver_->api().device_get(&number_, device_.ordinal), "use " + device_.str());
  driver_->check(driver_->api().primary_retain(&handle_, number_), "use " + device_.str());
}

CudaContext::~CudaContext() { driver_->api().primary_release(number_); }

std::shared_ptr<CudaContext> CudaContext::of(int ordinal) {
  const auto driver = CudaDriver::get();
  std::lock_guard lock(driver_mutex);
  if (auto known = contexts[ordinal].lock()) return known;
  const int count = count_devices(*driver);
  if (ordinal < 0 || ordinal >= count)
    throw Error(ErrorKind::NotFound,
                "there is no device cuda:" + std::to_string(ordinal) + "; " +
                    (count == 0 ? "the driver sees none (is CUDA_VISIBLE_DEVICES set?)"
                                : "there are " + std::to_string(count) + ", counted from 0"));
  std::shared_ptr<CudaContext> made(new CudaContext(driver, device_of(*driver, ordinal)));
  contexts[ordinal] = made;
  return made;
}

void CudaContext::check(int result, const std::string& doing) {
  if (result == 0) return;
  try {
    driver_->check(result, doing);
  } catch (const Error& e) {
    if (sticky(result)) {
      std::lock_guard lock(mutex_);
      if (broken_.empty()) broken_ = e.message();
    }
    throw;
  }
}

CudaContext::Current::Current(CudaContext& context) : context_(context) {
  {
    std::lock_guard lock(context.mutex_);
    if (!context.broken_.empty()) throw Error(ErrorKind::Device, context.broken_);
  }
  context.check(context.driver().api().context_push(context.handle_),
                "use " + context.device_.str());
}

CudaContext::Current::~Current() {
  CudaHandle popped = nullptr;
  context_.driver().api().context_pop(&popped);
}

RelaxedCapture::RelaxedCapture(const CudaDriver& driver) : driver_(driver) {
  driver_.api().exchange_capture_mode(&mode_);  // 2: relaxed
}

RelaxedCapture::~RelaxedCapture() { driver_.api().exchange_capture_mode(&mode_); }

DeviceMemory::DeviceMemory(std::shared_ptr<CudaContext> context, int64_t bytes,
                           const std::string& what)
    : context_(std::move(context)), bytes_(bytes) {
  if (bytes == 0) return;
  const CudaContext::Current current(*context_);
  const RelaxedCapture relaxed(context_->driver());
  const CudaApi& a = context_->driver().api();
  const int result = a.allocate(&address_, size_t(bytes));
  if (result == cuda_error::kOutOfMemory) {
    size_t free = 0, total = 0;
    a.memory_info(&free, &total);
    throw Error(ErrorKind::OutOfMemory,
                "not enough memory on " + context_->device().str() + ": " + what + " take " +
                    mib(bytes) + ", and " + mib(int64_t(free)) + " of " + mib(int64_t(total)) +
                    " are free; free some (torch.cuda.empty_cache() gives back what PyTorch only "
                    "keeps) or use smaller shapes");
  }
  context_->check(result, "allocate " + what);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  try {
    const CudaContext::Current current(*context_);
    const RelaxedCapture relaxed(context_->driver());
    context_->driver().api().release(address_);
  } catch (const Error&) {  // the context is gone, and the memory with it
  }
}

void DeviceMemory::fill(const void* data, CudaStream stream) {
  if (bytes_ == 0) return;
  const CudaContext::Current current(*context_);
  const CudaApi& a = context_->driver().api();
  context_->check(a.copy_to_device(address_, data, size_t(bytes_), stream), "copy to the device");
  context_->check(a.stream_synchronize(stream), "copy to the device");
}

void DeviceMemory::clear() {
  if (bytes_ == 0) return;
  constexpr unsigned kNonBlocking = 1;  // knows nothing of the default stream
  const CudaContext::Current current(*context_);
  const RelaxedCapture relaxed(context_->driver());
  const CudaApi& a = context_->driver().api();
  CudaStream stream = nullptr;
  context_->check(a.stream_create(&stream, kNonBlocking), "make a stream");
  const int filled = a.fill(address_, 0, size_t(bytes_), stream);
  const int done = filled != 0 ? filled : a.stream_synchronize(stream);
  a.stream_destroy(stream);
  context_->check(done, "clear memory");
}

void DeviceMemory::read(void* data, CudaStream stream) const {
  if (bytes_ == 0) return;
  const CudaContext::Current current(*context_);
  const CudaApi& a = context_->driver().api();
  context_->check(a.copy_to_host(data, address_, size_t(bytes_), stream), "copy from the device");
  context_->check(a.stream_synchronize(stream), "copy from the device");
}

}  // namespace tessera
