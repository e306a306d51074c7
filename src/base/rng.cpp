#include "base/rng.h"

#include <random>

namespace tessera {

uint64_t seed_from_system() {
  std::random_device device;
  return (uint64_t(device()) << 32) ^ device();
}

}  // namespace tessera
