#include "backend/cpu/buffer_list.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

namespace tessera {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

// In the cache line before a buffer.
struct Head {
  size_t capacity;
};

Head* head_of(const void* buffer) {
  return reinterpret_cast<Head*>(const_cast<char*>(static_cast<const char*>(buffer)) - kLine);
}

// Eight sizes per power of two: at most an eighth is left unused.
size_t size_class(size_t bytes) {
  const size_t least = std::max<size_t>(bytes, 8 * kLine);
  const size_t step = std::bit_floor(least) / 8;
  return (least + step - 1) / step * step;
}

void* allocate(size_t capacity) {
  const bool huge = capacity >= kHugePage;
  const size_t unit = huge ? kHugePage : kLine;
  const size_t size = (capacity + kLine + unit - 1) / unit * unit;
  void* memory = std::aligned_alloc(unit, size);
  if (memory == nullptr) return nullptr;
  if (huge) madvise(memory, size, MADV_HUGEPAGE);
  char* buffer = static_cast<char*>(memory) + kLine;
  head_of(buffer)->capacity = capacity;
  return buffer;
}

void release(void* buffer) { std::free(head_of(buffer)); }

}  // namespace

BufferList::~BufferList() {
  for (void* buffer : kept_) release(buffer);
}

BufferList& BufferList::shared() {
  static BufferList* list = new BufferList();
  return *list;
}

size_t BufferList::capacity(const void* buffer) { return head_of(buffer)->capacity; }

size_t BufferList::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

void* BufferList::take(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) return nullptr;
  const size_t wanted = size_class(bytes);
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = kept_.size(); i-- > 0;) {
      void* buffer = kept_[i];
      if (capacity(buffer) != wanted) continue;
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      kept_bytes_ -= wanted;
      return buffer;
    }
  }
  return allocate(wanted);
}

void BufferList::give_back(void* buffer) {
  if (buffer == nullptr) return;
  const size_t bytes = capacity(buffer);
  if (bytes > kMostBytes) {
    release(buffer);
    return;
  }
  void* too_many[kMostBuffers + 1];
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    kept_.push_back(buffer);
    kept_bytes_ += bytes;
    while (kept_.size() > kMostBuffers || kept_bytes_ > kMostBytes) {
      too_many[count++] = kept_.front();
      kept_bytes_ -= capacity(kept_.front());
      kept_.pop_front();
    }
  }
  for (size_t i = 0; i < count; ++i) release(too_many[i]);
}

}  // namespace tessera
