#include "plan/layout.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "ir/block.h"

namespace tessera {

bool Layout::row_major() const {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != int(i)) return false;
  return panel == 0 && !view();
}

std::string Layout::str() const {
  if (row_major()) return "row-major";
  const auto list = [](const auto& numbers) { return "[" + joined(numbers) + "]"; };
  if (view()) return "view at " + std::to_string(offset) + " by " + list(strides);
  std::string out;
  if (!Layout{order}.row_major()) out = list(order);
  if (panel > 0)
    out += (out.empty() ? "" : " ") + std::string("panels of ") + std::to_string(panel);
  if (panel > 0 && group > 1) out += " by " + std::to_string(group);
  if (tile > 0) out += " in tiles of " + std::to_string(tile);
  return out;
}

void check_layout(const Layout& layout, size_t rank) {
  std::vector<int> sorted = layout.order;
  std::ranges::sort(sorted);
  bool good = layout.panel >= 0 && layout.group >= 1 && (layout.panel == 0 || rank >= 2) &&
              (layout.panel > 0 || (layout.group == 1 && layout.tile == 0)) && layout.tile >= 0 &&
              (sorted.empty() || sorted.size() == rank);
  for (size_t i = 0; i < sorted.size(); ++i) good = good && sorted[i] == int(i);
  if (layout.view()) {
    good = good && layout.strides.size() == rank && sorted.empty() && layout.panel == 0 &&
           layout.offset >= 0;
  }
  if (!good)
    bad_input("layout " + layout.str() + " does not fit " + std::to_string(rank) + " axes");
}

int64_t panel_columns(const Layout& layout, int64_t n) {
  if (layout.tile == 0) return round_up(n, layout.panel);
  return round_up(n, layout.tile) / layout.tile * round_up(layout.tile, layout.panel);
}

int64_t layout_elements(const Layout& layout, const std::vector<int64_t>& extents) {
  int64_t n = 1;
  if (layout.view()) {  // up to the last one
    n += layout.offset;
    for (size_t i = 0; i < extents.size(); ++i) n += (extents[i] - 1) * layout.strides[i];
    return n;
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    int64_t e = extents[layout.axis(i)];
    if (layout.panel > 0 && i + 1 == extents.size()) e = panel_columns(layout, e);
    if (layout.panel > 0 && i + 2 == extents.size()) e = round_up(e, layout.group);
    n *= e;
  }
  return n;
}

std::optional<SliceView> slice_view(const Graph& graph, TensorId t) {
  if (graph.producer(t).kind != OpKind::Slice) return std::nullopt;
  // From the slice at hand to the whole: `first` and `step` of each axis in elements of `at`.
  const size_t rank = graph.type(t).shape.size();
  std::vector<int64_t> first(rank, 0), step(rank, 1);
  TensorId at = t;
  for (; graph.producer(at).kind == OpKind::Slice; at = graph.producer(at).inputs[0]) {
    const auto& a = std::get<SliceAttrs>(graph.producer(at).attrs);
    for (size_t i = 0; i < rank; ++i) {
      first[i] = a.starts[i] + first[i] * a.steps[i];
      step[i] *= a.steps[i];
    }
  }
  SliceView view{at, {}};
  const std::vector<int64_t> whole = extents(graph.type(at).shape);
  view.layout.strides.resize(rank);
  for (int64_t below = 1, i = int64_t(rank); i-- > 0;) {
    const size_t axis = size_t(i);
    view.layout.strides[axis] = step[axis] * below;
    view.layout.offset += first[axis] * below;
    below *= whole[axis];
  }
  return view;
}

}  // namespace tessera
