// Views of tensors while a graph is evaluated: shape, strides and one pointer per plane. Planes
// hold what a domain keeps of an element; views share storage, which arenas own.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "eval/field_array.h"
#include "ir/types.h"

namespace tessera {

inline constexpr int kPlanes = 5;
// Planes 0–2: the value (components p, q, r; value and magnitude; int64 for integers and bools).
inline constexpr int kFlagPlane = 3;  // FieldArray::Flag, u8; null when every element is defined
inline constexpr int kSetPlane =
    4;  // u64: hash of the arguments of a maximum; null when there are none

struct View {
  DType dtype = DType::F32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{}, stride{};  // strides in elements, the same for all planes
  std::array<void*, kPlanes> plane{};

  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[size_t(i)];
    return n;
  }
  template <class T> T* as(int p) const { return static_cast<T*>(plane[size_t(p)]); }
  bool flagged() const { return plane[kFlagPlane] != nullptr; }
  void set_shape(const std::vector<int64_t>& extents) {
    rank = int(extents.size());
    std::ranges::copy(extents, shape.begin());
  }
  void set_contiguous_strides() {
    int64_t step = 1;
    for (int i = rank; i-- > 0;) {
      stride[size_t(i)] = step;
      step *= shape[size_t(i)];
    }
  }
  bool contiguous() const {
    int64_t step = 1;
    for (int i = rank; i-- > 0;) {
      if (shape[size_t(i)] != 1 && stride[size_t(i)] != step) return false;
      step *= shape[size_t(i)];
    }
    return true;
  }
  void insert_axis(int axis, int64_t extent, int64_t step) {
    CHECK(rank < kMaxRank) << "rank " << rank + 1;
    for (int i = rank; i > axis; --i) {
      shape[size_t(i)] = shape[size_t(i - 1)];
      stride[size_t(i)] = stride[size_t(i - 1)];
    }
    shape[size_t(axis)] = extent;
    stride[size_t(axis)] = step;
    ++rank;
  }
  void erase_axis(int axis) {
    for (int i = axis; i + 1 < rank; ++i) {
      shape[size_t(i)] = shape[size_t(i + 1)];
      stride[size_t(i)] = stride[size_t(i + 1)];
    }
    --rank;
  }
};

// Bytes of an element in a plane, by domain: `word` for value planes of floats.
inline size_t plane_width(const View& v, int plane, size_t word) {
  if (plane == kFlagPlane) return 1;
  if (plane == kSetPlane || !is_float(v.dtype)) return 8;
  return word;
}

// Moves a view's origin by `elements` in all planes.
inline void advance(View& v, int64_t elements, size_t word) {
  for (int p = 0; p < kPlanes; ++p) {
    if (v.plane[size_t(p)] == nullptr) continue;
    v.plane[size_t(p)] =
        static_cast<std::byte*>(v.plane[size_t(p)]) + elements * int64_t(plane_width(v, p, word));
  }
}

// The part of a view that starts at `begin` and has `extents`.
inline View subview(View v, const int64_t* begin, const int64_t* extents, size_t word) {
  int64_t offset = 0;
  for (int i = 0; i < v.rank; ++i) {
    offset += begin[i] * v.stride[size_t(i)];
    v.shape[size_t(i)] = extents[i];
  }
  if (v.size() != 0) advance(v, offset, word);
  return v;
}

// A view stretched to `extents` (NumPy broadcasting: leading axes added, extents of 1 repeated).
inline View stretched(const View& v, int rank, const std::array<int64_t, kMaxRank>& extents) {
  View r = v;
  r.rank = rank;
  for (int i = 0; i < rank; ++i) {
    int from = i - (rank - v.rank);
    bool repeat = from < 0 || (v.shape[size_t(from)] == 1 && extents[size_t(i)] != 1);
    CHECK(repeat || v.shape[size_t(from)] == extents[size_t(i)])
        << "extent " << v.shape[size_t(from)] << " does not broadcast to " << extents[size_t(i)];
    r.shape[size_t(i)] = extents[size_t(i)];
    r.stride[size_t(i)] = repeat ? 0 : v.stride[size_t(from)];
  }
  return r;
}

// Extents as views keep them.
inline std::array<int64_t, kMaxRank> to_array(const std::vector<int64_t>& v) {
  std::array<int64_t, kMaxRank> a{};
  std::ranges::copy(v, a.begin());
  return a;
}

// NumPy broadcasting of the extents at hand (which may be clipped).
inline std::array<int64_t, kMaxRank> broadcast_extents(const View* in, int count, int rank) {
  std::array<int64_t, kMaxRank> shape{};
  std::fill(shape.begin(), shape.begin() + rank, 1);
  for (int k = 0; k < count; ++k) {
    for (int i = 1; i <= in[k].rank; ++i) {
      int64_t& extent = shape[size_t(rank - i)];
      if (extent == 1) extent = in[k].shape[size_t(in[k].rank - i)];
    }
  }
  return shape;
}

// Reads the elements of views of one shape in row-major order, in runs. Axes that can be walked as
// one for all views are merged, so a contiguous tensor is a single run.
template <int N> class Walker {
 public:
  Walker(const View& shape_of, const std::array<const View*, N>& views, int64_t start = 0) {
    for (int i = 0; i < shape_of.rank; ++i) {
      const int64_t extent = shape_of.shape[size_t(i)];
      if (extent == 1) continue;
      bool merge = rank_ > 0;
      for (int n = 0; n < N && merge; ++n)
        merge = step_[size_t(rank_ - 1)][size_t(n)] == views[size_t(n)]->stride[size_t(i)] * extent;
      if (!merge) {
        extent_[size_t(rank_)] = 1;
        ++rank_;
      }
      extent_[size_t(rank_ - 1)] *= extent;
      for (int n = 0; n < N; ++n)
        step_[size_t(rank_ - 1)][size_t(n)] = views[size_t(n)]->stride[size_t(i)];
    }
    if (rank_ == 0) {
      extent_[0] = 1;
      step_[0].fill(0);
      rank_ = 1;
    }
    for (int i = rank_; i-- > 0;) {
      if (extent_[size_t(i)] == 0) continue;  // no elements: nothing will be read
      index_[size_t(i)] = start % extent_[size_t(i)];
      start /= extent_[size_t(i)];
      for (int n = 0; n < N; ++n)
        offset_[size_t(n)] += index_[size_t(i)] * step_[size_t(i)][size_t(n)];
    }
  }
  // The next run: at most `limit` elements, at offset(n) with distance step(n).
  int64_t run(int64_t limit) const {
    return std::min(limit, extent_[size_t(rank_ - 1)] - index_[size_t(rank_ - 1)]);
  }
  int64_t offset(int n) const { return offset_[size_t(n)]; }
  int64_t step(int n) const { return step_[size_t(rank_ - 1)][size_t(n)]; }
  void advance(int64_t count) {
    int i = rank_ - 1;
    index_[size_t(i)] += count;
    for (int n = 0; n < N; ++n) offset_[size_t(n)] += count * step_[size_t(i)][size_t(n)];
    while (i > 0 && index_[size_t(i)] == extent_[size_t(i)]) {
      for (int n = 0; n < N; ++n) {
        offset_[size_t(n)] +=
            step_[size_t(i - 1)][size_t(n)] - extent_[size_t(i)] * step_[size_t(i)][size_t(n)];
      }
      index_[size_t(i)] = 0;
      ++index_[size_t(--i)];
    }
  }

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> extent_{}, index_{};
  std::array<std::array<int64_t, N>, kMaxRank> step_{};
  std::array<int64_t, N> offset_{};
};

// Memory of temporaries: bump allocation with mark and release, nothing is cleared. First chunks
// are handed on between the arenas of a thread: small programs are evaluated thousands of times.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&& other) noexcept {
    give_back();
    chunks_ = std::move(other.chunks_);
    chunk_ = other.chunk_;
    used_ = other.used_;
    return *this;
  }
  ~Arena() { give_back(); }

  void* allocate(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    while (chunk_ < chunks_.size()) {
      if (used_ + bytes <= chunks_[chunk_].bytes()) {
        void* p = chunks_[chunk_].as<std::byte>() + used_;
        used_ += bytes;
        return p;
      }
      ++chunk_;
      used_ = 0;
    }
    if (chunks_.empty() && bytes <= kFirst && !spare().empty()) {
      chunks_.push_back(std::move(spare().back()));
      spare().pop_back();
    } else {
      chunks_.emplace_back(std::max(bytes, chunks_.empty() ? kFirst : kChunk));
    }
    used_ = bytes;
    return chunks_.back().as<std::byte>();
  }
  struct Mark {
    size_t chunk = 0, used = 0;
  };
  Mark mark() const { return {chunk_, used_}; }
  void release(Mark m) {
    chunk_ = m.chunk;
    used_ = m.used;
  }

 private:
  static constexpr size_t kFirst = size_t(64) << 10, kChunk = size_t(1) << 20;
  static constexpr size_t kMaxSpare = 64;  // 4 MiB a thread
  static std::vector<Buffer>& spare() {
    static thread_local std::vector<Buffer> chunks;
    return chunks;
  }
  void give_back() {
    if (!chunks_.empty() && chunks_[0].bytes() == kFirst && spare().size() < kMaxSpare)
      spare().push_back(std::move(chunks_[0]));
    chunks_.clear();
  }
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0, used_ = 0;
};

}  // namespace tessera
