// Portable kernels: the baseline instruction set of the build, no intrinsics.
#include "eval/kernels_impl.h"

namespace tessera {
namespace {

struct Scalar {};

// Terms are below p² < 2^62. The accumulator starts at −2p² and stays in [−2p², 2p²): two terms,
// then 2p² is subtracted where it is not negative.
struct Micro31 : Words31<Scalar, 4, 8> {
  static void tile(const Context& m, int64_t kc, const uint32_t* a, const uint32_t* b,
                   uint32_t* out) {
    const int64_t twice = int64_t(2) * m.p * m.p;
    for (int64_t i = 0; i < kMR; ++i) {
      int64_t acc[kNR];
      for (int64_t j = 0; j < kNR; ++j) acc[j] = -twice;
      for (int64_t k = 0; k < kc; ++k) {
        const uint64_t x = a[k * kMR + i];
        for (int64_t j = 0; j < kNR; ++j) acc[j] += int64_t(x * b[k * kNR + j]);
        if (k & 1)
          for (int64_t j = 0; j < kNR; ++j) acc[j] -= twice & ~(acc[j] >> 63);
      }
      for (int64_t j = 0; j < kNR; ++j) {
        if (acc[j] >= 0) acc[j] -= twice;
        out[i * kNR + j] = m.reduce(uint64_t(acc[j] + twice));
      }
    }
  }
};

}  // namespace

const Kernels* scalar_kernels() {
  return kernel_table<Scalar, Micro31, WideMicro<Scalar>, 4, 4>("scalar");
}

}  // namespace tessera
