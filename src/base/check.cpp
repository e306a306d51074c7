#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tessera {

void unreachable(const char* what) {
  std::fprintf(stderr, "tessera: internal error: reached the unreachable: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

namespace detail {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  message_ << "tessera: internal error: " << file << ":" << line << ": check failed: " << condition
           << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", message_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace tessera
