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
  ~KernelPool();

  int threads() const { return threads_; }
  // Covers [0, count) in chunks of at most `chunk` (0: chosen), each index exactly once. Each
  // worker begins with a part of its own, the same in every job of that size, so that what one call
  // left in a core's cache is there for the next; who is done early helps the others. When another
  // thread is using the pool, the caller does all of it alone, as worker 0 of its own job.
  void parallel_for(long count, long chunk, Body body, void* context);
  template <class F> void parallel_for(long count, long chunk, F body) {
    const Body call = [](void* f, long begin, long end, int worker) {
      (*static_cast<F*>(f))(begin, end, worker);
    };
    parallel_for(count, chunk, call, &body);
  }

  // The process's pool of so many threads (0: default_threads()), made at first use and never
  // destroyed: code may outlive whoever had it compiled.
  static KernelPool& shared(int threads = 0);

 private:
  struct alignas(64) Part {  // of a job: what one worker begins with, and others take from
    std::atomic<long> next{0};
    long end = 0;
  };
  struct Job {
    Body body;
    void* context;
    long chunk;
  };
  // What passes between the caller and one helper: one cache line, so that a job that is over in a
  // microsecond is not spent on waiting for lines. Free → Posted (caller) → Taken (helper) → Free
  // (helper), or Posted → Free (caller, where the helper did not come).
  struct alignas(64) Post {
    static constexpr uint32_t kFree = 0, kPosted = 1, kTaken = 2, kStop = 3;
    std::atomic<uint32_t> state{kFree};
    std::atomic<uint32_t> asleep{0};  // the helper is, or is about to be
    Job job{};
    bool alone = false;  // the helper works on [begin, end), and nobody else does
    long begin = 0, end = 0;
  };

  void work(int worker);
  void take_chunks(const Job& job, int worker);
  void start_helpers();
  // The caller's posts to helpers 1 … `helpers`, and what it does when its own part is done: it
  // takes back what was not begun, and waits for the rest.
  void post(const Job& job, int helpers, bool alone);
  void finish(int helpers);
  // Keeps helpers off the CPU that the caller is on: a busy scheduler would leave them there, one
  // waiting for the other, for many milliseconds.
  void make_room();

  int threads_;
  bool started_ = false;
  int caller_cpu_ = -1;  // that helpers keep off
  cpu_set_t allowed_;    // CPUs of the process when the helpers started
  std::vector<std::thread> helpers_;
  std::mutex busy_;
  std::vector<Part> parts_;  // one per worker
  std::vector<Post> posts_;  // one per worker; that of the caller is not used
};

// Zeroed memory, aligned to 64 bytes (2 MiB and huge pages from 2 MiB on).
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zeros; with a pool all threads write them: memory that is new to the process is slow to touch.
  explicit AlignedBuffer(size_t bytes, KernelPool* pool = nullptr);
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
