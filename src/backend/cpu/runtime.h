// What generated CPU kernels need at run time: a pool of threads with sub-microsecond fork and
// join, and buffers aligned to cache lines that ask for huge pages.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// Runs index ranges on the caller and `threads() - 1` helpers. Helpers spin for a while after
// their last job, then sleep. The caller takes part and never waits for a helper that has not
// begun, so a descheduled or (after fork) vanished helper costs parallelism, never progress.
class KernelPool {
 public:
  // Works on [begin, end); `worker` < threads() is distinct among concurrent calls of one job.
  using Body = void (*)(void* context, long begin, long end, int worker);

  // 0: default_threads() of base/thread_pool.h.
  explicit KernelPool(int threads = 0);
  KernelPool(const KernelPool&) = delete;
  KernelPool& operator=(const KernelPool&) = delete;
  ~KernelPool();

  int threads() const { return threads_; }
  // Covers [0, count) in chunks of at most `chunk` (0: chosen), each index exactly once. Each
  // worker begins with a part of its own, the same in every job of that size, so that what one call
  // left in a core's cache is there for the next; who is done early helps the others. When another
  // thread is using the pool, the caller does all of it alone, as worker 0 of its own job.
  void parallel_for(long count, long chunk, Body body, void* context);

  // The pool of the process, made at first use.
  static KernelPool& shared();

 private:
  void work(int worker);
  void take_chunks(int worker);
  void start_helpers();
  // Keeps helpers off the CPU that the caller is on: a busy scheduler would leave them there, one
  // waiting for the other, for many milliseconds.
  void make_room();

  // gate_: bit 31 = open for helpers, the rest counts the helpers inside.
  static constexpr uint32_t kOpen = 1u << 31;

  int threads_;
  bool started_ = false;
  int caller_cpu_ = -1;  // that helpers keep off
  cpu_set_t allowed_;    // CPUs of the process when the helpers started
  std::vector<std::thread> helpers_;
  std::mutex busy_;

  Body body_ = nullptr;
  void* context_ = nullptr;
  long chunk_ = 1;
  struct alignas(64) Part {
    std::atomic<long> next{0};
    long end = 0;
  };
  std::vector<Part> parts_;  // one per worker
  alignas(64) std::atomic<uint32_t> gate_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// Zeroed memory, aligned to 64 bytes (2 MiB and huge pages from 2 MiB on).
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tessera
