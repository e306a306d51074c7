// Smaller programs from the classes of axes that verify/symmetry.cpp finds.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "verify/symmetry.h"
#include "verify/work.h"

namespace tessera {

double evaluation_cost(const Graph& g) {
  double cost = count_work(g);
  for (TensorId t : g.inputs()) cost += 8 * double(num_elements(g.type(t).shape));
  return cost;
}

NDArray select(const NDArray& a, const KeptPositions& positions) {
  NDArray r;
  r.dtype = a.dtype;
  std::vector<std::vector<int64_t>> offsets;  // by axis, in elements
  int64_t stride = 1, count = 1;
  for (size_t d = a.shape.size(); d-- > 0;) {
    std::vector<int64_t> list;
    if (positions[d])
      for (int64_t i : *positions[d]) list.push_back(i * stride);
    else
      for (int64_t i = 0; i < a.shape[d]; i++) list.push_back(i * stride);
    r.shape.insert(r.shape.begin(), int64_t(list.size()));
    count *= int64_t(list.size());
    offsets.insert(offsets.begin(), std::move(list));
    stride *= a.shape[d];
  }
  std::vector<size_t> at(offsets.size(), 0);
  for (int64_t n = 0; n < count; n++) {
    int64_t from = 0;
    for (size_t d = 0; d < offsets.size(); d++) from += offsets[d][at[d]];
    if (is_float(a.dtype))
      r.reals.push_back(a.reals[size_t(from)]);
    else
      r.ints.push_back(a.ints[size_t(from)]);
    for (size_t d = offsets.size(); d-- > 0;) {
      if (++at[d] < offsets[d].size()) break;
      at[d] = 0;
    }
  }
  return r;
}

std::optional<KeptTiles> Symmetry::choose(double budget, int64_t least, Rng rng) const {
  std::vector<int64_t> keep, fewest;
  for (const AxisClass& c : classes_) {
    keep.push_back(c.tiles);
    fewest.push_back(std::min(c.tiles, std::max(least, c.most_axes)));
  }
  auto tiles_of = [&] {  // any so many: the cost does not depend on which
    KeptTiles kept;
    for (int64_t n : keep) {
      kept.emplace_back(size_t(n));
      std::iota(kept.back().begin(), kept.back().end(), 0);
    }
    return kept;
  };
  auto cost = [&] {
    const KeptTiles kept = tiles_of();
    double most = 0;
    for (size_t i = 0; i < scopes_.size(); i++) {
      const auto g = restrict(i, kept);
      most = std::max(most, evaluation_cost(g ? *g : *scopes_[i].graph));
    }
    return most;
  };
  double now = cost();
  bool restricted = false;
  while (now > budget) {
    // The class that can lose most by a factor; one that costs nothing to keep is kept.
    int best = -1;
    double ratio = 1;
    for (size_t c = 0; c < keep.size(); c++)
      if (const double r = double(keep[c]) / double(fewest[c]); r > ratio) best = int(c), ratio = r;
    if (best < 0) break;
    const int64_t before = keep[size_t(best)];
    keep[size_t(best)] = std::max(fewest[size_t(best)], before / 2);
    const double after = cost();
    if (after >= now) {
      fewest[size_t(best)] = keep[size_t(best)] = before;
      continue;
    }
    now = after;
    restricted = true;
  }
  if (!restricted) return std::nullopt;
  KeptTiles kept = tiles_of();
  for (size_t c = 0; c < keep.size(); c++) {
    const int64_t n = classes_[c].tiles;
    if (keep[c] == n) continue;
    std::vector<int64_t>& tiles = kept[c];
    std::vector<bool> chosen(size_t(n), false);
    auto add = [&](int64_t t) {
      if (!chosen[size_t(t)]) tiles.push_back(t);
      chosen[size_t(t)] = true;
    };
    tiles.clear();
    add(0);
    if (keep[c] > 1) add(n - 1);
    while (int64_t(tiles.size()) < keep[c]) add(rng.between(0, n - 1));
    std::ranges::sort(tiles);
  }
  return kept;
}

std::optional<KeptTiles> Symmetry::first(const std::vector<int64_t>& numbers) const {
  if (numbers.size() != classes_.size()) return std::nullopt;
  KeptTiles kept;
  for (size_t c = 0; c < numbers.size(); c++) {
    if (numbers[c] < 1 || numbers[c] > classes_[c].tiles) return std::nullopt;
    kept.emplace_back(size_t(numbers[c]));
    std::iota(kept.back().begin(), kept.back().end(), 0);
  }
  return kept;
}

// The extent of an axis when some tiles are kept.
int64_t Symmetry::kept_extent(int node, int64_t extent, const KeptTiles& kept) const {
  for (const std::vector<int>& level : levels_)
    if (const int c = level[size_t(node)]; c >= 0)
      extent = extent / classes_[size_t(c)].tiles * int64_t(kept[size_t(c)].size());
  return extent;
}

// Where elements of an axis come from, tile by tile of every level: `to` says for the tiles wanted
// of a class which ones they are, in an axis whose classes have `tiles` of them.
std::vector<int64_t> Symmetry::positions(int node, int64_t extent, const KeptTiles& to,
                                         const KeptTiles* kept) const {
  // Extent of what one position of a level stands for, in the axis that positions point into.
  int64_t whole = kept ? kept_extent(node, extent, *kept) : extent;
  std::vector<int64_t> result = {0};
  for (const std::vector<int>& level : levels_) {
    const int c = level[size_t(node)];
    if (c < 0) continue;
    const int64_t tiles = kept ? int64_t((*kept)[size_t(c)].size()) : classes_[size_t(c)].tiles;
    whole /= tiles;
    std::vector<int64_t> finer;
    for (int64_t base : result)
      for (int64_t tile : to[size_t(c)]) finer.push_back(base + tile * whole);
    result = std::move(finer);
  }
  std::vector<int64_t> elements;
  for (int64_t base : result)
    for (int64_t i = 0; i < whole; i++) elements.push_back(base + i);
  return elements;
}

std::vector<int64_t> numbers_of(const KeptTiles& kept) {
  return mapped(
      kept, [&](const auto& tiles) { return int64_t(tiles.size()); });
}

bool Symmetry::are_enough(const std::vector<int64_t>& numbers) const {
  for (size_t k = 0; k < numbers.size(); k++)
    if (numbers[k] < std::min(classes_[k].tiles, classes_[k].most_axes)) return false;
  return true;
}

std::optional<std::pair<Graph, Graph>> Symmetry::restrict_both(const KeptTiles& kept) const {
  auto a = restrict(0, kept), b = restrict(1, kept);
  if (!a || !b) return std::nullopt;
  return std::pair(std::move(*a), std::move(*b));
}

std::optional<Graph> Symmetry::restrict(size_t index, const KeptTiles& kept) const {
  CHECK(kept.size() == classes_.size()) << "tiles of other classes";
  auto extent = [&](int node, int64_t full) { return kept_extent(node, full, kept); };
  bool fits = true;
  auto copy = [&](auto&& self, const Scope& s) -> Graph {
    const Graph& g = *s.graph;
    auto type_of = [&](TensorId t) {
      Type type = g.type(t);
      for (size_t d = 0; d < type.shape.size(); d++)
        type.shape[d] = Dim(extent(s.first[t.index] + int(d), type.shape[d].extent));
      return type;
    };
    Graph out(g.name(), g.level());
    if (g.level() == Level::Block) {
      std::vector<int64_t> grid;
      for (size_t i = 0; i < g.grid().size(); i++) grid.push_back(extent(s.grid[i], g.grid()[i]));
      std::vector<int64_t> loops;
      for (size_t i = 0; i < g.loops().size(); i++)
        loops.push_back(extent(s.loops[i], g.loops()[i]));
      out = Graph::block(grid, loops);
      out.set_name(g.name());
    }
    for (const Op& op : g.ops()) {
      std::vector<std::string> names;
      for (uint32_t r = 0; r < op.num_results; r++) names.push_back(g.tensor(op.result(r)).name);
      Attrs attrs = op.attrs;
      if (auto* a = std::get_if<ConstAttrs>(&attrs)) a->type = type_of(op.result());
      if (auto* a = std::get_if<IotaAttrs>(&attrs)) a->type = type_of(op.result());
      if (auto* a = std::get_if<ShapeAttrs>(&attrs)) a->shape = type_of(op.result()).shape;
      if (auto* a = std::get_if<SaveAttrs>(&attrs)) a->type = type_of(op.result());
      if (auto* a = std::get_if<SliceAttrs>(&attrs)) {
        const Type x = type_of(op.inputs[0]), &full = g.type(op.inputs[0]);
        for (size_t d = 0; d < a->stops.size(); d++)
          if (!(x.shape[d] == full.shape[d])) a->stops[d] = x.shape[d].extent;
      }
      if (is_input(op.kind))
        out.add_input(type_of(op.result()), names[0]);
      else if (op.body.valid())
        out.add_graph_op(op.kind, op.inputs, self(self, s.inner[op.body.index]), names);
      else
        out.add_op(op.kind, op.inputs, attrs, names);
      for (uint32_t r = 0; r < op.num_results; r++)
        fits = fits && out.type(op.result(r)) == type_of(op.result(r));
    }
    for (TensorId t : g.outputs()) out.add_output(t);
    return out;
  };
  try {
    Graph g = copy(copy, scopes_[index]);
    if (fits) return g;
  } catch (const Error&) {
    // an attribute that speaks of extents in a way not known here
  }
  return std::nullopt;
}

KeptPositions Symmetry::positions_of(const Scope& s, TensorId t, const KeptTiles& kept) const {
  KeptPositions result;
  const Shape& shape = s.graph->type(t).shape;
  for (size_t d = 0; d < shape.size(); d++) {
    std::vector<int64_t> p = positions(s.first[t.index] + int(d), shape[d].extent, kept, nullptr);
    result.emplace_back();
    if (int64_t(p.size()) < shape[d].extent) result.back() = std::move(p);
  }
  return result;
}

// `to`: for every tile of a class, which of the kept ones stands in its place.
Repeats Symmetry::repeats_of(TensorId t, const KeptTiles& kept, const KeptTiles& to) const {
  Repeats result;
  const Scope& s = scopes_[0];
  const Shape& shape = s.graph->type(t).shape;
  for (size_t d = 0; d < shape.size(); d++) {
    const int node = s.first[t.index] + int(d);
    result.emplace_back();
    if (kept_extent(node, shape[d].extent, kept) < shape[d].extent)
      result.back() = positions(node, shape[d].extent, to, &kept);
  }
  return result;
}

Symmetry::Spread Symmetry::spread(const KeptTiles& kept, Rng rng) const {
  KeptTiles to;
  for (size_t c = 0; c < classes_.size(); c++) {
    to.emplace_back();
    for (int64_t tile = 0; tile < classes_[c].tiles; tile++) {
      const auto own = std::ranges::find(kept[c], tile);
      to[c].push_back(own != kept[c].end() ? own - kept[c].begin()
                                           : int64_t(rng.below(kept[c].size())));
    }
  }
  Spread s;
  const Graph& g = *scopes_[0].graph;
  for (TensorId t : g.inputs()) s.inputs.push_back(repeats_of(t, kept, to));
  for (TensorId t : g.outputs()) s.outputs.push_back(repeats_of(t, kept, to));
  return s;
}

std::vector<KeptPositions> Symmetry::input_positions(const KeptTiles& kept) const {
  return mapped(
      scopes_[0].graph->inputs(), [&](TensorId t) { return positions_of(scopes_[0], t, kept); });
}

std::vector<KeptPositions> Symmetry::output_positions(const KeptTiles& kept) const {
  return mapped(
      scopes_[0].graph->outputs(), [&](TensorId t) { return positions_of(scopes_[0], t, kept); });
}

}  // namespace tessera
