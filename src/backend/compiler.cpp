#include "backend/compiler.h"

#include <sys/stat.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/process.h"
#include "base/sha256.h"

namespace tessera {

Compiler find_compiler() {
  const char* wanted = std::getenv("TESSERA_CXX");
  std::optional<std::string> path;
  if (wanted != nullptr && *wanted != '\0') {
    path = find_executable(wanted);
    if (!path) {
      throw Error(ErrorKind::ToolMissing, std::string("TESSERA_CXX names '") + wanted +
                                              "', which is not an executable file on PATH" +
                                              (std::string(wanted).find(' ') != std::string::npos
                                                   ? "; name a program without options"
                                                   : ""));
    }
  } else {
    for (const char* name : {"c++", "g++", "clang++"})
      if (!path) path = find_executable(name);
    if (!path) {
      throw Error(ErrorKind::ToolMissing,
                  "no C++ compiler found: install one (apt-get install g++; dnf install gcc-c++; "
                  "without root: pip install 'tessera-opt[jit]', 411 MB) or set TESSERA_CXX to its "
                  "path");
    }
  }
  struct stat info {};
  stat(path->c_str(), &info);
  const std::string stamp = std::to_string(info.st_size) + " " + std::to_string(info.st_mtime);
  // Asking a compiler for its version costs some 5 ms: once per process and file.
  static std::mutex mutex;
  static std::map<std::string, Compiler> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(*path + " " + stamp);
  if (found != known.end()) return found->second;
  const ProcessResult version = run_process({*path, "--version"}, 20);
  if (version.exit_code != 0 || version.timed_out) {
    throw Error(ErrorKind::ToolMissing,
                "'" + *path + "' does not answer --version; set TESSERA_CXX to a C++ compiler");
  }
  Compiler compiler{*path, version.out.substr(0, version.out.find('\n')),
                    Sha256().field(version.out).field(stamp).hex()};
  known.emplace(*path + " " + stamp, compiler);
  return compiler;
}

bool has_compiler() {
  try {
    (void)find_compiler();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace tessera
