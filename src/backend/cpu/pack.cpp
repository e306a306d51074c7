#include "backend/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "backend/values.h"
#include "base/check.h"
#include "ir/block.h"

namespace tessera {
namespace {

constexpr int64_t kRowsAtATime = 32;  // of a panel that are copied at a time

// Row-major strides of the array, by axis of the layout, outermost first.
struct Axes {
  std::vector<int64_t> extents, strides;
};
Axes axes_of(const PackJob& job) {
  const size_t rank = job.extents.size();
  const std::vector<int64_t> strides = contiguous_strides(job.extents);
  Axes a;
  for (size_t i = 0; i < rank; ++i) {
    const size_t axis = job.layout.axis(i);
    a.extents.push_back(job.extents[axis]);
    a.strides.push_back(strides[axis]);
  }
  return a;
}

// Offset in the array of matrix (or row) number `index` of the axes before the last `inner`.
int64_t offset_of(const Axes& a, size_t inner, int64_t index) {
  int64_t at = 0;
  for (size_t i = a.extents.size() - inner; i-- > 0;) {
    at += index % a.extents[i] * a.strides[i];
    index /= a.extents[i];
  }
  return at;
}

template <class T>
void pack(const PackJob& job, const Axes& a, const T* from, T* to, int64_t begin, int64_t end) {
  const size_t rank = a.extents.size();
  if (job.layout.panel == 0) {  // a unit is one row
    const int64_t n = rank == 0 ? 1 : a.extents[rank - 1],
                  step = rank == 0 ? 1 : a.strides[rank - 1];
    for (int64_t unit = begin; unit < end; ++unit) {
      const T* x = from + offset_of(a, 1, unit);
      T* y = to + unit * n;
      for (int64_t i = 0; i < n; ++i) y[i] = x[i * step];
    }
    return;
  }
  const int64_t p = job.layout.panel, g = job.layout.group;
  const int64_t depth = a.extents[rank - 2], width = a.extents[rank - 1];
  const int64_t sk = a.strides[rank - 2], sn = a.strides[rank - 1];
  const int64_t panels = panel_columns(job.layout, width) / p, full = ceil_div(depth, g) * g;
  const int64_t tile = job.layout.tile > 0 ? job.layout.tile : width, of_tile = ceil_div(tile, p);
  for (int64_t unit = begin; unit < end; ++unit) {  // one panel
    const int64_t matrix = unit / panels, panel = unit % panels, in_tile = panel % of_tile * p;
    const int64_t n0 = panel / of_tile * tile + in_tile;
    const int64_t w = std::max<int64_t>(0, std::min({p, tile - in_tile, width - n0}));
    const T* x = from + offset_of(a, 2, matrix) + n0 * sn;
    T* y = to + unit * full * p;
    if (g > 1 || w < p) std::memset(y, 0, size_t(full * p) * sizeof(T));
    if (sn == 1 && g == 1) {
      for (int64_t k = 0; k < depth; ++k) std::memcpy(y + k * p, x + k * sk, size_t(w) * sizeof(T));
      continue;
    }
    for (int64_t k0 = 0; k0 < depth; k0 += kRowsAtATime) {
      const int64_t k1 = std::min(depth, k0 + kRowsAtATime);
      for (int64_t j = 0; j < w; ++j)
        for (int64_t k = k0; k < k1; ++k) y[k / g * g * p + j * g + k % g] = x[k * sk + j * sn];
    }
  }
}

}  // namespace

int64_t PackJob::units() const {
  const Axes a = axes_of(*this);
  const size_t rank = a.extents.size(), inner = layout.panel > 0 ? 2 : std::min<size_t>(rank, 1);
  int64_t n = layout.panel > 0 ? panel_columns(layout, a.extents[rank - 1]) / layout.panel : 1;
  for (size_t i = 0; i + inner < rank; ++i) n *= a.extents[i];
  return n;
}

void PackJob::run(const void* from, void* to, int64_t begin, int64_t end) const {
  const Axes a = axes_of(*this);
  const auto as = [&](auto zero) {
    using T = decltype(zero);
    pack(*this, a, static_cast<const T*>(from), static_cast<T*>(to), begin, end);
  };
  switch (element_bytes) {
  case 1: return as(uint8_t{});
  case 2: return as(uint16_t{});
  case 4: return as(uint32_t{});
  case 8: return as(uint64_t{});
  default: unreachable("element size");
  }
}

}  // namespace tessera
