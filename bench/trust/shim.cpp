// Preloaded: has the i-th write to a file, or the i-th operator new, fail; arm() says which.
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace {
std::atomic<long> writes{-1}, news{-1};
// Counts down; true once at zero, and ever after where failing goes on, as on a full disk.
bool now(std::atomic<long>& left, bool for_ever) {
  const long n = left.load();
  if (n < 0) return false;
  if (n > 0) return left.fetch_sub(1) == 1 && (for_ever ? (left = 0, true) : (left = -1, true));
  return for_ever;
}
bool is_file(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}
template <class F> F next(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }
}  // namespace

extern "C" {
void trust_arm(long write, long allocation) {
  writes = write;
  news = allocation;
}
ssize_t write(int fd, const void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (writes >= 0 && is_file(fd) && now(writes, true)) {
    errno = ENOSPC;
    return size > 1 ? real(fd, data, size / 2), errno = ENOSPC, -1 : -1;
  }
  return real(fd, data, size);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  if (writes >= 0 && is_file(fd) && now(writes, true)) {
    errno = ENOSPC;
    return -1;
  }
  return real(fd, data, size, at);
}
}

void* operator new(size_t size) {
  // Small ones are nanobind's too, which ends the process where it gets none.
  if (size >= 128 && now(news, false)) throw std::bad_alloc();
  if (void* p = malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }
