#include "backend/host_kernels.h"

#include <set>

#include "backend/cuda/nvrtc.h"
#include "base/error.h"

namespace tessera {
namespace {

// The text of a header with those that it includes in their places.
std::string with_headers(std::string text) {
  const std::string begin = "#include \"";
  std::set<std::string> pasted;
  for (size_t at; (at = text.find(begin)) != std::string::npos;) {
    const size_t name = at + begin.size(), end = text.find('"', name);
    const bool first = pasted.insert(text.substr(name, end - name)).second;
    std::string header = first ? device_header(text.substr(name, end - name)) : "";
    const std::string once = "#pragma once\n";
    if (const size_t p = header.find(once); p != std::string::npos) header.erase(p, once.size());
    text.replace(at, end + 1 - at, header);
  }
  return text;
}

// Calls a kernel with parameters that lie in memory.
constexpr const char* kEntrySource = R"(
#include <utility>
namespace tessera_entries {
struct Entry {
  void (*call)(void**);
  int parameters;
  const int* bytes;
  int grain;
};
template <class... A> constexpr int bytes[sizeof...(A) + 1] = {int(sizeof(A))..., 0};
template <auto kernel, class... A, unsigned long... i>
void call(void** p, std::index_sequence<i...>) { kernel(*static_cast<A*>(p[i])...); }
template <auto kernel, int grain, class... A> Entry entry(void (*)(A...)) {
  return {[](void** p) { call<kernel, std::remove_cv_t<A>...>(p, std::index_sequence_for<A...>()); },
          int(sizeof...(A)), bytes<A...>, grain};
}
}  // namespace tessera_entries
#define TESSERA_EXPORTED extern "C" __attribute__((visibility("default")))
TESSERA_EXPORTED void tessera_bind(const void* api) {
  ts::host::api = static_cast<const ts::host::Api*>(api);
}
)";

}  // namespace

int smallest_element(const std::string& source) {
  return source.find("char*") != std::string::npos ? 1 : 2;
}

std::unique_ptr<Library> load_host_kernels(const std::string& source,
                                           const std::vector<std::string>& kernels, Cache& cache,
                                           int optimize) {
  std::string text = with_headers("#include \"device.cuh\"\n");
  std::string own = source;
  const std::string line = "#include \"device.cuh\"\n";
  if (const size_t at = own.find(line); at != std::string::npos) own.replace(at, line.size(), "\n");
  text += "#line 1\n" + own + kEntrySource;
  for (const std::string& k : std::set<std::string>(kernels.begin(), kernels.end()))
    text += "TESSERA_EXPORTED tessera_entries::Entry tessera_entry_" + k +
            " = tessera_entries::entry<" + k + ", " + std::to_string(smallest_element(source)) +
            ">(" + k + ");\n";
  CompileOptions options;
  // Faults of the emulator are exceptions that pass through the kernels.
  options.flags = {"-x",
                   "c++",
                   "-std=c++17",
                   "-O" + std::to_string(optimize),
                   "-fPIC",
                   "-shared",
                   "-w",
                   "-fno-strict-aliasing",
                   "-ffp-contract=off",
                   "-fvisibility=hidden"};
  options.timeout_s = 300;
  return compile_and_load(text, options, cache);
}

std::string host_kernels(const std::string& source, const std::vector<std::string>& kernels,
                         Cache& cache) {
  const auto library = load_host_kernels(source, kernels, cache);
  const auto bytes = read_file(library->path());
  if (!bytes) throw Error(ErrorKind::Io, "cannot read '" + library->path() + "'");
  return *bytes;
}

}  // namespace tessera
