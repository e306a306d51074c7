#include "backend/cpu/runtime.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Helpers spin for as long as it takes to bridge the gaps between kernels of a program and the
// calls of a loop that does other things too: to wake a thread takes a virtual machine 50 µs and
// more. From kPolite on they give their processor to whoever wants it.
constexpr std::chrono::microseconds kPolite{100};
constexpr std::chrono::microseconds kSpin{1000};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kHugePage : 64;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

KernelPool::KernelPool(int threads)
    : threads_(threads > 0 ? threads : default_threads()), parts_(size_t(threads_)),
      posts_(size_t(threads_)) {}

KernelPool::~KernelPool() {
  for (size_t i = 1; i <= helpers_.size(); ++i) {
    posts_[i].state.store(Post::kStop);
    posts_[i].asleep.store(0);
    posts_[i].asleep.notify_one();
  }
  for (std::thread& helper : helpers_) helper.join();
}

KernelPool& KernelPool::shared(int threads) {
  // Never destroyed: helpers may be asleep in them while the process exits.
  static auto& pools = *new std::map<int, std::unique_ptr<KernelPool>>();
  static std::mutex& making = *new std::mutex();
  const std::lock_guard lock(making);
  std::unique_ptr<KernelPool>& pool = pools[threads > 0 ? threads : default_threads()];
  if (!pool) pool = std::make_unique<KernelPool>(threads);
  return *pool;
}

void KernelPool::make_room() {
  const int cpu = sched_getcpu();
  if (cpu == caller_cpu_ || cpu < 0 || cpu >= CPU_SETSIZE || threads_ > CPU_COUNT(&allowed_))
    return;
  caller_cpu_ = cpu;
  cpu_set_t others = allowed_;
  CPU_CLR(size_t(cpu), &others);
  for (std::thread& helper : helpers_) {
    // Failure means only that they stay where they are.
    pthread_setaffinity_np(helper.native_handle(), sizeof others, &others);
  }
}

void KernelPool::start_helpers() {
  started_ = true;
  if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
  try {
    for (int worker = 1; worker < threads_; ++worker)
      helpers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::exception&) {  // no memory or threads left: what they miss the caller does
  }
}

void KernelPool::take_chunks(const Job& job, int worker) {
  for (int i = 0; i < threads_; ++i) {
    Part& part = parts_[size_t((worker + i) % threads_)];
    for (;;) {
      const long begin = part.next.fetch_add(job.chunk, std::memory_order_relaxed);
      if (begin >= part.end) break;
      job.body(job.context, begin, std::min(begin + job.chunk, part.end), worker);
    }
  }
}

void KernelPool::work(int worker) {
  Post& post = posts_[size_t(worker)];
  for (;;) {
    Clock::time_point begin;
    for (int i = 0; post.state.load(std::memory_order_acquire) == Post::kFree; ++i) {
      relax();
      if (i % 64 != 63) continue;
      const Clock::time_point now = Clock::now();
      if (i == 63) begin = now;
      if (now - begin > kSpin) {
        // The caller posts and then looks at `asleep`; of both, one sees what the other said.
        post.asleep.store(1);
        if (post.state.load() == Post::kFree) post.asleep.wait(1);
        post.asleep.store(0);
        i = 0;
      } else if (now - begin > kPolite) {
        sched_yield();
      }
    }
    uint32_t state = Post::kPosted;
    if (!post.state.compare_exchange_strong(state, Post::kTaken, std::memory_order_acq_rel)) {
      if (state == Post::kStop) return;
      continue;  // taken back
    }
    if (post.alone)
      post.job.body(post.job.context, post.begin, post.end, worker);
    else
      take_chunks(post.job, worker);
    post.state.store(Post::kFree, std::memory_order_release);
  }
}

void KernelPool::post(const Job& job, int helpers, bool alone) {
  for (int w = 1; w <= helpers; ++w) {
    Post& post = posts_[size_t(w)];
    const Part& part = parts_[size_t(w)];
    post.job = job;
    post.alone = alone;
    post.begin = part.next.load(std::memory_order_relaxed);
    post.end = part.end;
    post.state.store(Post::kPosted);
  }
  for (int w = 1; w <= helpers; ++w) {
    Post& post = posts_[size_t(w)];
    // Once for each sleep: until it wakes there may be many jobs.
    if (post.asleep.load() != 0 && post.asleep.exchange(0) != 0) post.asleep.notify_one();
  }
}

void KernelPool::finish(int helpers) {
  for (int w = 1; w <= helpers; ++w) {
    Post& post = posts_[size_t(w)];
    uint32_t state = Post::kPosted;
    if (post.state.load(std::memory_order_relaxed) == Post::kPosted &&
        post.state.compare_exchange_strong(state, Post::kFree, std::memory_order_acq_rel)) {
      if (post.alone) post.job.body(post.job.context, post.begin, post.end, 0);
      continue;
    }
    while (post.state.load(std::memory_order_acquire) != Post::kFree) relax();
  }
}

void KernelPool::parallel_for(long count, long chunk, Body body, void* context) {
  if (count <= 0) return;
  // A few chunks per thread even out unequal progress; neighbours stay on one thread.
  if (chunk <= 0) chunk = std::max(1L, count / (threads_ * 8L));
  const long chunks = (count + chunk - 1) / chunk;
  if (threads_ == 1 || chunks == 1 || !busy_.try_lock()) {
    body(context, 0, count, 0);
    return;
  }
  const std::lock_guard lock(busy_, std::adopt_lock);
  if (!started_) start_helpers();
  make_room();
  const Job job{body, context, chunk};
  const int workers = int(std::min<long>(threads_, chunks));
  for (int w = 0; w < workers; ++w) {
    Part& part = parts_[size_t(w)];
    part.next.store(std::min(count, chunks * w / workers * chunk), std::memory_order_relaxed);
    part.end = std::min(count, chunks * (w + 1) / workers * chunk);
  }
  const bool alone = chunks <= threads_;
  post(job, workers - 1, alone);
  if (alone)
    body(context, 0, parts_[0].end, 0);
  else
    take_chunks(job, 0);
  finish(workers - 1);
}

AlignedBuffer::AlignedBuffer(size_t bytes, KernelPool* pool) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  const size_t size = rounded(bytes);
  data_ = std::aligned_alloc(huge ? kHugePage : 64, size);
  if (data_ == nullptr) {
    throw Error(ErrorKind::Io, "out of memory: a buffer of " + std::to_string(bytes) +
                                   " bytes cannot be allocated");
  }
  if (huge) madvise(data_, size, MADV_HUGEPAGE);
  if (pool == nullptr || !huge) {
    std::memset(data_, 0, size);
    return;
  }
  pool->parallel_for(long(size / kHugePage), 1, [&](long begin, long end, int) {
    std::memset(static_cast<char*>(data_) + size_t(begin) * kHugePage, 0,
                size_t(end - begin) * kHugePage);
  });
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

}  // namespace tessera
