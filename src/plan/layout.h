// How a tensor's elements are laid out in memory: the order of its axes and, for what a register
// tile reads, panels of the innermost one; or as a view into another tensor's memory. A layout
// changes speed, never the meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// Axes from the outermost to the innermost; with (k, n) the innermost two,
//   panel == 0: row-major in that order;
//   panel == p: n is cut into panels of p, each with all k: element (k, n) of a K×N matrix is at
//               (n / p)·K·p + k·p + n % p, the last panel filled up with zeros;
//   group == g (panels only): g neighbours along k lie side by side, as dot products of 16-bit
//               floats read them: element (k, n) is at (n / p)·K'·p + (k / g)·g·p + (n % p)·g +
//               k % g, where K' is K rounded up to g;
//   tile == t (panels only): n is first cut into tiles of t, the last one filled up, and each tile
//               into panels of its own. So blocks whose parts begin between panels have theirs.
struct Layout {
  std::vector<int> order;  // empty: axes as they come
  int64_t panel = 0;
  int64_t group = 1;
  int64_t tile = 0;  // 0: one tile of all columns
  // Not empty: a view. The elements lie in another array, the one at `index` at
  // offset + Σ index[i]·strides[i]; nothing else of the above applies.
  std::vector<int64_t> strides = {};
  int64_t offset = 0;

  size_t axis(size_t i) const { return order.empty() ? i : size_t(order[i]); }
  bool view() const { return !strides.empty(); }
  // The layout of arrays outside: nothing to do.
  bool row_major() const;
  // "row-major", "[1,0]", "panels of 48", "[0,2,1] panels of 32 by 2",
  // "panels of 64 in tiles of 250", "view at 129 by [128,1]".
  std::string str() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Throws Error(BadInput) unless `layout` fits a tensor of that rank.
void check_layout(const Layout& layout, size_t rank);

// Columns that n columns take in panels, filling included.
int64_t panel_columns(const Layout& layout, int64_t n);
// Elements that the tensor takes, filling included.
int64_t layout_elements(const Layout& layout, const std::vector<int64_t>& extents);

// A slice seen where it lies: as a part of the row-major tensor `whole`.
struct SliceView {
  TensorId whole;
  Layout layout;
};
// Of a tensor made by one or several slices; nullopt of any other.
std::optional<SliceView> slice_view(const Graph& graph, TensorId t);

}  // namespace tessera
