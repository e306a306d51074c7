#include "plan/row_kernel.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/thread_pool.h"
#include "ir/block.h"
#include "ir/build.h"

namespace tessera {
namespace {

// Blocks of rows: enough for all threads, few to launch. Fewer of short ones, more of long ones.
constexpr int64_t kBlocks = 32, kShortBlock = 4096, kLongBlock = 16384;  // elements
constexpr int64_t kLeastBlockColumns = 256;  // of a block that takes a part of its rows
constexpr int64_t kDepth = 256;              // of a product, in one step of a loop
// Multiplications that are worth a second block; fewer columns fill no vectors of what follows.
constexpr int64_t kWorth = int64_t{1} << 17, kNarrow = 16;
// Rows that a block of a product keeps whole.
constexpr int64_t kTileElements = int64_t{32} << 10, kTileRows = 64;
constexpr int64_t kMostOfFew = int64_t{1} << 15;  // elements of rows that are fewer than threads
constexpr int64_t kShortRow = 16;                 // elements

Extents with(Extents rows, int64_t width) {
  rows.push_back(width);
  return rows;
}

class RowKernel {
 public:
  RowKernel(const RowGroups& found, const FusionRules& rules, const RowGroup& group,
            const std::vector<TensorId>& results, FusedProgram& to)
      : found_(found), graph_(found.graph()), results_(results), to_(to), group_(simplest(group)),
        rows_(group_.rows), last_(int(rows_.size())) {
    for (const auto& [t, width] : group_.widths) widest_ = std::max(widest_, width);
    if (!group_.products.empty()) {
      const Extents right = found.shape(graph_.op(group_.products[0]).inputs[1]);
      depth_ = right[right.size() - 2];
      columns_ = right.back();
      cut_product(rules);
    } else {
      cut_rows();
    }
    std::ranges::sort(grid_);
  }

  bool emit() {
    const int64_t rows = product_of(rows_);
    const bool few = rows < std::max(2, default_threads()) && columns_ == 0;
    if (grid_.size() > 3 || (few && rows * widest_ > kMostOfFew)) return false;
    Extents grid = {1}, loops;
    if (!grid_.empty()) grid.clear();
    for (const auto& [axis, parts] : grid_) grid.push_back(parts);
    if (iterations_ > 1) loops.push_back(iterations_);
    try {
      block_ = Graph::block(grid, loops);
      for (OpId id : group_.members)
        tiles_[graph_.op(id).result().index] = member(graph_.op(id), group_.reads.at(id.index));
      std::vector<std::string> names;
      for (TensorId t : results_) {
        save(t);
        names.push_back(graph_.tensor(t).name);
      }
      const OpId kernel =
          to_.graph.add_graph_op(OpKind::Kernel, arguments_, std::move(block_), names);
      for (size_t i = 0; i < results_.size(); ++i) {
        const TensorId made = to_.graph.op(kernel).result(uint32_t(i));
        const TensorId result = to_.reshaped(made, graph_.type(results_[i]).shape);
        if (result != made) to_.graph.set_tensor_name(made, "");
        to_.graph.set_tensor_name(result, names[i]);
        to_.map[results_[i].index] = result;
      }
    } catch (const Error&) {
      return false;
    }
    return true;
  }

 private:
  // --- shapes -----------------------------------------------------------------------------------

  // The group with as few axes of rows as its operands allow; results as they are wanted.
  RowGroup simplest(const RowGroup& given) const {
    const std::vector<TensorId> outside = operands_in_memory(given);
    RowGroup group = given;
    const auto seen_over = [&](const Extents& rows) {
      std::optional<RowGroup> made = found_.over(rows, group.members);
      if (!made || operands_in_memory(*made) != outside) return false;
      for (TensorId t : results_)
        if (!arranged(found_, *made, t)) return false;
      group = std::move(*made);
      return true;
    };
    for (size_t axis = 0; axis + 1 < group.rows.size();) {
      Extents rows = group.rows;
      rows[axis] *= rows[axis + 1];
      rows.erase(rows.begin() + std::ptrdiff_t(axis) + 1);
      if (!seen_over(rows)) ++axis;
    }
    // Short rows of elements alone are one.
    if (pointwise(group) && group.widths.begin()->second < kShortRow) seen_over({1});
    return group;
  }

  // Whether all is element by element, on rows of one width.
  bool pointwise(const RowGroup& group) const {
    const int64_t width = group.widths.begin()->second;
    return std::ranges::all_of(group.members, [&](OpId id) {
      const Op& op = graph_.op(id);
      return has(op.kind, algebra::Pointwise) && group.widths.at(op.result().index) == width;
    });
  }

  void cut_product(const FusionRules& rules) {
    const DType dtype = graph_.type(graph_.op(group_.products[0]).inputs[1]).dtype;
    const int64_t m = rows_.back(), batch = product_of(rows_) / m;
    for (int i = 0; i + 1 < last_; ++i)
      if (rows_[size_t(i)] > 1) grid_.emplace_back(i, rows_[size_t(i)]);
    const bool packs = found_.packs(graph_.op(group_.products[0]));
    const ProductTiles tiles =
        rules.split(dtype, batch, packs ? std::max(m, rules.packed_rows) : m, columns_, depth_);
    int64_t blocks = tiles.row_blocks;
    // Columns that lie in order are read from end to end, in smaller blocks, which balance better.
    const bool dots = found_.dots(graph_.op(group_.products[0]));
    iterations_ = dots ? 1 : tiles.iterations;
    const int64_t column_blocks = tiles.column_blocks * (dots && tiles.column_blocks > 1 ? 2 : 1);
    if (group_.whole) {
      const int64_t most =
          std::max<int64_t>(8, std::min(last_ > 1 ? m : kTileRows, kTileElements / widest_));
      const bool halves = batch < 4 && m >= 16 && m * columns_ * depth_ >= kWorth;
      blocks = std::max<int64_t>(ceil_div(m, most), halves ? 2 : 1);
      iterations_ = depth_ > 2 * kDepth ? ceil_div(depth_, kDepth) : 1;
    } else if (column_blocks > 1) {
      const bool narrow = columns_ < kNarrow * column_blocks;
      grid_.emplace_back(last_, narrow ? ceil_div(columns_, 8 * kNarrow) : column_blocks);
    }
    if (blocks > 1) grid_.emplace_back(last_ - 1, blocks);
  }

  void cut_rows() {
    const int64_t all = product_of(rows_) * widest_;
    int64_t left = std::max(std::min(kBlocks, ceil_div(all, kShortBlock)), all / kLongBlock);
    std::vector<int> order, first = outermost();
    for (int i = 0; i < last_; ++i) order.push_back(i);
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](int a) { return std::ranges::count(first, a); });
    for (int i : order) {
      const int64_t n = rows_[size_t(i)];
      if (left == 1 || n == 1) continue;
      grid_.emplace_back(i, std::min(n, left));
      left = ceil_div(left, n);
    }
    const int64_t parts = std::min(left, widest_ / kLeastBlockColumns);
    if (parts < 2 || !pointwise(group_)) return;
    columns_ = widest_;
    grid_.emplace_back(last_, parts);
  }

  // The axes of rows that operands and results are furthest apart along: blocks that take a piece
  // of one touch few pages.
  std::vector<int> outermost() const {
    std::vector<int> axes;
    for (const auto& [id, operands] : group_.reads) {
      for (const RowOperand& o : operands) {
        if (o.kind != RowOperand::Memory || o.strides.empty()) continue;
        const auto end = o.strides.begin() + last_, most = std::max_element(o.strides.begin(), end);
        if (most != end && *most != 0) axes.push_back(int(most - o.strides.begin()));
      }
    }
    for (TensorId t : results_) {
      const std::vector<int> order = *arranged(found_, group_, t);
      const auto axis =
          std::ranges::find_if(order, [&](int a) { return a < last_ && rows_[size_t(a)] > 1; });
      axes.push_back(axis == order.end() ? 0 : *axis);
    }
    return axes;
  }

  // --- operators --------------------------------------------------------------------------------

  TensorId member(const Op& op, const std::vector<RowOperand>& operands) {
    const int64_t width = group_.widths.at(op.result().index);
    if (op.kind == OpKind::Matmul) return product(op, operands);
    if (op.kind == OpKind::Gather) {
      const TensorId table = iterate(to_.map[operands[0].tensor.index], IterAttrs{});
      const TensorId index = build::squeeze(block_, tile(operands[1], 1), AxesAttrs{{last_}});
      return block_.add(OpKind::Gather, {table, index}, AxisAttrs{0});
    }
    if (op.kind == OpKind::Concat) {
      std::vector<TensorId> tiles;
      for (size_t i = 0; i < operands.size(); ++i) {
        const int64_t n = found_.shape(op.inputs[i]).back();
        tiles.push_back(full(tile(operands[i], n), n));
      }
      return build::concat(block_, tiles, AxisAttrs{last_});
    }
    if (is_reduction(op.kind)) {
      const int64_t n = num_elements(graph_.type(op.inputs[0]).shape) / product_of(rows_);
      return block_.add(op.kind, {full(tile(operands[0], n), n)}, ReduceAttrs{{last_}, true});
    }
    auto tiles = mapped(operands, [&](const RowOperand& o) { return tile(o, width); });
    const TensorId made = block_.add(op.kind, tiles, op.attrs);
    return block_.type(made).rank() == last_ + 1 ? made : full(made, width);
  }

  TensorId product(const Op& op, const std::vector<RowOperand>& operands) {
    const Extents b = found_.shape(op.inputs[1]);
    const int64_t k = b[b.size() - 2];
    const bool inside = operands[0].kind == RowOperand::Inside, looped = iterations_ > 1 && !inside;
    Extents right_shape(rows_.begin(), rows_.end() - 1);
    right_shape.insert(right_shape.end(), {k, b.back()});
    const TensorId right = in_memory(operands[1], right_shape, Side::Right, looped);
    if (inside) {
      if (const auto quotient = division(operands[0], b.back())) {
        const TensorId sums = build::matmul(block_, {tile(quotient->first, k), right});
        return block_.add(OpKind::Div, {sums, tile(quotient->second, 1)});
      }
      return build::matmul(block_, {full(tile(operands[0], k), k), right});
    }
    const TensorId left = in_memory(operands[0], with(rows_, k), Side::Left, looped);
    const TensorId made = build::matmul(block_, {left, right});
    return looped ? build::accum(block_, made, AccumAttrs{AccumKind::Sum, {0}}) : made;
  }

  // Dividend and divisor of a value that is divided by one number per row: sums are divided
  // instead of their terms, where there are no more of them.
  std::optional<std::pair<RowOperand, RowOperand>> division(const RowOperand& o,
                                                            int64_t sums) const {
    const OpId maker = graph_.tensor(o.tensor).producer;
    const bool wanted = std::ranges::find(results_, o.tensor) != results_.end();
    if (graph_.op(maker).kind != OpKind::Div || wanted || sums > o.width) return std::nullopt;
    const RowOperand &x = group_.reads.at(maker.index)[0], &by = group_.reads.at(maker.index)[1];
    if (x.kind != RowOperand::Inside || by.kind != RowOperand::Inside || by.width != 1 ||
        o.width != group_.widths.at(o.tensor.index) || x.width != o.width)
      return std::nullopt;
    return std::pair(x, by);
  }

  void save(TensorId t) {
    const std::vector<int> order = *arranged(found_, group_, t);
    const TensorId root = found_.view(t).root;
    const int64_t width = group_.widths.at(root.index);
    TensorId value = full(tiles_.at(root.index), width);
    if (!std::ranges::is_sorted(order)) value = build::transpose(block_, value, PermAttrs{order});
    SaveAttrs attrs;
    attrs.type.dtype = graph_.type(t).dtype;
    for (int axis : order) attrs.type.shape.push_back(with(rows_, width)[size_t(axis)]);
    for (size_t d = 0; d < grid_.size(); ++d)
      if (grid_[d].first < last_ || width == columns_)
        attrs.omap[d] = int8_t(std::ranges::find(order, grid_[d].first) - order.begin());
    block_.add_output(build::save(block_, value, attrs));
  }

  // --- operands ---------------------------------------------------------------------------------

  enum class Side { Row, Left, Right };

  TensorId tile(const RowOperand& o, int64_t width) {
    if (o.kind == RowOperand::Constant) {
      const auto& a = graph_.attrs<ConstAttrs>(graph_.producer(o.tensor));
      return block_.add_const(a.value, {a.type.dtype, {}});
    }
    if (o.kind == RowOperand::Memory) return in_memory(o, with(rows_, width), Side::Row, false);
    const TensorId made = tiles_.at(o.tensor.index);
    const Extents shape = extents(block_.type(made).shape);
    if (o.width == group_.widths.at(o.tensor.index) || shape.back() == 1) return made;
    SliceAttrs cut{Extents(shape.size(), 0), shape, Extents(shape.size(), 1)};
    cut.starts.back() = o.offset;
    cut.stops.back() = o.offset + o.width;
    return build::slice(block_, made, cut);
  }

  // The tile with all its rows and columns, where it was the same along some.
  TensorId full(TensorId tile, int64_t width) {
    Extents shape = with(rows_, width);
    for (const auto& [axis, parts] : grid_)
      if (axis < last_ || width == columns_)
        shape[size_t(axis)] = ceil_div(shape[size_t(axis)], parts);
    if (extents(block_.type(tile).shape) == shape) return tile;
    return build::broadcast(block_, tile, ShapeAttrs{shape_of(shape)});
  }

  TensorId iterate(TensorId t, const IterAttrs& attrs) {
    size_t at = size_t(std::ranges::find(arguments_, t) - arguments_.begin());
    if (at == arguments_.size()) {
      arguments_.push_back(t);
      inputs_.push_back(block_.add_input(to_.graph.type(t), to_.graph.tensor(t).name));
    }
    return build::iter(block_, inputs_[at], attrs);
  }

  // A tile of an operand of that shape; its rows first, in a right operand without the last of
  // them.
  TensorId in_memory(const RowOperand& o, const Extents& shape, Side side, bool looped) {
    TensorId& known = read_[{o.tensor.index, o.offset, o.strides, shape, side, looped}];
    if (known.valid()) return known;
    const int rank = int(shape.size());
    const TensorId root = to_.map[o.tensor.index];
    const int64_t elements = num_elements(to_.graph.type(root).shape);
    const Reading found = reading(elements, shape, o.strides, o.offset).value();
    IterAttrs attrs;
    for (size_t d = 0; d < grid_.size(); ++d) {
      int own = grid_[d].first;
      if (own == last_)  // columns
        own =
            side == Side::Right || (side == Side::Row && shape.back() == columns_) ? rank - 1 : -1;
      else if (side == Side::Right && own == last_ - 1)
        own = -1;
      if (own >= 0) attrs.imap[d] = int8_t(found.axes[size_t(own)]);
    }
    if (looped)
      attrs.fmap[0] = int8_t(found.axes[size_t(side == Side::Right ? rank - 2 : rank - 1)]);
    TensorId tile = permuted(block_, iterate(to_.part(root, found), attrs), found);
    AxesAttrs missing;
    for (int a = 0; a < rank; ++a)
      if (found.axes[size_t(a)] < 0) missing.axes.push_back(a);
    if (!missing.axes.empty()) tile = build::unsqueeze(block_, tile, missing);
    return known = tile;
  }

  const RowGroups& found_;
  const Graph& graph_;
  const std::vector<TensorId>& results_;
  FusedProgram& to_;
  const RowGroup group_;
  const Extents& rows_;
  const int last_;  // axis: of columns
  int64_t widest_ = 1, depth_ = 0, columns_ = 0, iterations_ = 1;
  std::vector<std::pair<int, int64_t>> grid_;  // axis (rows, then columns) and parts
  Graph block_;
  std::vector<TensorId> arguments_, inputs_;  // of the kernel; the same in the block
  std::map<uint32_t, TensorId> tiles_;        // by tensor
  std::map<std::tuple<uint32_t, int64_t, Extents, Extents, Side, bool>, TensorId> read_;
};

}  // namespace

TensorId FusedProgram::reshaped(TensorId t, const Shape& shape) {
  return graph.type(t).shape == shape ? t : build::reshape(graph, t, ShapeAttrs{shape});
}

TensorId FusedProgram::part(TensorId t, const Reading& reading) {
  TensorId& known = parts[{t.index, {reading.shape, reading.starts, reading.stops}}];
  if (known.valid()) return known;
  TensorId& whole = parts[{t.index, {reading.shape}}];
  if (!whole.valid()) whole = reshaped(t, shape_of(reading.shape));
  known = whole;
  if (reading.cuts())
    known = build::slice(
        graph, whole, SliceAttrs{reading.starts, reading.stops, Extents(reading.shape.size(), 1)});
  return known;
}

TensorId permuted(Graph& graph, TensorId tile, const Reading& reading) {
  if (!reading.gone.empty()) tile = build::squeeze(graph, tile, AxesAttrs{reading.gone});
  const std::vector<int> perm = reading.perm();
  if (std::ranges::is_sorted(perm)) return tile;
  return build::transpose(graph, tile, PermAttrs{perm});
}

std::vector<TensorId> operands_in_memory(const RowGroup& group) {
  std::set<TensorId> found;
  for (const auto& [id, operands] : group.reads)
    for (const RowOperand& o : operands)
      if (o.kind == RowOperand::Memory) found.insert(o.tensor);
  return {found.begin(), found.end()};
}

std::optional<std::vector<int>> arranged(const RowGroups& found, const RowGroup& group,
                                         TensorId t) {
  const Strided& view = found.view(t);
  const Extents own = with(group.rows, group.widths.at(view.root.index));
  if (view.offset != 0 || product_of(own) != product_of(found.shape(t))) return std::nullopt;
  const Extents steps = row_major_strides(own);
  std::vector<int> order;
  AxisParts parts = merged(view.parts());
  std::ranges::reverse(parts);
  // The group's axes in the order in which the tensor goes through its parts.
  while (!parts.empty()) {
    const auto [n, step] = parts.back();
    parts.pop_back();
    size_t axis = 0;
    while (axis < own.size() &&
           !(own[axis] > 1 && steps[axis] * own[axis] == step * n && n % own[axis] == 0 &&
             std::ranges::find(order, int(axis)) == order.end()))
      ++axis;
    if (axis == own.size()) return std::nullopt;
    order.push_back(int(axis));
    if (n > own[axis]) parts.emplace_back(n / own[axis], step);
  }
  for (int i = 0; i < int(own.size()); ++i)
    if (own[size_t(i)] == 1)
      order.insert(std::ranges::find_if(order, [&](int a) { return a > i; }), i);
  if (order.size() != own.size()) return std::nullopt;
  return order;
}

bool emit_kernel(const RowGroups& found, const FusionRules& rules, const RowGroup& group,
                 const std::vector<TensorId>& results, FusedProgram& to) {
  return RowKernel(found, rules, group, results, to).emit();
}

}  // namespace tessera
