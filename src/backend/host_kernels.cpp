#include "backend/host_kernels.h"

#include "backend/cpu/compile.h"
#include "backend/cuda/nvrtc.h"
#include "base/error.h"

namespace tessera {
namespace {

// A header's text in place of the line that includes it.
void paste(std::string& text, const std::string& name) {
  const std::string line = "#include \"" + name + "\"\n";
  const size_t at = text.find(line);
  if (at == std::string::npos) return;
  std::string header = device_header(name);
  const std::string once = "#pragma once\n";
  if (const size_t p = header.find(once); p != std::string::npos) header.erase(p, once.size());
  text.replace(at, line.size(), header);
}

// Calls a kernel with parameters that lie in memory.
constexpr const char* kEntries = R"(
#include <utility>
namespace tessera_entries {
struct Entry {
  void (*call)(void**);
  int parameters;
  const int* bytes;
};
template <class... A> constexpr int bytes[sizeof...(A) + 1] = {int(sizeof(A))..., 0};
template <auto kernel, class... A, unsigned long... i>
void call(void** p, std::index_sequence<i...>) { kernel(*static_cast<A*>(p[i])...); }
template <auto kernel, class... A> Entry entry(void (*)(A...)) {
  return {[](void** p) { call<kernel, std::remove_cv_t<A>...>(p, std::index_sequence_for<A...>()); },
          int(sizeof...(A)), bytes<A...>};
}
}  // namespace tessera_entries
#define TESSERA_EXPORTED extern "C" __attribute__((visibility("default")))
TESSERA_EXPORTED void tessera_bind(const void* api) {
  ts::host::api = static_cast<const ts::host::Api*>(api);
}
)";

}  // namespace

std::string host_kernels(const std::string& source, const std::vector<std::string>& kernels,
                         Cache& cache) {
  std::string device = "#include \"device.cuh\"\n";
  for (const char* name : {"device.cuh", "host.cuh", "api.h", "tiles.cuh"}) paste(device, name);
  std::string text = device;
  std::string own = source;
  const std::string line = "#include \"device.cuh\"\n";
  if (const size_t at = own.find(line); at != std::string::npos) own.replace(at, line.size(), "\n");
  text += "#line 1\n" + own + kEntries;
  for (const std::string& k : kernels)
    text += "TESSERA_EXPORTED tessera_entries::Entry tessera_entry_" + k +
            " = tessera_entries::entry<" + k + ">(" + k + ");\n";
  CompileOptions options;
  // Faults of the emulator are exceptions that pass through the kernels.
  options.flags = {"-x",
                   "c++",
                   "-std=c++17",
                   "-O1",
                   "-fPIC",
                   "-shared",
                   "-w",
                   "-fno-strict-aliasing",
                   "-ffp-contract=off",
                   "-fvisibility=hidden"};
  const auto library = compile_and_load(text, options, cache);
  const auto bytes = read_file(library->path());
  if (!bytes) throw Error(ErrorKind::Io, "cannot read '" + library->path() + "'");
  return *bytes;
}

}  // namespace tessera
