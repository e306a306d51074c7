// Runs another program by argument vector, never through a shell, with a time limit.
// Used for the system compiler and SMT solvers; both output streams are captured.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct ProcessResult {
  int exit_code = 0;  // 128 + signal where a signal ended it
  bool timed_out = false;
  bool cancelled = false;
  std::string out;
  std::string err;
};

// Runs argv[0] (a path; PATH is not searched). Throws Error{Io} if it cannot be started.
// After `timeout_s` seconds, or soon after `cancel` (may be null) is set, the whole process group
// is killed; where the scope of base/interruption.h ends, too, and Interrupted is thrown.
// The process itself ends with the thread that called, whatever ends that (prctl(2)).
ProcessResult run_process(const std::vector<std::string>& argv, double timeout_s,
                          const std::atomic<bool>* cancel = nullptr);

// Path of the executable `name`: itself if it holds a '/', else the first match on PATH.
std::optional<std::string> find_executable(const std::string& name);

}  // namespace tessera
