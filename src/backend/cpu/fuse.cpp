#include "backend/cpu/fuse.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/long_sums.h"
#include "backend/cpu/lowering.h"
#include "backend/cpu/matmul.h"
#include "backend/lower.h"
#include "base/thread_pool.h"
#include "ir/block.h"
#include "ir/build.h"
#include "ir/weights.h"

namespace tessera {
namespace {

// Rows with reductions are computed as wholes; longer ones are left to all threads together.
constexpr int64_t kMostRow = int64_t{1} << 16;  // elements
// Operators looked at behind the last one that a kernel has taken.
constexpr size_t kWindow = 400;
// Rows of products that a block holds at a time, and the matrices they are multiplied with: they
// should stay in a core's private cache.
constexpr int64_t kMostScores = int64_t{256} << 10, kMostOperand = int64_t{1} << 20;  // bytes
constexpr int64_t kBlockElements = 16384;  // what makes a block worth its start

int64_t count(const std::vector<int64_t>& shape, size_t end) {
  return std::accumulate(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(end),
                         int64_t{1}, std::multiplies<>());
}
int64_t count(const std::vector<int64_t>& shape) { return count(shape, shape.size()); }

Shape shape_of(const std::vector<int64_t>& extents) {
  return Shape(extents.begin(), extents.end());
}

bool reduces_last(const Graph& graph, const Op& op) {
  if (!is_reduction(op.kind)) return false;
  const auto& a = graph.attrs<ReduceAttrs>(op);
  const int rank = graph.type(op.inputs[0]).rank();
  return a.keepdims && a.axes == std::vector<int>{rank - 1};
}

struct Group {
  std::vector<OpId> ops;        // in program order; the last one's result is the kernel's
  OpId product, second;         // where there are any
  std::vector<int64_t> domain;  // extents of whole results
};

class Fuser {
 public:
  Fuser(const Graph& graph, const std::vector<bool>& apart, CpuIsa isa)
      : graph_(graph), apart_(apart), isa_(isa), uses_(use_counts(graph)),
        taken_(graph.ops().size(), false), to_(graph.name()) {}

  Graph run() {
    std::map<size_t, Group> found;  // by the last operator
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      if (taken_[i] || apart_[i]) continue;
      std::optional<Group> g = starting_at(OpId(i));
      if (!g || g->ops.size() < 2) continue;
      for (OpId id : g->ops) taken_[id.index] = true;
      found.emplace(g->ops.back().index, std::move(*g));
    }
    if (found.empty()) return graph_;
    map_.resize(graph_.tensors().size());
    for (size_t i = 0; i < graph_.ops().size(); ++i) {
      const auto group = found.find(i);
      if (group == found.end()) {
        if (!taken_[i]) copy_op(graph_, graph_.ops()[i], to_, map_);
        continue;
      }
      if (emit(group->second)) continue;
      for (OpId id : group->second.ops) copy_op(graph_, graph_.op(id), to_, map_);
    }
    for (TensorId t : graph_.outputs()) to_.add_output(map_[t.index]);
    return without_dead_code(to_);
  }

 private:
  const Type& type(TensorId t) const { return graph_.type(t); }
  std::vector<int64_t> shape(TensorId t) const { return extents(type(t).shape); }
  static std::vector<int64_t> row_of(std::vector<int64_t> domain) {
    domain.back() = 1;
    return domain;
  }

  // --- what belongs together --------------------------------------------------------------------

  std::optional<Group> starting_at(OpId id) const {
    const Op& op = graph_.op(id);
    if (op.num_results != 1 || !is_float(type(op.result()).dtype)) return std::nullopt;
    Group g;
    if (op.kind == OpKind::Matmul) {
      g.product = id;
      g.domain = shape(op.result());
      if (g.domain.size() < 2 || shape(op.inputs[0]).size() < 2 || shape(op.inputs[1]).size() < 2)
        return std::nullopt;
      const DType sums = type(op.result()).dtype == DType::F64 ? DType::F64 : DType::F32;
      if (g.domain.back() * 2 < lanes_of(isa_, sums)) return std::nullopt;
      if (matrix(op.inputs[1])) return grow(std::move(g), id, false);
      if (g.domain.size() > 4 || !fits(op.inputs[1])) return std::nullopt;
      const bool rows = whole_rows(g.domain);
      return grow(std::move(g), id, rows);
    }
    const bool reduces = reduces_last(graph_, op);
    if (!reduces && !has(op.kind, algebra::Pointwise)) return std::nullopt;
    g.domain = shape(reduces ? op.inputs[0] : op.result());
    if (g.domain.empty() || g.domain.back() == 1) return std::nullopt;
    const bool rows = whole_rows(g.domain);
    if (reduces && !rows) return std::nullopt;
    return grow(std::move(g), id, rows);
  }

  // Whether a right operand is one matrix for all rows.
  bool matrix(TensorId t) const {
    const std::vector<int64_t> s = shape(t);
    return count(s, s.size() - 2) == 1;
  }
  bool fits(TensorId t) const {
    const std::vector<int64_t> s = shape(t);
    return s[s.size() - 1] * s[s.size() - 2] * size_in_bytes(type(t).dtype) <= kMostOperand;
  }
  // Whether blocks of whole rows are small enough, and many enough.
  static bool whole_rows(const std::vector<int64_t>& domain) {
    const int64_t rows = count(domain) / domain.back();
    return domain.back() <= kMostRow &&
           (rows >= default_threads() || count(domain) <= 2 * kBlockElements);
  }

  // Takes operators as they come while they fit, and keeps the most of them of which others see one
  // result. `reductions`: along the last axis.
  std::optional<Group> grow(Group g, OpId start, bool reductions) const {
    std::set<uint32_t> within;      // tensors
    std::set<uint32_t> downstream;  // other tensors that depend on these
    std::map<uint32_t, int> open;   // uses of tensors within by others
    Group best = g;
    const auto take = [&](OpId id) {
      const Op& op = graph_.op(id);
      for (TensorId t : op.inputs) {
        const auto it = open.find(t.index);
        if (it != open.end() && --it->second == 0) open.erase(it);
      }
      within.insert(op.result().index);
      open[op.result().index] = uses_[op.result().index];
      g.ops.push_back(id);
      if (open.size() == 1 && is_float(type(op.result()).dtype)) best = g;
    };
    take(start);
    bool closed = false;  // after the second product
    for (size_t i = start.index + 1; i < graph_.ops().size() && i < g.ops.back().index + kWindow;
         ++i) {
      const Op& op = graph_.ops()[i];
      const auto inside = [&](TensorId t) { return within.count(t.index) != 0; };
      const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), inside);
      const bool touched = any || std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
                             return downstream.count(t.index) != 0;
                           });
      if (!touched) continue;
      const bool free = !taken_[i] && !apart_[i] && op.num_results == 1 && any &&
                        std::none_of(op.inputs.begin(), op.inputs.end(),
                                     [&](TensorId t) { return downstream.count(t.index) != 0; });
      if (free && !closed && joins(g, op, inside, reductions)) {
        take(OpId(i));
        continue;
      }
      if (free && !closed && reductions && g.product.valid() && multiplies(g, op, inside)) {
        g.second = OpId(i);
        take(OpId(i));
        closed = true;
        continue;
      }
      if (free && closed && i != g.second.index && op.kind == OpKind::Transpose &&
          op.inputs[0] == graph_.op(g.ops.back()).result() && g.ops.back() == g.second &&
          keeps_last(op)) {
        take(OpId(i));
        continue;
      }
      for (uint32_t r = 0; r < op.num_results; ++r) downstream.insert(op.result(r).index);
    }
    if (best.ops.empty()) return std::nullopt;
    return best;
  }

  bool keeps_last(const Op& transpose) const {
    const auto& perm = graph_.attrs<PermAttrs>(transpose).perm;
    return perm.back() + 1 == int(perm.size());
  }

  bool joins(const Group& g, const Op& op, const std::function<bool(TensorId)>& inside,
             bool reductions) const {
    const Type& result = type(op.result());
    if (!is_float(result.dtype) && result.dtype != DType::Bool) return false;
    if (reduces_last(graph_, op)) return reductions && shape(op.inputs[0]) == g.domain;
    if (!has(op.kind, algebra::Pointwise)) return false;
    const std::vector<int64_t> out = extents(result.shape);
    if (out != g.domain && !(reductions && out == row_of(g.domain))) return false;
    const bool matrix_product = g.product.valid() && matrix(graph_.op(g.product).inputs[1]);
    return std::all_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
      if (inside(t) || graph_.producer(t).constant()) return true;
      return !matrix_product || folded(shape(t), g.domain).has_value();
    });
  }

  // Whether `op` multiplies what the group has computed with one more operand.
  bool multiplies(const Group& g, const Op& op, const std::function<bool(TensorId)>& inside) const {
    return op.kind == OpKind::Matmul && g.ops.size() > 1 && inside(op.inputs[0]) &&
           !inside(op.inputs[1]) && shape(op.inputs[0]) == g.domain &&
           shape(op.inputs[1]).size() == g.domain.size() && fits(op.inputs[1]) &&
           shape(op.result()).size() == g.domain.size() &&
           count(shape(op.result())) / shape(op.result()).back() ==
               count(g.domain) / g.domain.back() &&
           shape(op.result()).back() * 2 >= lanes_of(isa_, DType::F32);
  }

  // The shape of an operand that meets results [rows, columns]: all axes but the last as one.
  static std::optional<std::vector<int64_t>> folded(const std::vector<int64_t>& x,
                                                    const std::vector<int64_t>& domain) {
    const int64_t n = x.empty() ? 1 : x.back(), rows = x.empty() ? 1 : count(x) / n;
    if (n != 1 && n != domain.back()) return std::nullopt;
    if (rows == 1) return std::vector<int64_t>{n};
    if (rows == count(domain) / domain.back()) return std::vector<int64_t>{rows, n};
    return std::nullopt;
  }

  // --- kernels ----------------------------------------------------------------------------------

  // False where there is none after all.
  bool emit(const Group& g) {
    if (g.product.valid() && matrix(graph_.op(g.product).inputs[1])) return emit_product(g);
    return emit_rows(g);
  }

  TensorId reshaped(TensorId t, const std::vector<int64_t>& shape) {
    if (extents(to_.type(t).shape) == shape) return t;
    return build::reshape(to_, t, {shape_of(shape)});
  }

  // A block graph in the making: operands of the program and what they are in the block.
  struct Body {
    Graph block;
    std::vector<int> axes;  // of the domain, by dimension of the grid
    std::vector<int64_t> domain;
    std::vector<TensorId> operands;       // of the new program
    std::map<uint32_t, TensorId> values;  // by tensor of the old program
  };

  // How the grid cuts an operand of that shape, aligned with the domain from the right.
  static GridMap cuts(const Body& body, const std::vector<int64_t>& shape) {
    GridMap map = kNoGrid;
    for (size_t d = 0; d < body.axes.size(); ++d) {
      const int axis = body.axes[d] - int(body.domain.size() - shape.size());
      if (body.block.grid()[d] > 1 && axis >= 0 && shape[size_t(axis)] > 1) map[d] = int8_t(axis);
    }
    return map;
  }

  static TensorId iterate(Body& body, const Graph& program, TensorId operand, const GridMap& map) {
    const TensorId input = body.block.add_input(program.type(operand));
    body.operands.push_back(operand);
    IterAttrs iter;
    iter.imap = map;
    return build::iter(body.block, input, iter);
  }

  // The operand `t` of an operator inside, as it is or in the shape that `look` gives.
  TensorId operand(Body& body, TensorId t,
                   const std::function<std::vector<int64_t>(TensorId)>& look) {
    const auto known = body.values.find(t.index);
    if (known != body.values.end()) return known->second;
    const Op& producer = graph_.producer(t);
    TensorId value;
    if (producer.constant()) {
      value = body.block.add_const(*producer.constant(), {type(t).dtype, {}});
    } else {
      const TensorId given = reshaped(map_[t.index], look(t));
      value = iterate(body, to_, given, cuts(body, extents(to_.type(given).shape)));
    }
    return body.values[t.index] = value;
  }

  // Operators of the group from number `from` on, up to `to`.
  void inside(Body& body, const Group& g, size_t from, size_t to,
              const std::function<std::vector<int64_t>(TensorId)>& look) {
    for (size_t i = from; i < to; ++i) {
      const Op& op = graph_.op(g.ops[i]);
      std::vector<TensorId> inputs;
      for (TensorId t : op.inputs) inputs.push_back(operand(body, t, look));
      Attrs attrs = op.attrs;
      if (reduces_last(graph_, op))
        std::get<ReduceAttrs>(attrs).axes = {body.block.type(inputs[0]).rank() - 1};
      body.values[op.result().index] = body.block.add(op.kind, inputs, attrs);
    }
  }

  // Saves the group's result, of `shape` and cut by `map`, and replaces the group.
  bool finish(Body& body, const Group& g, TensorId value, const std::vector<int64_t>& shape,
              const GridMap& map) {
    const TensorId result = graph_.op(g.ops.back()).result();
    SaveAttrs save;
    save.type = {type(result).dtype, shape_of(shape)};
    save.omap = map;
    if (body.block.type(value).dtype != save.type.dtype) return false;
    if (body.block.type(value).shape != nominal_tile(save.type.shape, map, kNoLoops, body.block))
      return false;
    body.block.add_output(build::save(body.block, value, save));
    const OpId kernel = to_.add_graph_op(OpKind::Kernel, body.operands, std::move(body.block),
                                         {graph_.tensor(result).name});
    map_[result.index] = reshaped(to_.op(kernel).result(), this->shape(result));
    return true;
  }

  // The product is cut as one without followers is (lower_product).
  bool emit_product(const Group& g) {
    const Op& op = graph_.op(g.product);
    const int64_t n = g.domain.back(), m = count(g.domain) / n, k = shape(op.inputs[0]).back();
    const TensorId result = graph_.op(g.ops.back()).result();
    const ProductTiles t = cpu_lowering(isa_).split(type(op.result()).dtype, 1, m, n, k);
    Body body;
    body.domain = {m, n};
    body.block = Graph::block({1, t.row_blocks, t.column_blocks},
                              t.iterations > 1 ? std::vector<int64_t>{t.iterations}
                                               : std::vector<int64_t>{});
    body.axes = {-1, 0, 1};
    std::vector<TensorId> tiles;
    for (size_t i = 0; i < 2; ++i) {
      std::vector<int64_t> s = i == 0 ? std::vector<int64_t>{m, k} : std::vector<int64_t>{k, n};
      const TensorId given = reshaped(map_[op.inputs[i].index], s);
      const TensorId input = body.block.add_input(to_.type(given));
      body.operands.push_back(given);
      IterAttrs iter;
      if (i == 0 && t.row_blocks > 1) iter.imap[1] = 0;
      if (i == 1 && t.column_blocks > 1) iter.imap[2] = 1;
      if (t.iterations > 1) iter.fmap[0] = int8_t(1 - i);
      tiles.push_back(build::iter(body.block, input, iter));
    }
    TensorId product = body.block.add(OpKind::Matmul, tiles);
    if (t.iterations > 1) {
      AccumAttrs accum;
      accum.loops = {0};
      product = build::accum(body.block, product, accum);
    }
    body.values[op.result().index] = product;
    inside(body, g, 1, g.ops.size(),
           [&](TensorId x) { return folded(shape(x), g.domain).value(); });
    return finish(body, g, body.values[result.index], body.domain, cuts(body, body.domain));
  }

  // Rows, with products before and behind where there are any.
  bool emit_rows(const Group& g) {
    Body body;
    body.domain = g.domain;
    const int rank = int(g.domain.size());
    const int64_t n = g.domain.back();
    // Rows of a block, and how the leading axes are cut for that.
    int64_t rows = std::max<int64_t>(1, kBlockElements / n);
    if (g.product.valid()) {
      rows = std::max<int64_t>(16, kMostScores / (n * size_in_bytes(DType::F32)));
      const int64_t whole = count(g.domain) / n;
      rows = std::min(rows, std::max<int64_t>(16, whole / (4 * default_threads())));
    }
    std::vector<int64_t> grid;
    if (g.product.valid()) {
      for (int axis = 0; axis + 2 < rank; ++axis) {
        body.axes.push_back(axis);
        grid.push_back(g.domain[size_t(axis)]);
      }
      body.axes.push_back(rank - 2);
      grid.push_back(ceil_div(g.domain[size_t(rank - 2)], rows));
    } else {
      int64_t blocks = std::max<int64_t>(1, count(g.domain) / n / rows);
      for (int axis = 0; axis + 1 < rank && grid.size() < 3; ++axis) {
        const int64_t extent = g.domain[size_t(axis)];
        if (extent == 1) continue;
        body.axes.push_back(axis);
        grid.push_back(std::min(extent, blocks));
        blocks = std::max<int64_t>(1, blocks / extent);
      }
      // Few long rows of elements alone are cut too.
      if (grid.size() < 3 && blocks == 1 && count(g.domain) > 2 * kBlockElements && !reducing(g)) {
        const int64_t all = count(grid);
        const int64_t wanted = count(g.domain) / kBlockElements;
        if (wanted > all) {
          body.axes.push_back(rank - 1);
          grid.push_back(std::min(ceil_div(wanted, all), std::max<int64_t>(1, n / 256)));
        }
      }
      if (grid.empty()) {
        body.axes.push_back(-1);
        grid.push_back(1);
      }
    }
    body.block = Graph::block(grid, {});
    const auto as_is = [&](TensorId t) { return shape(t); };
    if (!g.product.valid()) {
      inside(body, g, 0, g.ops.size(), as_is);
      const TensorId result = graph_.op(g.ops.back()).result();
      return finish(body, g, body.values[result.index], shape(result), cuts(body, shape(result)));
    }
    const Op& first = graph_.op(g.product);
    const TensorId left = matrix_operand(body, first.inputs[0], true);
    body.values[first.result().index] =
        build::matmul(body.block, {left, matrix_operand(body, first.inputs[1], false)});
    const auto at = std::find(g.ops.begin(), g.ops.end(), g.second);
    const size_t behind = size_t(at - g.ops.begin());
    if (at == g.ops.end()) {
      inside(body, g, 1, g.ops.size(), as_is);
      const TensorId result = graph_.op(g.ops.back()).result();
      return finish(body, g, body.values[result.index], shape(result), cuts(body, shape(result)));
    }
    const Op& second = graph_.op(g.second);
    const TensorId weights = second.inputs[0];
    // Quotients by what all of a row share are taken of the second product, which is narrower.
    const Op& last = graph_.op(g.ops[behind - 1]);
    const bool later = last.result() == weights && last.kind == OpKind::Div &&
                       uses_[weights.index] == 1 && shape(last.inputs[0]) == g.domain &&
                       shape(last.inputs[1]) == row_of(g.domain) &&
                       shape(second.result()).back() <= n;
    inside(body, g, 1, behind - (later ? 1 : 0), as_is);
    TensorId divisor;
    if (later) divisor = operand(body, last.inputs[1], as_is);
    const TensorId x = operand(body, later ? last.inputs[0] : weights, as_is);
    TensorId value = build::matmul(body.block, {x, matrix_operand(body, second.inputs[1], false)});
    if (later) value = body.block.add(OpKind::Div, {value, divisor});
    const std::vector<int64_t> whole = shape(second.result());
    body.values[second.result().index] = value;
    if (behind + 1 == g.ops.size()) return finish(body, g, value, whole, cuts(body, whole));
    // Saved in another order of axes.
    const auto& perm = graph_.attrs<PermAttrs>(graph_.op(g.ops.back())).perm;
    value = build::transpose(body.block, value, {perm});
    return finish(body, g, value, shape(graph_.op(g.ops.back()).result()),
                  permuted(cuts(body, whole), perm));
  }

  bool reducing(const Group& g) const {
    return std::any_of(
        g.ops.begin(), g.ops.end(), [&](OpId id) { return reduces_last(graph_, graph_.op(id)); });
  }

  // Axes of an operand as axes of its transpose: result axis i is operand axis perm[i].
  static GridMap permuted(GridMap map, const std::vector<int>& perm) {
    for (int8_t& axis : map)
      if (axis >= 0) axis = int8_t(std::find(perm.begin(), perm.end(), axis) - perm.begin());
    return map;
  }

  // An operand of a batched product; a transpose is read through. Grid dimensions before the last
  // are batches, the last one is rows of left operands.
  TensorId matrix_operand(Body& body, TensorId t, bool left) {
    GridMap map = cuts(body, shape(t));
    if (!left) map[body.axes.size() - 1] = -1;
    const Op& producer = graph_.producer(t);
    if (producer.kind != OpKind::Transpose || apart_[graph_.tensor(t).producer.index] ||
        taken_[graph_.tensor(t).producer.index])
      return iterate(body, to_, map_[t.index], map);
    const auto& perm = graph_.attrs<PermAttrs>(producer).perm;
    for (int8_t& axis : map)
      if (axis >= 0) axis = int8_t(perm[size_t(axis)]);
    const TensorId tile = iterate(body, to_, map_[producer.inputs[0].index], map);
    return build::transpose(body.block, tile, {perm});
  }

  const Graph& graph_;
  const std::vector<bool>& apart_;  // operators that stay as they are
  const CpuIsa isa_;
  const std::vector<int> uses_;
  std::vector<bool> taken_;  // operators of kernels
  Graph to_;
  std::vector<TensorId> map_;  // what a tensor has become
};

}  // namespace

Graph fuse_operators(const Graph& given, CpuIsa isa, bool weights) {
  const bool fixed = std::all_of(given.tensors().begin(), given.tensors().end(),
                                 [](const Tensor& t) { return is_static(t.type.shape); });
  if (given.level() != Level::Kernel || !fixed) return given;
  const Graph graph = with_staged_reductions(given);
  std::vector<bool> apart(graph.ops().size(), false);
  if (weights) apart = computed_once(graph);
  for (const ImageStep& s : image_steps(graph, isa))
    for (OpId id : s.after) apart[id.index] = true;
  return Fuser(graph, apart, isa).run();
}

}  // namespace tessera
