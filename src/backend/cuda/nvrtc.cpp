#include "backend/cuda/nvrtc.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "base/check.h"
#include "base/error.h"
#include "base/shared_library.h"

namespace tessera {
namespace {

// Of NVRTC's interface (docs.nvidia.com/cuda/nvrtc), version 12 and later.
struct Nvrtc {
  SharedLibrary library;
  using Program = void*;
  int (*create)(Program*, const char*, const char*, int, const char* const*,
                const char* const*) = library.need("nvrtcCreateProgram");
  int (*compile)(Program, int, const char* const*) = library.need("nvrtcCompileProgram");
  int (*destroy)(Program*) = library.need("nvrtcDestroyProgram");
  int (*log_size)(Program, size_t*) = library.need("nvrtcGetProgramLogSize");
  int (*log)(Program, char*) = library.need("nvrtcGetProgramLog");
  int (*cubin_size)(Program, size_t*) = library.need("nvrtcGetCUBINSize");
  int (*cubin)(Program, char*) = library.need("nvrtcGetCUBIN");
  int (*version)(int*, int*) = library.need("nvrtcVersion");
  int (*arch_count)(int*) = library.need("nvrtcGetNumSupportedArchs");
  int (*archs)(int*) = library.need("nvrtcGetSupportedArchs");
  const char* (*error)(int) = library.need("nvrtcGetErrorString");
};

std::mutex folders_mutex;  // of what follows
std::vector<std::string> folders;

// NVRTC loads its built-ins by name when it compiles, and finds those that are loaded already; by
// itself it does not find the ones beside it under a sanitizer, whose dlopen knows no caller.
void load_builtins(const std::string& nvrtc) {
  const std::filesystem::path folder = std::filesystem::path(nvrtc).parent_path();
  std::error_code none;
  if (folder.empty() || !std::filesystem::exists(nvrtc, none)) return;
  for (const auto& file : std::filesystem::directory_iterator(folder, none))
    if (file.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0)
      dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
}

Nvrtc load_nvrtc() {
  std::vector<std::string> places =
      cuda_places("", {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
  if (const char* path = std::getenv("TESSERA_NVRTC")) places.insert(places.begin(), path);
  const SharedLibrary library("NVRTC", "version 12 or later", places,
                              "CUDA kernels are compiled by NVRTC, which is not found: pip install "
                              "nvidia-cuda-nvrtc, or set TESSERA_NVRTC to libnvrtc.so");
  load_builtins(library.place());
  return {library};
}

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = load_nvrtc();
  return loaded;
}

// The number that stands before `text` in the compiler's report on a kernel; 0 where it says none.
int number_before(const std::string& report, const std::string& text) {
  const size_t end = report.find(" " + text);
  if (end == std::string::npos) return 0;
  size_t begin = end;
  while (begin > 0 && report[begin - 1] >= '0' && report[begin - 1] <= '9') --begin;
  return std::atoi(report.substr(begin, end - begin).c_str());
}

// ptxas' reason ("…: wgmma.mma_async instructions are serialized due to REASON in the function 'k'
// in line 7"; "for the function" where it knows no line); empty where it gives none for this
// kernel.
std::string why_serialized(const std::string& log, const std::string& kernel) {
  const std::string start = "wgmma.mma_async instructions are serialized due to ";
  for (size_t at = 0; (at = log.find(start, at)) != std::string::npos;) {
    at += start.size();
    const std::string line = log.substr(at, log.find('\n', at) - at);
    const size_t name = line.find(" the function '" + kernel + "'");
    if (name != std::string::npos) return line.substr(0, line.rfind(' ', name - 1));
  }
  return "";
}

}  // namespace

void set_cuda_folders(std::vector<std::string> where) {
  std::lock_guard lock(folders_mutex);
  folders = std::move(where);
}

int nvrtc_version_number() {
  int major = 0, minor = 0;
  nvrtc().version(&major, &minor);
  return 1000 * major + 10 * minor;
}

std::vector<std::string> cuda_places(const std::string& path,
                                     const std::vector<std::string>& names) {
  if (!path.empty()) return {path};
  std::vector<std::string> places;
  const auto below = [&](const std::string& folder) {
    for (const std::string& name : names) places.push_back(folder + name);
  };
  std::lock_guard lock(folders_mutex);
  for (const std::string& folder : folders) below(folder + "/");
  below("");
  below("/usr/local/cuda/lib64/");
  return places;
}

std::string nvrtc_version() {
  const int version = nvrtc_version_number();
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CudaObject compile_cuda_kernels(const std::string& source, const std::vector<std::string>& kernels,
                                const std::string& arch) {
  CHECK(!kernels.empty());
  const std::string& kernel = kernels.front();
  const Nvrtc& n = nvrtc();
  int count = 0;
  n.arch_count(&count);
  std::vector<int> archs(static_cast<size_t>(count));
  n.archs(archs.data());
  std::string known;
  bool supported = false;
  for (int a : archs) {
    known += (known.empty() ? "sm_" : ", sm_") + std::to_string(a);
    const std::string plain = "sm_" + std::to_string(a);
    supported = supported || arch == plain || arch == plain + "a";
  }
  if (!supported)
    throw Error(ErrorKind::Unsupported, "NVRTC " + nvrtc_version() + " does not compile for '" +
                                            arch + "', only for " + known);
  const std::array<const char*, 3> names = {"device.cuh", "ptx.cuh", "tiles.cuh"};
  std::array<const char*, 3> texts{};
  for (size_t i = 0; i < names.size(); ++i) texts[i] = device_header(names[i]).c_str();
  Nvrtc::Program program = nullptr;
  if (n.create(&program, source.c_str(), (kernel + ".cu").c_str(), int(names.size()), texts.data(),
               names.data()) != 0)
    throw Error(ErrorKind::Internal, "NVRTC makes no program of " + kernel);
  struct Destroy {
    const Nvrtc& n;
    Nvrtc::Program* program;
    ~Destroy() { n.destroy(program); }
  } destroy{n, &program};
  const std::string architecture = "--gpu-architecture=" + arch;
  std::vector<const char*> options = {architecture.c_str(), "--std=c++17", "--ptxas-options=-v"};
  // What comes from NVRTC's cache, which the driver keeps, has no report of ptxas.
  if (nvrtc_version_number() >= 12090) options.push_back("--no-cache");
  const int result = n.compile(program, int(options.size()), options.data());
  size_t size = 0;
  n.log_size(program, &size);
  std::string log(size, '\0');
  n.log(program, log.data());
  while (!log.empty() && log.back() == '\0') log.pop_back();
  if (result != 0)
    throw Error(ErrorKind::Internal,
                "NVRTC refuses " + kernel + " for " + arch + ": " + n.error(result) + "\n" + log);
  CudaObject object;
  n.cubin_size(program, &size);
  object.cubin.resize(size);
  n.cubin(program, object.cubin.data());
  for (const std::string& name : kernels) {
    // ptxas reports on one entry function after the other.
    const size_t from = log.find("entry function '" + name + "'");
    if (from == std::string::npos)
      throw Error(ErrorKind::Internal, "NVRTC found no kernel " + name + " in its source\n" + log);
    std::string report = log.substr(from);
    if (const size_t next = report.find("entry function '", 1); next != std::string::npos)
      report.resize(next);
    CudaBinary k;
    k.kernel = name;
    k.registers = number_before(report, "registers");
    k.spilled_bytes =
        number_before(report, "bytes spill stores") + number_before(report, "bytes spill loads");
    k.stack_bytes = number_before(report, "bytes stack frame");
    k.static_shared_bytes = number_before(report, "bytes smem");
    k.serialized = why_serialized(log, name);
    object.kernels.push_back(std::move(k));
  }
  return object;
}

}  // namespace tessera
