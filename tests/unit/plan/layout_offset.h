// Where an element of a tensor lies, as plan/layout.h words it, and of a tile in shared memory.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/shared_layout.h"

namespace tessera {

inline int64_t layout_offset(const Layout& layout, const std::vector<int64_t>& extents,
                             const std::vector<int64_t>& index) {
  const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const auto axis = [](const Layout& l, size_t i) {
    return l.order.empty() ? i : static_cast<size_t>(l.order[i]);
  };
  const size_t rank = extents.size();
  if (layout.view()) {
    int64_t at = layout.offset;
    for (size_t i = 0; i < rank; ++i) at += index[i] * layout.strides[i];
    return at;
  }
  const size_t plain = layout.panel > 0 ? rank - 2 : rank;  // axes that are just strides
  int64_t at = 0;
  for (size_t i = 0; i < plain; ++i) at = at * extents[axis(layout, i)] + index[axis(layout, i)];
  if (layout.panel == 0) return at;
  const int64_t p = layout.panel, g = layout.group;
  const int64_t k = index[axis(layout, rank - 2)];
  int64_t n = index[axis(layout, rank - 1)];
  if (layout.tile > 0) n = n / layout.tile * up(layout.tile, p) + n % layout.tile;
  const int64_t depth = up(extents[axis(layout, rank - 2)], g);
  const int64_t width = panel_columns(layout, extents[axis(layout, rank - 1)]);
  return at * depth * width + n / p * depth * p + k / g * g * p + n % p * g + k % g;
}

// Where the element at `index` is, in bytes from the tile's beginning.
inline int64_t shared_offset(const SharedLayout& l, const std::vector<int64_t>& extents,
                             int element_bytes, const std::vector<int64_t>& index) {
  const std::vector<int64_t> strides = shared_strides(l, extents, element_bytes);
  int64_t at = 0;
  for (size_t a = 0; a < index.size(); ++a) at += index[a] * strides[a];
  return swizzled(l, at);
}

}  // namespace tessera
