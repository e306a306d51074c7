// A stand-in for CUDA's driver: a library with the driver's functions whose devices are host
// memory and whose kernels are code of this machine, run in the emulator. It does nothing before it
// has to (a stream's work waits until somebody waits for it), checks what it is given, and fails
// where it is told to.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/emulator.h"
#include "backend/host_kernels.h"
#include "device.cuh"
#include "stand_in.h"

using tessera::CudaAddress;
using tessera::CudaHandle;
using tessera::CudaLaunchConfig;
using tessera::CudaStream;
using tessera::CudaTensorMap;
using tessera::HostKernel;
namespace error = tessera::cuda_error;
namespace attribute = tessera::cuda_attribute;

namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201, kNotSupported = 801, kNotReady = 600;
constexpr int64_t kUsualShared = 48 << 10;
// Long enough for one run to be told by a clock, so that it is not repeated to be.
constexpr double kSecondsPerWork = 1e-3, kSecondsPerThread = 1e-6, kSecondsPerByte = 1e-8;

using Work = std::function<int()>;

struct Device {
  int ordinal = 0, retained = 0;
  int broken = 0;  // the error that no context survives
};

struct Allocation {
  std::unique_ptr<char[]> memory;
  char* data = nullptr;
  size_t bytes = 0;
  Device* device = nullptr;
};

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  Device* device = nullptr;
  bool blocking = true;
  std::deque<Work> queue;
  int capturing = 0;  // 0 no, 1 yes, 2 spoilt
  int mode = 0;
  uint64_t capture = 0;
  std::thread::id capturer;
  Graph* graph = nullptr;
};

struct Event {
  Stream* stream = nullptr;
  double seconds = 0;
};

struct Function {
  HostKernel code{};
  Device* device = nullptr;
  int64_t most_shared = kUsualShared;
};

struct Module {
  void* library = nullptr;
  Device* device = nullptr;
  std::map<std::string, Function> functions;
};

struct Machine {
  int first = 0, count = 0;  // its devices, among those of all machines
  std::map<CudaHandle, std::unique_ptr<Module>> modules;  // a context that is lost takes its along
  int major = 9, minor = 0, version = 13000;
  int64_t memory = int64_t{1} << 30, shared = 227 << 10;
  int clusters = 1;  // that have room side by side
  std::map<CudaAddress, Allocation> allocations;
  std::vector<std::unique_ptr<Stream>> streams;
  std::map<Device*, std::unique_ptr<Stream>> usual;  // the default streams
  std::map<std::string, int> calls;
  std::map<std::string, std::pair<int, int>> failures;  // when, what
  std::string fault;                                    // what the last failed kernel did
  uint64_t captures = 0;
  int threads_run = 0;
  // The devices' time: it passes by what they do, the same in every run, so that races have the
  // same winners however busy this machine is.
  double seconds = 0;
  bool started = false;
};

std::recursive_mutex mutex;
std::unique_ptr<Machine> machine = std::make_unique<Machine>();
// Of all machines there were: what is left of a program that used an earlier one (a test's garbage)
// gives back that machine's device, not this one's.
std::vector<std::unique_ptr<Device>> devices;
thread_local std::vector<Device*> current;
thread_local int capture_mode = 0;  // 0 global, 1 thread's own, 2 relaxed

// The device of this machine that a driver's number stands for; null: another machine's.
Device* numbered(int device) {
  const bool ours = device >= machine->first && device < machine->first + machine->count;
  return ours ? devices[size_t(device)].get() : nullptr;
}

Device* here() { return current.empty() ? nullptr : current.back(); }

// What every function begins with: counted, and failing where it was told to.
int enter(const char* function, bool needs_context = true) {
  const int call = ++machine->calls[function];
  const auto at = machine->failures.find(function);
  if (at != machine->failures.end() && at->second.first == call) {
    const int result = at->second.second;
    machine->failures.erase(at);
    return result;
  }
  if (!machine->started) return error::kNotInitialized;
  if (!needs_context) return 0;
  if (here() == nullptr) return kInvalidContext;
  return here()->broken;
}

Allocation* find(CudaAddress address, size_t bytes) {
  auto at = machine->allocations.upper_bound(address);
  if (at == machine->allocations.begin()) return nullptr;
  --at;
  if (address + bytes > at->first + at->second.bytes) return nullptr;
  return &at->second;
}

Stream& stream_of(CudaStream handle) {
  if (handle != nullptr) return *static_cast<Stream*>(handle);
  auto& usual = machine->usual[here()];
  if (!usual) {
    usual = std::make_unique<Stream>();
    usual->device = here();
  }
  return *usual;
}

int drain(Stream& stream) {
  while (!stream.queue.empty()) {
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (stream.device->broken != 0) continue;
    machine->seconds += kSecondsPerWork;
    if (const int result = work(); result != 0) stream.device->broken = result;
  }
  return stream.device->broken;
}

int drain_device(Device* device) {
  for (auto& s : machine->streams)
    if (s->device == device) drain(*s);
  if (const auto at = machine->usual.find(device); at != machine->usual.end()) drain(*at->second);
  return device->broken;
}

// The default stream waits for all blocking ones, and they for it.
int add(CudaStream handle, Work work) {
  Stream& stream = stream_of(handle);
  if (stream.device != here()) return error::kInvalidHandle;
  if (stream.capturing == 2) return error::kCaptureInvalidated;
  if (stream.capturing == 1) {
    stream.graph->work.push_back(std::move(work));
    return 0;
  }
  if (handle == nullptr) {
    for (auto& s : machine->streams) {
      if (s->device != here() || !s->blocking) continue;
      if (s->capturing == 1) {
        s->capturing = 2;
        return error::kCaptureImplicit;
      }
      drain(*s);
    }
  } else if (stream.blocking) {
    if (const auto at = machine->usual.find(here()); at != machine->usual.end()) drain(*at->second);
  }
  stream.queue.push_back(std::move(work));
  return 0;
}

// Calls that cannot be part of a graph spoil captures that watch for them.
int unsafe() {
  if (capture_mode == 2) return 0;
  for (auto& s : machine->streams) {
    if (s->capturing != 1 || s->mode == 2) continue;
    if (s->mode == 1 && s->capturer != std::this_thread::get_id()) continue;
    s->capturing = 2;
    return error::kCaptureUnsupported;
  }
  return 0;
}

// The end of an ELF file, as its header tells.
size_t size_of_image(const void* image) {
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof head);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_machine != EM_X86_64) return 0;
  return head.e_shoff + size_t(head.e_shnum) * head.e_shentsize;
}

int run_kernel(Function* function, std::array<int, 3> grid, int threads, int64_t shared,
               const std::vector<std::vector<char>>& parameters) {
  tessera::EmulatedLaunch launch;
  launch.grid = grid;
  launch.threads = threads;
  launch.shared_bytes = shared;
  launch.grain = function->code.grain;
  std::vector<void*> pointers;
  for (const std::vector<char>& p : parameters) {
    pointers.push_back(const_cast<char*>(p.data()));
    if (p.size() != 8 && p.size() != sizeof(CudaTensorMap)) continue;
    CudaAddress address = 0;  // a tensor map begins with one
    std::memcpy(&address, p.data(), 8);
    Allocation* a = find(address, 1);
    if (a == nullptr) continue;
    bool known = false;
    for (const auto& b : launch.buffers) known = known || b.data == a->data;
    if (!known) launch.buffers.push_back({a->data, int64_t(a->bytes), true, true});
  }
  const auto fault = tessera::emulate(launch, [&] { function->code.call(pointers.data()); });
  machine->threads_run += grid[0] * grid[1] * grid[2] * threads;
  machine->seconds += kSecondsPerThread * grid[0] * grid[1] * grid[2] * threads;
  if (!fault) return 0;
  machine->fault = fault->str();
  return error::kLaunchFailed;
}

}  // namespace

extern "C" {

int tessera_stand_in_driver = 1;

void stand_in_reset(int count, int major, int minor, int64_t memory, int64_t shared) {
  std::lock_guard lock(mutex);
  auto fresh = std::make_unique<Machine>();
  fresh->first = int(devices.size());
  fresh->count = count;
  for (int i = 0; i < count; ++i) {
    devices.push_back(std::make_unique<Device>());
    devices.back()->ordinal = i;
  }
  fresh->major = major;
  fresh->minor = minor;
  fresh->memory = memory;
  fresh->shared = shared;
  fresh->started = true;
  machine = std::move(fresh);
  current.clear();
}
void stand_in_version(int version) { machine->version = version; }
void stand_in_clusters(int count) { machine->clusters = count; }
void stand_in_fail(const char* function, int nth, int result) {
  machine->failures[function] = {machine->calls[function] + nth, result};
}
int stand_in_calls(const char* function) { return machine->calls[function]; }
int64_t stand_in_allocated() {
  int64_t bytes = 0;
  for (const auto& [address, a] : machine->allocations) bytes += int64_t(a.bytes);
  return bytes;
}
int stand_in_contexts() {
  int count = 0;
  for (int i = 0; i < machine->count; ++i) count += numbered(machine->first + i)->retained > 0;
  return count;
}
int stand_in_threads_run() { return machine->threads_run; }
int stand_in_enqueue(void* stream, int (*work)(void*), void (*release)(void*), void* data) {
  std::lock_guard lock(mutex);
  const std::shared_ptr<void> held(data, release);
  if (const int result = enter("stand_in_enqueue")) return result;
  return add(stream, [=] { return work(held.get()); });
}

int cuInit(unsigned) {
  std::lock_guard lock(mutex);
  machine->started = true;
  if (const int result = enter("cuInit", false)) return result;
  if (machine->count > 0) return 0;
  machine->started = false;
  return error::kNoDevice;
}
int cuDriverGetVersion(int* version) {
  *version = machine->version;
  return 0;
}
int cuGetErrorName(int result, const char** name) {
  switch (result) {
  case error::kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
  case error::kNoDevice: *name = "CUDA_ERROR_NO_DEVICE"; return 0;
  case error::kIllegalAddress: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
  case error::kLaunchFailed: *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
  default: *name = nullptr; return kInvalidValue;
  }
}
int cuGetErrorString(int result, const char** text) {
  *text = result == error::kLaunchFailed ? machine->fault.c_str() : "as told by the stand-in";
  return 0;
}

int cuDeviceGetCount(int* count) {
  if (const int result = enter("cuDeviceGetCount", false)) return result;
  *count = machine->count;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  if (const int result = enter("cuDeviceGet", false)) return result;
  if (ordinal < 0 || ordinal >= machine->count) return error::kInvalidDevice;
  *device = machine->first + ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  std::strncpy(name, ("Stand-in " + std::to_string(device - machine->first)).c_str(),
               size_t(bytes));
  return enter("cuDeviceGetName", false);
}
int cuDeviceGetAttribute(int* value, int which, int) {
  switch (which) {
  case attribute::kThreadsPerBlock: *value = 1024; break;
  case attribute::kMultiprocessors: *value = 4; break;
  case attribute::kL2Bytes: *value = 4 << 10; break;  // so that cold takes few copies
  case attribute::kMajor: *value = machine->major; break;
  case attribute::kMinor: *value = machine->minor; break;
  case attribute::kSharedPerBlock: *value = int(machine->shared); break;
  default: return kInvalidValue;
  }
  return enter("cuDeviceGetAttribute", false);
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t(machine->memory);
  return enter("cuDeviceTotalMem_v2", false);
}

int cuDevicePrimaryCtxRetain(CudaHandle* context, int device) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuDevicePrimaryCtxRetain", false)) return result;
  Device* d = numbered(device);
  if (d == nullptr) return error::kInvalidDevice;
  ++d->retained;
  *context = d;
  return d->broken;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  std::lock_guard lock(mutex);
  enter("cuDevicePrimaryCtxRelease_v2", false);
  Device* d = numbered(device);
  if (d == nullptr) return error::kInvalidDevice;
  if (d->retained == 0) return kInvalidContext;
  if (--d->retained > 0) return 0;
  for (auto at = machine->allocations.begin(); at != machine->allocations.end();)
    at = at->second.device == d ? machine->allocations.erase(at) : std::next(at);
  return 0;
}
int cuCtxPushCurrent_v2(CudaHandle context) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuCtxPushCurrent_v2", false)) return result;
  Device* d = nullptr;
  for (int i = 0; i < machine->count; ++i)
    if (numbered(machine->first + i) == context) d = numbered(machine->first + i);
  if (d == nullptr || d->retained == 0) return kInvalidContext;
  current.push_back(d);
  return 0;
}
int cuCtxPopCurrent_v2(CudaHandle* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return 0;
}
int cuCtxGetCurrent(CudaHandle* context) {
  *context = here();
  return 0;
}
int cuCtxSynchronize() {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuCtxSynchronize")) return result;
  if (const int result = unsafe()) return result;
  return drain_device(here());
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = size_t(machine->memory);
  *free = size_t(machine->memory - stand_in_allocated());
  return 0;
}
int cuMemAlloc_v2(CudaAddress* address, size_t bytes) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemAlloc_v2")) return result;
  if (const int result = unsafe()) return result;
  if (bytes == 0) return kInvalidValue;
  if (stand_in_allocated() + int64_t(bytes) > machine->memory) return error::kOutOfMemory;
  Allocation a;
  a.memory.reset(new char[bytes + 256]);
  a.data = a.memory.get() + (256 - reinterpret_cast<uintptr_t>(a.memory.get()) % 256);
  a.bytes = bytes;
  a.device = here();
  std::memset(a.data, 0xff, bytes);  // what nobody wrote is NaN
  *address = reinterpret_cast<CudaAddress>(a.data);
  machine->allocations.emplace(*address, std::move(a));
  return 0;
}
int cuMemFree_v2(CudaAddress address) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemFree_v2")) return result;
  if (const int result = unsafe()) return result;
  const auto at = machine->allocations.find(address);
  if (at == machine->allocations.end()) return kInvalidValue;
  drain_device(at->second.device);
  machine->allocations.erase(at);
  return 0;
}
int cuMemcpyHtoDAsync_v2(CudaAddress to, const void* from, size_t bytes, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemcpyHtoDAsync_v2")) return result;
  if (find(to, bytes) == nullptr) return kInvalidValue;
  // Of pageable memory the driver has taken the data when the call returns.
  auto data = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                  static_cast<const char*>(from) + bytes);
  return add(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), data->data(), bytes);
    return 0;
  });
}
int cuMemcpyDtoHAsync_v2(void* to, CudaAddress from, size_t bytes, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemcpyDtoHAsync_v2")) return result;
  if (find(from, bytes) == nullptr) return kInvalidValue;
  return add(stream, [=] {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return 0;
  });
}
int cuMemcpyDtoDAsync_v2(CudaAddress to, CudaAddress from, size_t bytes, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemcpyDtoDAsync_v2")) return result;
  if (find(to, bytes) == nullptr || find(from, bytes) == nullptr) return kInvalidValue;
  return add(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    machine->seconds += kSecondsPerByte * double(bytes);
    return 0;
  });
}
int cuMemsetD8Async(CudaAddress to, unsigned char value, size_t bytes, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuMemsetD8Async")) return result;
  if (find(to, bytes) == nullptr) return kInvalidValue;
  return add(stream, [=] {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return 0;
  });
}
int cuPointerGetAttribute(void* value, int which, CudaAddress address) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuPointerGetAttribute", false)) return result;
  const Allocation* a = find(address, 1);
  if (a == nullptr) return kInvalidValue;
  int* number = static_cast<int*>(value);
  switch (which) {
  case attribute::kPointerMemoryType: *number = attribute::kMemoryDevice; return 0;
  case attribute::kPointerDevice: *number = a->device->ordinal; return 0;
  default: return kInvalidValue;
  }
}

int cuModuleLoadData(CudaHandle* module, const void* image) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuModuleLoadData")) return result;
  if (const int result = unsafe()) return result;
  const size_t bytes = size_of_image(image);
  if (bytes == 0) return error::kInvalidImage;
  // A name of its own: a library of the same name counts as loaded.
  char path[] = "/tmp/stand-in-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return error::kInvalidImage;
  const bool written = write(file, image, bytes) == ssize_t(bytes);
  close(file);
  void* library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (library == nullptr) return error::kInvalidImage;
  const auto bind = reinterpret_cast<void (*)(const void*)>(dlsym(library, "tessera_bind"));
  if (bind == nullptr) return error::kInvalidImage;
  bind(tessera::emulator_api());
  auto made = std::make_unique<Module>(Module{library, here(), {}});
  *module = made.get();
  machine->modules[*module] = std::move(made);
  return 0;
}
int cuModuleUnload(CudaHandle module) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuModuleUnload")) return result;
  auto* m = static_cast<Module*>(module);
  drain_device(m->device);
  dlclose(m->library);
  machine->modules.erase(module);
  return 0;
}
int cuModuleGetFunction(CudaHandle* function, CudaHandle module, const char* name) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuModuleGetFunction")) return result;
  auto* m = static_cast<Module*>(module);
  const void* entry = dlsym(m->library, (std::string("tessera_entry_") + name).c_str());
  if (entry == nullptr) return error::kNotFound;
  Function& f = m->functions[name];
  f.code = *static_cast<const HostKernel*>(entry);
  f.device = m->device;
  *function = &f;
  return 0;
}
int cuFuncGetAttribute(int* value, int which, CudaHandle function) {
  if (const int result = enter("cuFuncGetAttribute")) return result;
  switch (which) {
  case attribute::kFunctionThreads: *value = 1024; return 0;
  case attribute::kFunctionStaticShared: *value = 0; return 0;
  case attribute::kFunctionLocalBytes: *value = 0; return 0;
  case attribute::kFunctionRegisters: *value = 32; return 0;
  case attribute::kFunctionDynamicShared:
    *value = int(static_cast<Function*>(function)->most_shared);
    return 0;
  default: return kInvalidValue;
  }
}
int cuFuncSetAttribute(CudaHandle function, int which, int value) {
  if (const int result = enter("cuFuncSetAttribute")) return result;
  constexpr int kLargeClusters = 14;
  if (which == kLargeClusters) return machine->major >= 9 ? 0 : kInvalidValue;
  if (which != attribute::kFunctionDynamicShared || value > machine->shared) return kInvalidValue;
  static_cast<Function*>(function)->most_shared = value;
  return 0;
}
int cuOccupancyMaxActiveClusters(int* count, CudaHandle function, const CudaLaunchConfig* config) {
  if (const int result = enter("cuOccupancyMaxActiveClusters")) return result;
  if (machine->major < 9 || config->shared_bytes > static_cast<Function*>(function)->most_shared ||
      config->grid[0] * config->grid[1] * config->grid[2] * config->block[0] == 0)
    return kInvalidValue;
  *count = machine->clusters;
  return 0;
}
int cuLaunchKernel(CudaHandle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, CudaStream stream, void** parameters,
                   void** extra) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuLaunchKernel")) return result;
  auto* f = static_cast<Function*>(function);
  if (f->device != here()) return error::kInvalidHandle;
  if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffff || gy > 65535 || gz > 65535 || by != 1 ||
      bz != 1 || bx == 0 || bx > 1024 || extra != nullptr || shared > f->most_shared)
    return kInvalidValue;
  std::vector<std::vector<char>> values;
  for (int i = 0; i < f->code.parameters; ++i) {
    const auto* data = static_cast<const char*>(parameters[i]);
    values.emplace_back(data, data + f->code.bytes[i]);
  }
  return add(stream, [=] {
    return run_kernel(f, {int(gx), int(gy), int(gz)}, int(bx), shared, values);
  });
}

int cuStreamCreate(CudaStream* stream, unsigned flags) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamCreate")) return result;
  auto made = std::make_unique<Stream>();
  made->device = here();
  made->blocking = (flags & 1) == 0;
  *stream = made.get();
  machine->streams.push_back(std::move(made));
  return 0;
}
int cuStreamDestroy_v2(CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamDestroy_v2")) return result;
  drain(*static_cast<Stream*>(stream));
  std::erase_if(machine->streams, [&](const auto& s) { return s.get() == stream; });
  return 0;
}
int cuStreamSynchronize(CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamSynchronize")) return result;
  if (const int result = unsafe()) return result;
  if (stream == nullptr)
    for (auto& s : machine->streams)
      if (s->device == here() && s->blocking) drain(*s);
  return drain(stream_of(stream));
}
int cuStreamGetCtx(CudaStream stream, CudaHandle* context) {
  if (const int result = enter("cuStreamGetCtx")) return result;
  *context = stream_of(stream).device;
  return 0;
}
int cuStreamGetCaptureInfo_v2(CudaStream stream, int* status, uint64_t* id, CudaHandle*,
                              const CudaHandle**, size_t*) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamGetCaptureInfo_v2")) return result;
  *status = stream_of(stream).capturing;
  if (id != nullptr) *id = stream_of(stream).capture;
  return 0;
}
int cuStreamWaitEvent(CudaStream, CudaHandle event, unsigned) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamWaitEvent")) return result;
  auto* e = static_cast<Event*>(event);
  return e->stream != nullptr ? drain(*e->stream) : 0;
}
int cuEventCreate(CudaHandle* event, unsigned) {
  if (const int result = enter("cuEventCreate")) return result;
  *event = new Event;
  return 0;
}
int cuEventDestroy_v2(CudaHandle event) {
  if (const int result = enter("cuEventDestroy_v2")) return result;
  delete static_cast<Event*>(event);
  return 0;
}
int cuEventRecord(CudaHandle event, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuEventRecord")) return result;
  auto* e = static_cast<Event*>(event);
  e->stream = &stream_of(stream);
  return add(stream, [=] {
    e->seconds = machine->seconds;
    return 0;
  });
}
int cuEventSynchronize(CudaHandle event) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuEventSynchronize")) return result;
  if (const int result = unsafe()) return result;
  auto* e = static_cast<Event*>(event);
  return e->stream != nullptr ? drain(*e->stream) : 0;
}
int cuEventElapsedTime(float* ms, CudaHandle from, CudaHandle to) {
  if (const int result = enter("cuEventElapsedTime")) return result;
  const auto* a = static_cast<Event*>(from);
  const auto* b = static_cast<Event*>(to);
  if (a->seconds == 0 || b->seconds == 0) return kNotReady;
  *ms = float(1e3 * (b->seconds - a->seconds));
  return 0;
}

int cuStreamBeginCapture_v2(CudaStream stream, int mode) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamBeginCapture_v2")) return result;
  if (stream == nullptr) return error::kCaptureUnsupported;
  Stream& s = stream_of(stream);
  s.capturing = 1;
  s.mode = mode;
  s.capture = ++machine->captures;
  s.capturer = std::this_thread::get_id();
  s.graph = new Graph;
  return 0;
}
int cuStreamEndCapture(CudaStream stream, CudaHandle* graph) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuStreamEndCapture")) return result;
  Stream& s = stream_of(stream);
  const int state = std::exchange(s.capturing, 0);
  *graph = state == 1 ? s.graph : nullptr;
  if (state != 1) delete s.graph;
  return state == 1 ? 0 : error::kCaptureInvalidated;
}
int cuGraphInstantiateWithFlags(CudaHandle* made, CudaHandle graph, unsigned long long) {
  if (const int result = enter("cuGraphInstantiateWithFlags")) return result;
  *made = new Graph(*static_cast<Graph*>(graph));
  return 0;
}
int cuGraphLaunch(CudaHandle graph, CudaStream stream) {
  std::lock_guard lock(mutex);
  if (const int result = enter("cuGraphLaunch")) return result;
  for (const Work& work : static_cast<Graph*>(graph)->work)
    if (const int result = add(stream, work)) return result;
  return 0;
}
int cuGraphDestroy(CudaHandle graph) {
  delete static_cast<Graph*>(graph);
  return 0;
}
int cuGraphExecDestroy(CudaHandle graph) {
  delete static_cast<Graph*>(graph);
  return 0;
}

// Boxes of two dimensions, as device/host.cuh copies them.
int cuTensorMapEncodeTiled(CudaTensorMap* map, int type, uint32_t rank, CudaAddress data,
                           const uint64_t* extents, const uint64_t* pitches, const uint32_t* box,
                           const uint32_t*, int interleave, int swizzle, int, int) {
  if (const int result = enter("cuTensorMapEncodeTiled", false)) return result;
  const int element = type == 6 || type == 9 || type == 1 ? 2 : type == 7 || type == 2 ? 4 : 0;
  if (rank != 2 || element == 0 || interleave != 0 || data % 16 != 0 || pitches[0] % 16 != 0 ||
      box[0] > 256 || box[1] > 256 || box[0] * uint32_t(element) % 16 != 0 ||
      // The emulator knows boxes that are as wide as the swizzling reaches: 32, 64, 128 bytes.
      swizzle < 0 || swizzle > 3 ||
      (swizzle != 0 && box[0] * uint32_t(element) != uint32_t(16 << swizzle)))
    return kInvalidValue;
  if (find(data, pitches[0] * (extents[1] - 1) + extents[0] * size_t(element)) == nullptr)
    return kInvalidValue;
  const ts::TensorMap host =
      ts::host::tensor_map(reinterpret_cast<void*>(data), int(extents[1]), int(extents[0]),
                           int64_t(pitches[0]), element, int(box[1]), int(box[0]), swizzle != 0);
  static_assert(sizeof host == sizeof *map);
  std::memcpy(map, &host, sizeof host);
  return 0;
}

}  // extern "C"
