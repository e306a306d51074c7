// A fixed set of worker threads and a parallel loop over an index range. What is computed for an
// index never depends on which thread runs it, so results are the same for any number of threads.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/check.h"

namespace tessera {

// TESSERA_THREADS, else the processors this process may use; throws Error(Usage) on a bad value.
int default_threads();

class ThreadPool {
 public:
  // `threads` counts the caller; 0 means default_threads().
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();

  int threads() const { return int(workers_.size()) + 1; }

  // Calls fn(begin, end) on disjoint pieces of [0, n), each a multiple of `grain` long except the
  // last; returns when all are done. A call from inside a loop runs on the calling thread. The
  // exception of the lowest failing piece is rethrown.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn);

 private:
  struct Job;
  void worker();
  static void run(Job& job);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  uint64_t generation_ = 0;
  int active_ = 0;
  bool stop_ = false;
  std::mutex callers_;  // one loop at a time; other callers wait
};

// The loop on `pool`, or on the calling thread (without any allocation) when `pool` is null.
template <class F> void parallel_for(ThreadPool* pool, int64_t n, int64_t grain, const F& fn) {
  CHECK(grain > 0) << "grain " << grain;
  if (pool != nullptr) {
    pool->parallel_for(n, grain, fn);
    return;
  }
  for (int64_t begin = 0; begin < n; begin += grain)
    fn(begin, begin + grain < n ? begin + grain : n);
}

}  // namespace tessera
