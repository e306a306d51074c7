#include <cctype>

#include "backend/cuda/emit.h"
#include "base/error.h"

namespace tessera {

std::string CudaArch::str() const {
  return "sm_" + std::to_string(10 * major + minor) + (specific ? "a" : "");
}

int64_t CudaArch::shared_bytes() const {
  if (major == 8) return int64_t{minor == 0 || minor == 7 ? 163 : 99} << 10;
  return int64_t{major == 12 ? 99 : 227} << 10;
}

int CudaArch::largest_cluster() const {
  if (major < 9) return 1;
  return (major == 9 || major == 10) && minor == 0 ? 16 : portable_cluster;
}

CudaArch parse_arch(const std::string& text) {
  const auto refuse = [&]() -> Error {
    return {ErrorKind::BadInput, "'" + text +
                                     "' is no CUDA architecture from sm_80 on; write sm_80, sm_90a "
                                     "or the like"};
  };
  if (text.rfind("sm_", 0) != 0) throw refuse();
  size_t end = 3;
  int number = 0;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) && end < 7)
    number = 10 * number + (text[end++] - '0');
  const bool specific = end + 1 == text.size() && text[end] == 'a';
  if (number < 80 || (end != text.size() && !specific)) throw refuse();
  return {number / 10, number % 10, specific};
}

}  // namespace tessera
