#include "solve/smt.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/process.h"

namespace tessera {
namespace {

// A script on disk for as long as the solver reads it.
class ScriptFile {
 public:
  explicit ScriptFile(const std::string& text) {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/tessera-XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0) throw Error(ErrorKind::Io, "cannot create a temporary file " + path_);
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = write(file, text.data() + at, text.size() - at);
      if (n <= 0) {
        ::close(file);
        unlink(path_.c_str());
        throw Error(ErrorKind::Io, "cannot write to " + path_);
      }
      at += size_t(n);
    }
    ::close(file);
  }
  ScriptFile(const ScriptFile&) = delete;
  ScriptFile& operator=(const ScriptFile&) = delete;
  ~ScriptFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::optional<std::string> find_z3(const std::string& named) {
  if (!named.empty()) return find_executable(named);
  const char* path = std::getenv("TESSERA_Z3");
  return find_executable(path != nullptr && *path != 0 ? path : "z3");
}

std::string z3_version(const std::string& z3) {
  const ProcessResult r = run_process({z3, "--version"}, 10);
  std::istringstream words(r.out);
  std::string name, version, number;
  if (r.exit_code != 0 || !(words >> name >> version >> number) || name != "Z3")
    throw Error(ErrorKind::Io, z3 + " does not answer as Z3 does");
  return "Z3 " + number;
}

std::vector<SmtStatus> solve_smt(const std::string& z3, const std::string& script,
                                 const SmtLimits& limits) {
  const ScriptFile file(script);
  const int seconds = std::max(1, int(std::ceil(limits.seconds)));
  const ProcessResult r = run_process({z3, "-smt2", "-T:" + std::to_string(seconds),
                                       "-memory:" + std::to_string(limits.megabytes), file.path()},
                                      seconds + 1);
  std::vector<SmtStatus> answers;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) {
    if (line == "unsat")
      answers.push_back(SmtStatus::Unsat);
    else if (line == "sat")
      answers.push_back(SmtStatus::Sat);
    else if (line == "timeout")
      break;
    else  // "unknown", and complaints: a script that is not understood proves nothing
      answers.push_back(SmtStatus::Unknown);
    if (line.starts_with("(error")) return {};
  }
  return answers;
}

}  // namespace tessera
