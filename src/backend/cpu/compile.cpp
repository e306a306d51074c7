#include "backend/cpu/compile.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/error.h"
#include "base/process.h"
#include "base/sha256.h"

namespace tessera {
namespace {

// Where glibc's functions of vectors are, those of 2.35 among them; empty: nowhere.
const std::string& vector_functions() {
  static const std::string path = [] {
    void* library = dlopen("libmvec.so.1", RTLD_LAZY);
    void* newest = library != nullptr ? dlsym(library, "_ZGVbN4vv_atan2f") : nullptr;
    Dl_info info;
    return std::string(newest != nullptr && dladdr(newest, &info) != 0 ? info.dli_fname : "");
  }();
  return path;
}

std::vector<std::string> flags_for(const CompileOptions& options) {
  if (!options.flags.empty()) return options.flags;
  // No libm calls to keep errno for; contraction to FMA; everything else stays IEEE. The simd
  // pragmas count only with -fopenmp-simd, which needs no run-time library.
  std::vector<std::string> flags = {"-x",
                                    "c++",
                                    "-std=c++17",
                                    "-O2",
                                    "-fPIC",
                                    "-w",
                                    "-fno-exceptions",
                                    "-fno-rtti",
                                    "-shared",
                                    "-nostdlib",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-ffp-contract=fast",
                                    "-fopenmp-simd",
                                    "-fno-strict-aliasing",
                                    "-fwrapv",
                                    "-fvisibility=hidden"};
  for (std::string& flag : compiler_flags(options.isa)) flags.push_back(std::move(flag));
  if (!vector_functions().empty()) flags.push_back("-DT_LIBMVEC");
  return flags;
}

std::string compile(const Compiler& compiler, const std::string& source,
                    const CompileOptions& options, Cache& cache) {
  static std::atomic<unsigned> counter{0};
  const std::string stem = cache.temporary_directory() + "/kernel" + std::to_string(counter++);
  const std::string source_path = stem + ".cpp";
  const std::string object_path = stem + ".so";
  if (const std::string why = write_atomically(source_path, source); !why.empty())
    throw Error(ErrorKind::Io, why + " (is the disk full?)");
  std::vector<std::string> argv = {compiler.path};
  for (std::string& flag : flags_for(options)) argv.push_back(std::move(flag));
  argv.insert(argv.end(), {"-o", object_path, source_path});
  if (!vector_functions().empty())
    argv.insert(argv.end(), {"-x", "none", "-Wl,--as-needed", vector_functions()});
  const ProcessResult result = run_process(argv, options.timeout_s, options.cancel);
  if (result.cancelled) {
    std::remove(object_path.c_str());
    std::remove(source_path.c_str());
    throw Error(ErrorKind::Cancelled, "compiling was stopped");
  }
  if (result.timed_out || result.exit_code != 0) {
    std::remove(object_path.c_str());
    // Kept outside the temporary directory, which goes away with this process.
    const char* tmp = std::getenv("TMPDIR");
    std::string kept = std::string(tmp != nullptr && *tmp == '/' ? tmp : "/tmp") +
                       "/tessera-rejected-" + std::to_string(getpid()) + "-" +
                       sha256_hex(source).substr(0, 12) + ".cpp";
    if (std::rename(source_path.c_str(), kept.c_str()) != 0) kept = source_path;
    if (result.timed_out) {
      throw Error(ErrorKind::Internal, "compiling generated code took longer than " +
                                           std::to_string(int(options.timeout_s)) +
                                           " s and was stopped; the source is kept at " + kept);
    }
    const ProcessResult machine = run_process({compiler.path, "-dumpmachine"}, 20);
    if (machine.exit_code != 0 || machine.out.find('-') == std::string::npos) {
      std::remove(kept.c_str());
      throw Error(ErrorKind::ToolMissing,
                  "'" + compiler.path +
                      "' is not a C++ compiler that Tessera can use "
                      "(-dumpmachine fails); set TESSERA_CXX to g++ or clang++");
    }
    throw Error(ErrorKind::Internal, compiler.path + " rejected generated code (exit code " +
                                         std::to_string(result.exit_code) +
                                         "); the source is kept at " + kept + "\n" +
                                         result.err.substr(0, 4000));
  }
  std::remove(source_path.c_str());
  std::optional<std::string> bytes = read_file(object_path);
  std::remove(object_path.c_str());
  if (!bytes || bytes->empty())
    throw Error(ErrorKind::Io, "cannot read back '" + object_path + "' (is the disk full?)");
  return *std::move(bytes);
}

}  // namespace

Library::Library(void* handle, std::string path, std::string source, bool cached)
    : handle_(handle), path_(std::move(path)), source_(std::move(source)), from_cache_(cached) {}

Library::~Library() { dlclose(handle_); }

void* Library::symbol(const std::string& name) const {
  void* address = dlsym(handle_, name.c_str());
  CHECK(address != nullptr) << "generated code lacks " << name;
  return address;
}

namespace {

// Where there is no compiler any more, as in images that only run what was compiled before, the one
// that compiled last stands for it: without a version.
std::string last_compiler() { return Sha256().field("compiler that was used last").hex(); }
Compiler compiler_of(const CompileOptions& options, Cache& cache) {
  if (options.compiler != nullptr) return *options.compiler;
  try {
    return find_compiler();
  } catch (const Error& e) {
    const char* named = std::getenv("TESSERA_CXX");
    if (e.kind() != ErrorKind::ToolMissing || (named != nullptr && *named != '\0')) throw;
    const std::optional<std::string> last = cache.find_text(last_compiler());
    const size_t end = last ? last->find('\n') : std::string::npos;
    if (end == std::string::npos) throw;
    return {last->substr(0, end), "", last->substr(end + 1)};
  }
}

}  // namespace

std::unique_ptr<Library> compile_and_load(const std::string& source, const CompileOptions& options,
                                          Cache& cache) {
  const Compiler compiler = compiler_of(options, cache);
  Sha256 hash;
  hash.field("cpu").field(std::to_string(kCodegenVersion)).field(source).field(compiler.path);
  hash.field(compiler.identity).field(to_string(options.isa));
  for (const std::string& flag : flags_for(options)) hash.field(flag);
  const std::string key = hash.hex();
  for (bool cached : {true, false}) {
    std::optional<std::string> path;
    if (cached)
      path = cache.find(key, ".so");
    else
      path = cache.store(
          key, ".so",
          compile(compiler.version.empty() ? find_compiler() : compiler, source, options, cache));
    if (!path) continue;
    if (!cached) cache.store_text(last_compiler(), compiler.path + "\n" + compiler.identity);
    // A path without '/' would be searched for; ours never are.
    CHECK(path->find('/') != std::string::npos);
    void* handle = dlopen(path->c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return std::make_unique<Library>(handle, *path, source, cached);
    if (!cached) {
      const char* why = dlerror();
      throw Error(ErrorKind::Io, "cannot load '" + *path + "': " + (why != nullptr ? why : "?") +
                                     " (is the cache on a file system mounted noexec?)");
    }
  }
  unreachable("compile_and_load");
}

}  // namespace tessera
