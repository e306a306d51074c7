#include "backend/cpu/whole.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "backend/cpu/emitter.h"
#include "ir/axis_reads.h"

namespace tessera {
namespace {

// What cuts an axis: grid dimensions, then kFirstLoop + loops, each in order.
using Cut = std::vector<int>;
constexpr int kFirstLoop = 64;

// A value without the tiles: whole extents, and what cut them.
struct WholeShape {
  std::vector<int64_t> extents;
  std::vector<Cut> cuts;
  uint8_t open = 0;  // loops over whose iterations it is yet to be added up
};

template <class Map, class Loops>
std::vector<Cut> cuts_of(size_t rank, const Map& grid_map, const Loops& loop_map,
                         const KernelValues& kernel) {
  std::vector<Cut> cuts(rank);
  for (size_t d = 0; d < kernel.grid.size(); ++d)
    if (grid_map[d] >= 0 && kernel.grid[d] > 1) cuts[size_t(grid_map[d])].push_back(int(d));
  for (size_t l = 0; l < kernel.loops.size(); ++l)
    if (loop_map[l] >= 0 && kernel.loops[l] > 1)
      cuts[size_t(loop_map[l])].push_back(kFirstLoop + int(l));
  return cuts;
}

// The loops in what cuts an axis; nullopt where a dimension of the grid does.
std::optional<uint8_t> loops_of(const Cut& cut) {
  uint8_t loops = 0;
  for (int c : cut) {
    if (c < kFirstLoop) return std::nullopt;
    loops = uint8_t(loops | 1u << (c - kFirstLoop));
  }
  return loops;
}

class Untiler {
 public:
  explicit Untiler(const KernelValues& kernel) : kernel_(kernel) {}

  std::optional<WholeKernel> run() {
    for (const Layout& layout : kernel_.argument_layouts)
      if (!layout.row_major() && !layout.view()) return std::nullopt;
    for (const Value& v : kernel_.values) {
      std::optional<WholeShape> s = shape_of(v);
      if (!s) return std::nullopt;
      shapes_.push_back(*std::move(s));
    }
    for (const Value& v : kernel_.values)
      if (is_store(v.kind) && !take_result(v)) return std::nullopt;
    out_.values.argument_layouts = kernel_.argument_layouts;
    out_.values.rounds = kernel_.rounds;
    if (out_.results.empty() || !sums_are_alike()) return std::nullopt;
    order_axes();
    if (!innermost_is_contiguous()) return std::nullopt;
    merge_axes();
    if (repeats_work()) return std::nullopt;
    return std::move(out_);
  }

 private:
  const WholeShape& shape(int id) const { return shapes_[size_t(id)]; }
  const Value& given(int id) const { return kernel_.values[size_t(id)]; }
  Value& made(int id) { return out_.values.values[size_t(id)]; }

  // --- from operands to results: what each value is without tiles -------------------------------

  std::optional<WholeShape> shape_of(const Value& v) const {
    if (has(v.kind, algebra::Pointwise)) return pointwise(v);
    WholeShape s;
    if (is_load(v.kind)) {
      const auto& a = std::get<IterAttrs>(v.attrs);
      s.extents = kernel_.argument_extents[size_t(v.argument)];
      s.cuts = cuts_of(s.extents.size(), a.imap, a.fmap, kernel_);
      for (size_t i = 0; i < s.extents.size(); ++i)
        if (s.extents[i] == 1 && !s.cuts[i].empty()) return std::nullopt;
      return s;
    }
    if (v.kind == OpKind::Const) {
      for (const Extent& e : v.extents)
        if (e.nominal != 1) return std::nullopt;
      s.extents.assign(v.extents.size(), 1);
      s.cuts.resize(v.extents.size());
      return s;
    }
    if (adds_or_drops_ones(v.kind)) {
      const WholeShape& x = shape(v.inputs[0]);
      s = {std::vector<int64_t>(v.extents.size(), 1), std::vector<Cut>(v.extents.size()), x.open};
      const auto reads = axis_reads(v.kind, v.attrs, int(x.extents.size()), v.rank());
      for (size_t i = 0; i < reads->size(); ++i) {
        const int to = (*reads)[i].axis;
        if (to < 0 && x.extents[i] != 1) return std::nullopt;  // one of a tile
        if (to < 0) continue;
        s.extents[size_t(to)] = x.extents[i];
        s.cuts[size_t(to)] = x.cuts[i];
      }
      return s;
    }
    if (v.kind == OpKind::Sum) return sum(v);
    if (v.kind == OpKind::Matmul) return product(v);
    if (v.kind == OpKind::Accum) {
      const auto& a = std::get<AccumAttrs>(v.attrs);
      s = shape(v.inputs[0]);
      uint8_t loops = 0;
      for (int l : a.loops)
        if (kernel_.loops[size_t(l)] > 1) loops = uint8_t(loops | 1u << l);
      if (a.kind != AccumKind::Sum || loops != s.open) return std::nullopt;
      s.open = 0;
      return s;
    }
    if (is_store(v.kind)) {
      const auto& a = std::get<SaveAttrs>(v.attrs);
      s = shape(v.inputs[0]);
      const std::vector<int64_t>& whole = kernel_.argument_extents[size_t(v.argument)];
      if (s.open != 0 || s.extents != whole ||
          s.cuts != cuts_of(whole.size(), a.omap, a.fmap, kernel_))
        return std::nullopt;
      return s;
    }
    return std::nullopt;
  }

  std::optional<WholeShape> pointwise(const Value& v) const {
    WholeShape s;
    for (int input : v.inputs) {
      const WholeShape& x = shape(input);
      if (x.open != 0) return std::nullopt;
      const size_t rank = std::max(s.extents.size(), x.extents.size());
      s.extents.insert(s.extents.begin(), rank - s.extents.size(), 1);
      s.cuts.insert(s.cuts.begin(), rank - s.cuts.size(), Cut{});
      for (size_t i = 0; i < x.extents.size(); ++i) {
        const size_t to = rank - x.extents.size() + i;
        if (x.extents[i] == 1) continue;
        if (s.extents[to] == 1) {
          s.extents[to] = x.extents[i];
          s.cuts[to] = x.cuts[i];
        } else if (s.extents[to] != x.extents[i] || s.cuts[to] != x.cuts[i]) {
          return std::nullopt;
        }
      }
    }
    return s;
  }

  std::optional<WholeShape> sum(const Value& v) const {
    if (!is_float(v.dtype)) return std::nullopt;
    const auto& a = std::get<ReduceAttrs>(v.attrs);
    WholeShape s = shape(v.inputs[0]);
    for (size_t i = a.axes.size(); i-- > 0;) {
      const size_t axis = size_t(a.axes[i]);
      const std::optional<uint8_t> loops = loops_of(s.cuts[axis]);
      if (!loops) return std::nullopt;
      s.open = uint8_t(s.open | *loops);
      s.extents[axis] = 1;
      s.cuts[axis].clear();
      if (a.keepdims) continue;
      s.extents.erase(s.extents.begin() + a.axes[i]);
      s.cuts.erase(s.cuts.begin() + a.axes[i]);
    }
    return s;
  }

  // A matrix by a column, or a row by a matrix.
  std::optional<WholeShape> product(const Value& v) const {
    const WholeShape &x = shape(v.inputs[0]), &y = shape(v.inputs[1]);
    if (!is_float(v.dtype) || x.extents.size() != 2 || y.extents.size() != 2 || x.open != 0 ||
        y.open != 0 || (x.extents[0] != 1 && y.extents[1] != 1) || x.cuts[1] != y.cuts[0])
      return std::nullopt;
    const std::optional<uint8_t> loops = loops_of(x.cuts[1]);
    if (!loops) return std::nullopt;
    return WholeShape{{x.extents[0], y.extents[1]}, {x.cuts[0], y.cuts[1]}, *loops};
  }

  // --- from results to operands: values by the axes that they vary with -------------------------

  // For each axis of a value, the axis of all values that it is; -1 where its extent is 1.
  using Axes = std::vector<int>;

  bool take_result(const Value& save) {
    const std::vector<int64_t>& extents = shape(save.inputs[0]).extents;
    if (out_.results.empty())
      out_.kept = extents;
    else if (out_.kept != extents)
      return false;
    Axes axes(extents.size());
    std::iota(axes.begin(), axes.end(), 0);
    const int id = make(save.inputs[0], axes, false);
    if (id >= 0) out_.results.push_back({id, save.argument});
    return id >= 0;
  }

  // The number of the axis for the `i`-th that is summed over: those after the results' axes.
  int summed_axis(int64_t extent, size_t i) {
    if (i < out_.summed.size() && out_.summed[i] != extent) return -1;
    if (i == out_.summed.size()) out_.summed.push_back(extent);
    return int(out_.kept.size() + i);
  }

  // A new value for `id` along `axes`, -1 where there is none. `within`: it is a term of a sum, in
  // which a sum is some more axes to sum over.
  int make(int id, Axes axes, bool within) {
    const Value& v = given(id);
    for (size_t i = 0; i < axes.size(); ++i)
      if (shape(id).extents[i] == 1) axes[i] = -1;
    if (adds_or_drops_ones(v.kind)) {
      const int rank = int(shape(v.inputs[0]).extents.size());
      const auto reads = axis_reads(v.kind, v.attrs, rank, v.rank());
      Axes inner;
      for (const AxisRead& read : *reads)
        inner.push_back(read.axis < 0 ? -1 : axes[size_t(read.axis)]);
      return make(v.inputs[0], std::move(inner), within);
    }
    if (v.kind == OpKind::Accum) return make(v.inputs[0], axes, within);
    const auto known = made_.find({id, axes, within});
    if (known != made_.end()) return known->second;
    return made_[{id, axes, within}] = v.kind == OpKind::Sum || v.kind == OpKind::Matmul
                                           ? make_sum(v, axes, within)
                                           : make_element(v, id, axes, within);
  }

  int make_sum(const Value& v, const Axes& axes, bool within) {
    if (!within) next_summed_ = 0;
    int term = -1;
    if (v.kind == OpKind::Sum) {
      const auto& a = std::get<ReduceAttrs>(v.attrs);
      const std::vector<int64_t>& extents = shape(v.inputs[0]).extents;
      Axes inner;
      size_t from = 0;
      for (size_t i = 0; i < extents.size(); ++i) {
        const bool gone = std::ranges::binary_search(a.axes, int(i));
        if (!gone) {
          inner.push_back(axes[from++]);
          continue;
        }
        from += a.keepdims ? 1 : 0;
        inner.push_back(-1);
        if (extents[i] == 1) continue;
        inner.back() = summed_axis(extents[i], next_summed_++);
        if (inner.back() < 0) return -1;
      }
      term = make(v.inputs[0], inner, true);
    } else {
      const int64_t depth = shape(v.inputs[0]).extents[1];
      int k = -1;
      if (depth != 1 && (k = summed_axis(depth, next_summed_++)) < 0) return -1;
      const int x = make(v.inputs[0], {axes[0], k}, true);
      const int y = x < 0 ? -1 : make(v.inputs[1], {k, axes[1]}, true);
      if (y < 0) return -1;
      Value times;
      times.kind = OpKind::Mul;
      times.dtype = v.dtype;
      times.inputs = {x, y};
      term = add(std::move(times));
    }
    if (within || term < 0) return term;
    Value total;
    total.kind = OpKind::Sum;
    total.dtype = v.dtype;
    total.inputs = {term};
    const int id = add(std::move(total));
    out_.sums.push_back(id);
    axes_summed_.push_back(next_summed_);
    return id;
  }

  // Whether a sum is part of the value.
  bool sums_up(int id) const {
    const Value& v = given(id);
    return v.kind == OpKind::Sum || v.kind == OpKind::Matmul ||
           std::ranges::any_of(v.inputs, [&](int i) { return sums_up(i); });
  }

  int make_element(const Value& v, int id, const Axes& axes, bool within) {
    // A factor of a sum goes to its terms; nothing else does.
    if (within && sums_up(id) &&
        (v.kind != OpKind::Mul || (sums_up(v.inputs[0]) && sums_up(v.inputs[1]))))
      return -1;
    Value element;
    element.kind = v.kind;
    element.attrs = v.attrs;
    element.dtype = v.dtype;
    element.argument = v.argument;
    if (is_load(v.kind)) axes_of_.push_back({int(count()), axes});
    for (int input : v.inputs) {
      const size_t rank = shape(input).extents.size();
      const int made = make(input, Axes(axes.end() - long(rank), axes.end()), within);
      if (made < 0) return -1;
      element.inputs.push_back(made);
    }
    return add(std::move(element));
  }

  size_t count() const { return out_.values.values.size(); }
  int add(Value v) {
    out_.values.values.push_back(std::move(v));
    return int(count()) - 1;
  }

  // --- axes -------------------------------------------------------------------------------------

  bool sums_are_alike() const {
    return std::ranges::all_of(
        axes_summed_, [&](size_t n) { return n == out_.summed.size(); });
  }

  // Strides of all operands; what is summed over in the order in which it lies in memory.
  void order_axes() {
    const size_t kept = out_.kept.size(), all = kept + out_.summed.size();
    for (const auto& [id, axes] : axes_of_) {
      Value& v = made(id);
      const std::vector<int64_t> strides = kernel_.argument_pitch(v.argument);
      v.in_memory = true;
      v.memory.pointer = "a" + std::to_string(v.argument);
      v.memory.storage = v.dtype;
      v.memory.strides.assign(all, 0);
      for (size_t i = 0; i < axes.size(); ++i)
        if (axes[i] >= 0) v.memory.strides[size_t(axes[i])] += strides[i];
    }
    std::vector<size_t> order(out_.summed.size());
    std::iota(order.begin(), order.end(), kept);
    const auto farthest = [&](size_t axis) {
      int64_t most = 0;
      for (const auto& [id, axes] : axes_of_) most = std::max(most, made(id).memory.strides[axis]);
      return most;
    };
    std::ranges::stable_sort(
        order, [&](size_t a, size_t b) { return farthest(a) > farthest(b); });
    auto summed = mapped(order, [&](size_t axis) { return out_.summed[axis - kept]; });
    out_.summed = summed;
    for (const auto& [id, axes] : axes_of_) {
      std::vector<int64_t>& strides = made(id).memory.strides;
      std::vector<int64_t> ordered(strides.begin(), strides.begin() + long(kept));
      for (size_t axis : order) ordered.push_back(strides[axis]);
      strides = ordered;
    }
  }

  bool innermost_is_contiguous() {
    const auto contiguous = [&](size_t axis) {
      bool some = false;
      for (const auto& [id, axes] : axes_of_) {
        const int64_t stride = made(id).memory.strides[axis];
        if (stride != 0 && stride != 1) return false;
        some |= stride == 1;
      }
      return some;
    };
    const size_t kept = out_.kept.size(), all = kept + out_.summed.size();
    return axes_of_.empty() || all == 0 || contiguous(all - 1) ||
           (kept > 0 && kept < all && contiguous(kept - 1));
  }

  void merge_axes() {
    const size_t kept = out_.kept.size();
    std::vector<int64_t> extents = out_.kept;
    extents.insert(extents.end(), out_.summed.begin(), out_.summed.end());
    std::vector<std::vector<size_t>> groups;  // of axes that become one
    for (size_t axis = 0; axis < extents.size(); ++axis) {
      if (extents[axis] == 1) continue;
      bool fits = !groups.empty() && (groups.back().back() < kept) == (axis < kept);
      for (const auto& [id, axes] : axes_of_) {
        const std::vector<int64_t>& strides = made(id).memory.strides;
        fits = fits && strides[groups.back().back()] == strides[axis] * extents[axis];
      }
      if (fits)
        groups.back().push_back(axis);
      else
        groups.push_back({axis});
    }
    out_.kept.clear();
    out_.summed.clear();
    std::vector<int64_t> merged;
    for (const auto& group : groups) {
      int64_t n = product_of<int64_t>(group, [&](size_t axis) { return extents[axis]; });
      (group[0] < kept ? out_.kept : out_.summed).push_back(n);
      merged.push_back(n);
    }
    for (const auto& [id, axes] : axes_of_) {
      std::vector<int64_t> strides;
      for (const auto& group : groups) strides.push_back(made(id).memory.strides[group.back()]);
      made(id).memory.strides = strides;
    }
    // Extents of values: those of the axes that they vary with.
    for (size_t i = 0; i < count(); ++i) {
      Value& v = out_.values.values[i];
      v.extents.assign(merged.size(), Extent{});
      for (size_t axis = 0; axis < merged.size(); ++axis) {
        bool varies = is_load(v.kind) && v.memory.strides[axis] != 0;
        for (int input : v.inputs) varies |= made(input).extents[axis].nominal != 1;
        if (v.kind == OpKind::Sum && axis >= out_.kept.size()) varies = false;
        if (varies) v.extents[axis].nominal = merged[axis];
      }
    }
  }

  // Whether costly operators would be computed for each element of arrays larger than their own.
  bool repeats_work() {
    const int64_t kept = product_of(out_.kept), all = kept * product_of(out_.summed);
    std::vector<bool> term(count(), false);  // of a sum
    for (size_t i = count(); i-- > 0;) {
      const Value& v = out_.values.values[i];
      for (int input : v.inputs)
        term[size_t(input)] = term[size_t(input)] || term[i] || v.kind == OpKind::Sum;
      if (v.elements() < (term[i] ? all : kept) && (is_costly(v.kind) || v.kind == OpKind::Sum))
        return true;
    }
    return false;
  }

  const KernelValues& kernel_;
  std::vector<WholeShape> shapes_;
  WholeKernel out_;
  std::map<std::tuple<int, Axes, bool>, int> made_;
  std::vector<std::pair<int, Axes>> axes_of_;  // of new operands
  size_t next_summed_ = 0;
  std::vector<size_t> axes_summed_;  // of each sum
};

}  // namespace

std::optional<WholeKernel> whole_kernel(const KernelValues& kernel) {
  return Untiler(kernel).run();
}

}  // namespace tessera
