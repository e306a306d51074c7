#include "eval/movement.h"

namespace tessera {
namespace {

template <class T>
void copy_run(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1)
    std::memcpy(to, from, size_t(n) * sizeof(T));
  else
    for (int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
}

template <class T>
void copy_plane(const View& dst, const View& src, int plane, int64_t begin, int64_t end) {
  Walker<2> walk(dst, {&dst, &src}, begin);
  for (int64_t at = begin; at < end;) {
    const int64_t n = walk.run(end - at);
    copy_run(dst.as<T>(plane) + walk.offset(0), walk.step(0),
             src.as<const T>(plane) + walk.offset(1), walk.step(1), n);
    walk.advance(n);
    at += n;
  }
}

template <class T> void fill_plane(const View& dst, int plane) {
  Walker<1> walk(dst, {&dst});
  const int64_t total = dst.size();
  for (int64_t at = 0; at < total;) {
    const int64_t n = walk.run(total - at);
    T* to = dst.as<T>(plane) + walk.offset(0);
    for (int64_t i = 0; i < n; ++i) to[i * walk.step(0)] = T{};
    walk.advance(n);
    at += n;
  }
}

// Calls f(an element of a plane's width).
template <class F> void with_width(size_t width, F f) {
  struct Wide {
    uint64_t half[2] = {0, 0};
  };
  switch (width) {
  case 1: return f(uint8_t(0));
  case 4: return f(uint32_t(0));
  case 8: return f(uint64_t(0));
  case 16: return f(Wide{});
  default: unreachable("width of a plane");
  }
}

}  // namespace

void zero_plane(const View& dst, int plane, size_t word) {
  with_width(
      plane_width(dst, plane, word),
      [&](auto element) { fill_plane<decltype(element)>(dst, plane); });
}

void copy_view(const View& dst, const View& src, size_t word, ThreadPool* pool) {
  const int64_t total = dst.size();
  if (total == 0) return;
  for (int p = 0; p < kPlanes; ++p) {
    if (dst.plane[size_t(p)] == nullptr) continue;
    if (src.plane[size_t(p)] == nullptr) {
      CHECK(p >= kFlagPlane) << "value plane " << p << " is missing";
      zero_plane(dst, p, word);
      continue;
    }
    with_width(plane_width(dst, p, word), [&](auto element) {
      parallel_for(pool, total, int64_t(1) << 16, [&](int64_t begin, int64_t end) {
        copy_plane<decltype(element)>(dst, src, p, begin, end);
      });
    });
  }
}

bool reshape_view(View& v, int rank, const std::array<int64_t, kMaxRank>& extents) {
  // Walks groups of axes with equal products; inside a group the old axes must be one run.
  std::array<int64_t, kMaxRank> stride{};
  int old_axis = 0, new_axis = 0;
  while (old_axis < v.rank || new_axis < rank) {
    int old_end = old_axis, new_end = new_axis;
    int64_t old_product = 1, new_product = 1;
    do {
      if (old_product <= new_product && old_end < v.rank)
        old_product *= v.shape[size_t(old_end++)];
      else if (new_end < rank)
        new_product *= extents[size_t(new_end++)];
      else if (old_end < v.rank)
        old_product *= v.shape[size_t(old_end++)];
      else
        break;
    } while (old_product != new_product);
    if (old_product != new_product) return false;
    int64_t step = 1, inner_extent = 1;
    bool first = true;
    for (int i = old_end; i-- > old_axis;) {
      if (v.shape[size_t(i)] == 1) continue;
      if (first)
        step = v.stride[size_t(i)];
      else if (v.stride[size_t(i)] != step * inner_extent)
        return false;
      first = false;
      inner_extent *= v.shape[size_t(i)];
    }
    int64_t s = step;
    for (int i = new_end; i-- > new_axis;) {
      stride[size_t(i)] = s;
      s *= extents[size_t(i)];
    }
    old_axis = old_end;
    new_axis = new_end;
  }
  v.rank = rank;
  v.shape = extents;
  v.stride = stride;
  return true;
}

void zero_triangle(const View& v, int64_t k, bool keep_upper, size_t word) {
  const int64_t rows = v.shape[size_t(v.rank - 2)], columns = v.shape[size_t(v.rank - 1)];
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t diagonal = std::clamp(i + k + (keep_upper ? 0 : 1), int64_t(0), columns);
    std::array<int64_t, kMaxRank> begin{}, extents = v.shape;
    begin[size_t(v.rank - 2)] = i;
    extents[size_t(v.rank - 2)] = 1;
    begin[size_t(v.rank - 1)] = keep_upper ? 0 : diagonal;
    extents[size_t(v.rank - 1)] = keep_upper ? diagonal : columns - diagonal;
    const View row = subview(v, begin.data(), extents.data(), word);
    if (row.size() == 0) continue;
    for (int p = 0; p < kPlanes; ++p)
      if (row.plane[size_t(p)] != nullptr) zero_plane(row, p, word);
  }
}

}  // namespace tessera
