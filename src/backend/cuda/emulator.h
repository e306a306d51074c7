// Executes CUDA kernels on the host, to find what is wrong with them before a GPU meets them: a
// block's threads are fibers, memory is watched. A kernel is written with the device functions of
// device/device.cuh, whose host bodies call back here.
//
// Found: races in shared memory (by happens-before, with vector clocks: no lucky order hides one),
// reads of what nothing wrote or of copies that nobody waited for, accesses out of bounds or out of
// line, blocks that meet without an order between them (a fence, a ticket, another fence), tickets
// that are not back at zero, barriers that not all threads reach, warps whose lanes part ways at a
// collective operation.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/device/api.h"

namespace tessera {

struct EmulatedBuffer {
  void* data = nullptr;
  int64_t bytes = 0;
  bool writable = false;
  bool initialized = true;  // false: reading an element before it is written is a fault
  // Counters that blocks take tickets from (ts::take_ticket): zeros before the launch and after it,
  // since the next one counts on that.
  bool tickets = false;
};

struct EmulatedLaunch {
  std::array<int, 3> grid{1, 1, 1};
  int threads = 32;  // of a block, which is one-dimensional
  int64_t shared_bytes = 0;
  std::vector<EmulatedBuffer> buffers;  // all memory that the kernel may touch
  uint64_t seed = 0;                    // of the order in which threads run
  int grain = 2;                        // bytes of the smallest elements, 1 or 2
};

struct KernelFault {
  std::string what;
  int line = 0;  // of the kernel's source; 0: none
  int thread = -1;
  std::array<int, 3> block{};
  std::string str() const;
};

// Runs `kernel` once per thread of the grid, block after block in an order made of the seed; the
// first fault ends it.
std::optional<KernelFault> emulate(const EmulatedLaunch& launch,
                                   const std::function<void()>& kernel);

// For host.cuh: valid while a kernel is emulated on this operating-system thread.
const ts::host::Api* emulator_api();

}  // namespace tessera
