#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"

namespace tessera {
namespace {

std::string first_word(const std::filesystem::path& file, int skip = 0) {
  std::ifstream in(file);
  std::string word;
  for (int i = 0; i <= skip; ++i) in >> word;
  return in ? word : "";
}

template <class F> bool soon(F&& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Process, TellsBothStreamsAndTheExitCode) {
  const ProcessResult r =
      run_process({"/bin/sh", "-c", "read x; echo \"out$x\"; echo err >&2; exit 3"}, 60);
  EXPECT_EQ(r.out, "out\n");  // there is no input
  EXPECT_EQ(r.err, "err\n");
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_FALSE(r.timed_out);
}

TEST(Process, SaysWhatCannotBeStarted) {
  try {
    run_process({"/nowhere/program"}, 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_EQ(error.message(), "cannot start '/nowhere/program': No such file or directory");
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
}

TEST(Process, EndsAtATimeOutWithWhatItStarted) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("tessera-process-" + std::to_string(getpid()) + "-group");
  const ProcessResult r =
      run_process({"/bin/sh", "-c", "sleep 300 & echo $! > " + file.string() + "; wait"}, 0.5);
  EXPECT_TRUE(r.timed_out);
  const std::string pid = first_word(file);
  ASSERT_NE(pid, "");
  EXPECT_TRUE(soon([&] {
    const std::string state = first_word("/proc/" + pid + "/stat", 2);
    return state.empty() || state == "Z";
  }));
  std::filesystem::remove(file);
}

// Also one that is killed, and can tell its children nothing.
TEST(Process, EndsWithTheProcessThatWaitsForIt) {
  const auto file =
      std::filesystem::temp_directory_path() / ("tessera-process-" + std::to_string(getpid()));
  const pid_t child = fork();
  if (child == 0) {
    run_process({"/bin/sh", "-c", "echo $$ > " + file.string() + "; exec sleep 300"}, 300);
    _exit(0);
  }
  std::string pid;
  ASSERT_TRUE(soon([&] { return !(pid = first_word(file)).empty(); }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(soon([&] {
    const std::string state = first_word("/proc/" + pid + "/stat", 2);
    return state.empty() || state == "Z";
  })) << pid;
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tessera
