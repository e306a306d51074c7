#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/interruption.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { close(); }
  int get() const { return fd_; }
  void set(int fd) { close(), fd_ = fd; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

void make_pipe(Fd& read_end, Fd& write_end) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0)
    throw Error(ErrorKind::Io, std::string("cannot create a pipe: ") + std::strerror(errno));
  read_end.set(fds[0]);
  write_end.set(fds[1]);
}

// Reads what is there; closes `fd` at the end of the stream.
void drain(Fd& fd, std::string& into) {
  char buffer[8192];
  const ssize_t n = read(fd.get(), buffer, sizeof buffer);
  if (n > 0)
    into.append(buffer, size_t(n));
  else if (n == 0 || (errno != EINTR && errno != EAGAIN))
    fd.close();
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, double timeout_s,
                          const std::atomic<bool>* cancel) {
  Fd out_read, out_write, err_read, err_write;
  make_pipe(out_read, out_write);
  make_pipe(err_read, err_write);

  const Fd null(open("/dev/null", O_RDONLY));
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const pid_t parent = getpid();
  volatile int failed = 0;
  const pid_t pid = vfork();
  if (pid == 0) {
    // Its own group, so that a time-out reaches the compiler's children as well; it ends with the
    // thread that waits for it, whatever ends that.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent && dup2(null.get(), 0) >= 0 && dup2(out_write.get(), 1) >= 0 &&
        dup2(err_write.get(), 2) >= 0)
      execv(args[0], args.data());
    failed = errno;
    _exit(127);
  }
  if (pid < 0) failed = errno;
  if (failed != 0) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    throw Error(ErrorKind::Io, "cannot start '" + argv[0] + "': " + std::strerror(failed));
  }
  out_write.close();
  err_write.close();

  ProcessResult result;
  const Interruptible* const scope = Interruptible::current();
  const bool polls = cancel != nullptr || scope != nullptr;
  bool interrupted = false;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_s));
  while (out_read.get() >= 0 || err_read.get() >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    interrupted = scope != nullptr && scope->ended();
    result.cancelled =
        interrupted || (cancel != nullptr && cancel->load(std::memory_order_relaxed));
    if (left <= 0 || result.cancelled) {
      result.timed_out = !result.cancelled;
      kill(-pid, SIGKILL);
      break;
    }
    pollfd fds[2] = {{out_read.get(), POLLIN, 0}, {err_read.get(), POLLIN, 0}};
    constexpr int64_t kPollMs = 20;  // how long a cancellation may go unseen
    poll(fds, 2, int(polls ? std::min(left + 1, kPollMs) : left + 1));
    if (fds[0].revents != 0) drain(out_read, result.out);
    if (fds[1].revents != 0) drain(err_read, result.err);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (interrupted) throw Interrupted();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::optional<std::string> find_executable(const std::string& name) {
  const auto runnable = [](const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           access(path.c_str(), X_OK) == 0;
  };
  if (name.empty()) return std::nullopt;
  if (name.find('/') != std::string::npos)
    return runnable(name) ? std::optional(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string folder = rest.substr(0, colon);
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    // An empty or relative entry would run what lies in the current folder.
    if (folder.empty() || folder[0] != '/') continue;
    if (runnable(folder + "/" + name)) return folder + "/" + name;
  }
  return std::nullopt;
}

}  // namespace tessera
