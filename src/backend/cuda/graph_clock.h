// Times work on a GPU without the host in between: what is timed is captured as a CUDA graph once
// and launched again for each sample, between two events of the device.
#pragma once
#include "backend/cuda/driver.h"
#include "backend/measure_device.h"

namespace tessera {

class CudaGraphClock : public DeviceClock {
 public:
  explicit CudaGraphClock(std::shared_ptr<CudaContext> context);
  ~CudaGraphClock() override;
  CudaGraphClock(const CudaGraphClock&) = delete;
  CudaGraphClock& operator=(const CudaGraphClock&) = delete;

  // A stream of its own, which work is to be put on.
  CudaStream stream() const { return stream_; }
  // Runs the work once as it is (what runs for the first time may allocate), then captures it. What
  // is returned must not outlive the clock, nor what the work uses.
  std::function<double()> timed(const std::function<void(int repeat)>& work, int repeats) override;

 private:
  class Captured;
  std::shared_ptr<CudaContext> context_;
  CudaStream stream_ = nullptr;
  CudaHandle begin_ = nullptr, end_ = nullptr;
};

}  // namespace tessera
