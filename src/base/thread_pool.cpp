#include "base/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/interruption.h"

namespace tessera {
namespace {
// Set while a thread runs a piece of a loop: nested loops then stay on that thread.
thread_local bool inside_loop = false;
}  // namespace

int default_threads() {
  if (const char* text = std::getenv("TESSERA_THREADS"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (*end != '\0' || n < 1 || n > 1024) {
      throw Error(ErrorKind::Usage, std::string("TESSERA_THREADS is '") + text +
                                        "'; it must be a whole number from 1 to 1024");
    }
    return int(n);
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? int(n) : 1;
}

struct ThreadPool::Job {
  int64_t n, grain;
  const std::function<void(int64_t, int64_t)>* fn;
  const Interruptible* scope;  // of who called
  std::atomic<int64_t> next{0};
  std::mutex failure_mutex;
  int64_t failed_at = INT64_MAX;
  std::exception_ptr failure;
};

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = default_threads();
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
  } catch (const std::exception&) {  // no memory or threads left: with fewer
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(Job& job) {
  inside_loop = true;
  const Interruptible within(job.scope);
  for (;;) {
    int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.n) break;
    try {
      interruption_point();
      (*job.fn)(begin, std::min(job.n, begin + job.grain));
    } catch (...) {
      std::lock_guard lock(job.failure_mutex);
      if (begin < job.failed_at) {
        job.failed_at = begin;
        job.failure = std::current_exception();
      }
    }
  }
  inside_loop = false;
}

void ThreadPool::worker() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    Job* job = job_;
    if (job == nullptr) continue;
    ++active_;
    lock.unlock();
    run(*job);
    lock.lock();
    if (--active_ == 0) done_.notify_all();
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& fn) {
  CHECK(grain > 0) << "grain " << grain;
  if (n <= 0) return;
  if (workers_.empty() || inside_loop || n <= grain) {
    for (int64_t begin = 0; begin < n; begin += grain) {
      interruption_point();
      fn(begin, std::min(n, begin + grain));
    }
    return;
  }
  std::lock_guard one_caller(callers_);
  Job job{n, grain, &fn, Interruptible::current(), {}, {}, INT64_MAX, {}};
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    ++generation_;
  }
  wake_.notify_all();
  run(job);
  {
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // workers that wake only now find nothing to do
    done_.wait(lock, [&] { return active_ == 0; });
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace tessera
