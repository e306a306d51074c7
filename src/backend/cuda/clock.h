// Times work on a device by the device's own events.
#pragma once
#include <functional>
#include <memory>

#include "backend/cuda/driver.h"

namespace tessera {

class CudaClock {
 public:
  explicit CudaClock(std::shared_ptr<CudaContext> context);
  ~CudaClock();
  CudaClock(const CudaClock&) = delete;
  CudaClock& operator=(const CudaClock&) = delete;

  // A stream of its own, which work is to be put on.
  CudaStream stream() const { return stream_; }
  // Puts work(0), … work(repeats - 1) on the stream between two events, waits for the second and
  // returns the seconds between them. Throws what `work` throws, and Error{Device} where it failed
  // on the device.
  double time(const std::function<void(int repeat)>& work, int repeats);

 private:
  std::shared_ptr<CudaContext> context_;
  CudaStream stream_ = nullptr;
  CudaHandle begin_ = nullptr, end_ = nullptr;
};

}  // namespace tessera
