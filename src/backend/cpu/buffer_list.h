// Memory of results: aligned to cache lines, and kept for the next result of about that size.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>

namespace tessera {

// Buffers that were given back serve the next request of the same size class, the youngest first:
// that one is still in a cache, and its pages are there. Safe to use from several threads.
class BufferList {
 public:
  static constexpr size_t kMostBytes = size_t{64} << 20;  // kept while nobody uses them
  static constexpr size_t kMostBuffers = 16;

  BufferList() = default;
  ~BufferList();

  // At least `bytes`, aligned to 64; null where there is no memory. What it holds is undefined.
  void* take(size_t bytes);
  // Of a list's own buffers; null is none.
  void give_back(void* buffer);
  // How much a buffer holds.
  static size_t capacity(const void* buffer);
  // Kept at the moment.
  size_t kept_bytes() const;

  // The one of the process; never destroyed, since arrays may outlive everything else.
  static BufferList& shared();

 private:
  mutable std::mutex mutex_;
  std::deque<void*> kept_;  // the youngest last
  size_t kept_bytes_ = 0;
};

}  // namespace tessera
