#include "backend/cpu/runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the gaps between the kernels of a program and the calls of a hot loop.
constexpr std::chrono::microseconds kSpin{150};

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

KernelPool::KernelPool(int threads)
    : threads_(threads > 0 ? threads : default_threads()), parts_(static_cast<size_t>(threads_)) {}

KernelPool::~KernelPool() {
  stop_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

KernelPool& KernelPool::shared() {
  // Never destroyed: helpers may be asleep in it while the process exits.
  static KernelPool* pool = new KernelPool();
  return *pool;
}

void KernelPool::make_room() {
  const int cpu = sched_getcpu();
  if (cpu == caller_cpu_ || cpu < 0 || cpu >= CPU_SETSIZE || threads_ > CPU_COUNT(&allowed_))
    return;
  caller_cpu_ = cpu;
  cpu_set_t others = allowed_;
  CPU_CLR(static_cast<size_t>(cpu), &others);
  for (std::thread& helper : helpers_) {
    // Failure means only that they stay where they are.
    pthread_setaffinity_np(helper.native_handle(), sizeof others, &others);
  }
}

void KernelPool::start_helpers() {
  started_ = true;
  if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
  for (int worker = 1; worker < threads_; ++worker) {
    helpers_.emplace_back([this, worker] { work(worker); });
  }
}

void KernelPool::take_chunks(int worker) {
  for (int i = 0; i < threads_; ++i) {
    Part& part = parts_[static_cast<size_t>((worker + i) % threads_)];
    for (;;) {
      const long begin = part.next.fetch_add(chunk_, std::memory_order_relaxed);
      if (begin >= part.end) break;
      body_(context_, begin, std::min(begin + chunk_, part.end), worker);
    }
  }
}

void KernelPool::work(int worker) {
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    // Wait for an epoch not yet served: spin first, then sleep.
    const Clock::time_point spin_end = Clock::now() + kSpin;
    for (int i = 0; epoch_.load(std::memory_order_acquire) == seen; ++i) {
      relax();
      if (i % 64 == 63 && Clock::now() > spin_end) {
        sleepers_.fetch_add(1);
        epoch_.wait(seen);
        sleepers_.fetch_sub(1);
      }
    }
    seen = epoch_.load(std::memory_order_acquire);
    // Enter only while the gate is open; a job that has closed is over.
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while ((gate & kOpen) != 0 &&
           !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
    }
    if ((gate & kOpen) == 0) continue;
    take_chunks(worker);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

void KernelPool::parallel_for(long count, long chunk, Body body, void* context) {
  if (count <= 0) return;
  if (threads_ == 1 || count == 1 || !busy_.try_lock()) {
    body(context, 0, count, 0);
    return;
  }
  const std::lock_guard lock(busy_, std::adopt_lock);
  if (!started_) start_helpers();
  make_room();
  body_ = body;
  context_ = context;
  // A few chunks per thread even out unequal progress; neighbours stay on one thread.
  chunk_ = chunk > 0 ? chunk : std::max(1L, count / (threads_ * 8L));
  const long chunks = (count + chunk_ - 1) / chunk_;
  for (int w = 0; w < threads_; ++w) {
    Part& part = parts_[static_cast<size_t>(w)];
    part.next.store(std::min(count, chunks * w / threads_ * chunk_), std::memory_order_relaxed);
    part.end = std::min(count, chunks * (w + 1) / threads_ * chunk_);
  }
  gate_.store(kOpen, std::memory_order_release);
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) epoch_.notify_all();
  take_chunks(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  while (gate_.load(std::memory_order_acquire) != 0) relax();
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kHugePage : 64;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  const size_t size = rounded(bytes);
  data_ = std::aligned_alloc(huge ? kHugePage : 64, size);
  if (data_ == nullptr) {
    throw Error(ErrorKind::Io, "out of memory: a buffer of " + std::to_string(bytes) +
                                   " bytes cannot be allocated");
  }
  if (huge) madvise(data_, size, MADV_HUGEPAGE);
  std::memset(data_, 0, size);
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
