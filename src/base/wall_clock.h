// The wall time since something began.
#pragma once
#include <chrono>

namespace tessera {

class WallClock {
 public:
  // Since this was made.
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
