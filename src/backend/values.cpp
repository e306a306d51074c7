#include "backend/values.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/interruption.h"
#include "ir/axis_reads.h"
#include "ir/infer.h"

namespace tessera {
namespace {

uint8_t folded_loops(const AccumAttrs& a) {
  uint8_t loops = 0;
  for (int l : a.loops) loops = uint8_t(loops | 1u << l);
  return loops;
}

class KernelValuesBuilder {
 public:
  KernelValuesBuilder(const Graph& graph, const std::vector<Layout>& layouts)
      : graph_(graph), phase_(phases(graph)) {
    result_.argument_layouts = layouts;
    result_.grid = graph.grid();
    result_.loops = graph.loops();
    for (TensorId input : graph.inputs()) add_argument(graph.type(input));
    result_.operands = int(graph.inputs().size());
  }

  KernelValues run() {
    std::vector<int> ids(graph_.tensors().size(), -1);
    const std::vector<int> uses = use_counts(graph_);
    std::vector<bool> whole(graph_.tensors().size(), false);  // products that leave their loops
    for (const Op& op : graph_.ops()) {
      if (op.kind != OpKind::Accum || uses[op.inputs[0].index] != 1 || !leaves_loops(op)) continue;
      whole[op.inputs[0].index] = true;
    }
    for (const Op& op : graph_.ops()) {
      if (is_input(op.kind)) continue;
      if (is_thread(op.kind)) {
        std::vector<int> inputs = mapped(op.inputs, [&](TensorId t) { return ids[t.index]; });
        const std::vector<int> results = dissolve(graph_.body(op), inputs);
        for (uint32_t i = 0; i < op.num_results; ++i) ids[op.result(i).index] = results[i];
        continue;
      }
      if (whole[op.result().index]) continue;
      if (op.kind == OpKind::Accum && whole[op.inputs[0].index]) {
        ids[op.result().index] =
            without_loops(op.inputs[0], folded_loops(std::get<AccumAttrs>(op.attrs)), ids);
        result_.values.back().phase = phase_[op.result().index];
        continue;
      }
      Value value{.kind = op.kind, .attrs = op.attrs, .phase = phase_[op.result().index]};
      if (is_load(op.kind))
        value.argument = argument_of(op.inputs[0]);
      else
        for (TensorId t : op.inputs) value.inputs.push_back(ids[t.index]);
      if (is_store(op.kind)) {
        value.argument = int(result_.argument_extents.size());
        add_argument(graph_.type(op.result()));
      }
      ids[op.result().index] = add(std::move(value), graph_.type(op.result()));
    }
    order_results(ids);
    return std::move(result_);
  }

 private:
  void add_argument(const Type& type) {
    result_.argument_extents.push_back(extents(type.shape));
    result_.argument_dtypes.push_back(type.dtype);
  }

  // The axis of `t` that all of `loops` cut, -1 where none of them does; nullopt where they cut
  // different ones, or where `t` is more than a view of an operand (with `pointwise`, an element by
  // element function).
  std::optional<int> cut_axis(TensorId t, uint8_t loops, bool pointwise) const {
    if ((phase_[t.index].varies & loops) == 0) return -1;
    const Op& op = graph_.producer(t);
    const int rank = graph_.type(t).rank();
    if (is_load(op.kind)) {
      const auto& a = std::get<IterAttrs>(op.attrs);
      std::optional<int> axis;
      for (size_t l = 0; l < graph_.loops().size(); ++l) {
        if ((loops >> l & 1) == 0) continue;
        if (a.fmap[l] < 0 || (axis && *axis != a.fmap[l])) return std::nullopt;
        axis = a.fmap[l];
      }
      return axis;
    }
    const auto operand = [&](size_t i) { return cut_axis(op.inputs[i], loops, pointwise); };
    if (op.kind == OpKind::Transpose) {
      const std::optional<int> axis = operand(0);
      if (!axis) return axis;
      const auto& perm = std::get<PermAttrs>(op.attrs).perm;
      return int(std::ranges::find(perm, *axis) - perm.begin());
    }
    if (adds_or_drops_ones(op.kind)) {
      std::optional<int> axis = operand(0);
      if (!axis) return axis;
      const auto& axes = std::get<AxesAttrs>(op.attrs).axes;
      if (op.kind == OpKind::Unsqueeze)
        for (int a : axes) *axis += a <= *axis ? 1 : 0;  // ascending
      else
        *axis -= int(std::ranges::lower_bound(axes, *axis) - axes.begin());
      return axis;
    }
    if (!pointwise) return std::nullopt;
    std::vector<Cut> operands;
    for (TensorId x : op.inputs) {
      const std::optional<int> cut = cut_axis(x, loops, true);
      if (!cut) return cut;
      operands.push_back({graph_.type(x), *cut < 0 ? 0 : graph_.type(x).rank() - *cut});
    }
    std::optional<int> from_end;
    if (is_thread(op.kind))
      from_end = cut_in(graph_.body(op), operands, t.index - op.result().index);
    else if (has(op.kind, algebra::Pointwise))
      from_end = cut_of(operands);
    if (!from_end) return from_end;
    return *from_end == 0 ? -1 : rank - *from_end;
  }

  // A value and the axis that loops cut, counted from the end from 1 on; 0: none.
  struct Cut {
    Type type;
    int from_end = 0;
  };
  // The same for an element by element function of the operands; nullopt where they do not agree.
  static std::optional<int> cut_of(const std::vector<Cut>& operands) {
    int axis = 0;
    for (const Cut& x : operands) {
      if (x.from_end == 0) continue;
      if (axis != 0 && axis != x.from_end) return std::nullopt;
      axis = x.from_end;
    }
    for (const Cut& x : operands)  // what the loops leave alone must be the same along that axis
      if (axis != 0 && x.from_end == 0 && x.type.rank() >= axis &&
          x.type.shape[size_t(x.type.rank() - axis)].extent != 1)
        return std::nullopt;
    return axis;
  }
  // The same for a result of a thread graph of such functions.
  static std::optional<int> cut_in(const Graph& thread, const std::vector<Cut>& operands,
                                   size_t result) {
    std::vector<int> from_end(thread.tensors().size(), 0);
    for (size_t i = 0; i < operands.size(); ++i)
      from_end[thread.inputs()[i].index] = operands[i].from_end;
    for (const Op& op : thread.ops()) {
      if (is_given(op.kind)) continue;
      if (!has(op.kind, algebra::Pointwise)) return std::nullopt;
      std::vector<Cut> inputs;
      for (TensorId x : op.inputs) inputs.push_back({thread.type(x), from_end[x.index]});
      const std::optional<int> cut = cut_of(inputs);
      if (!cut) return cut;
      from_end[op.result().index] = *cut;
    }
    return from_end[thread.outputs()[result].index];
  }

  // Whether a sum of products can be one product outside the loops: each loop cuts what is
  // contracted in both operands, the right one lies in panels, and the left one stays in a cache.
  bool leaves_loops(const Op& accumulator) const {
    const auto& a = std::get<AccumAttrs>(accumulator.attrs);
    const Op& product = graph_.producer(accumulator.inputs[0]);
    const uint8_t loops = folded_loops(a);
    if (a.kind != AccumKind::Sum || product.kind != OpKind::Matmul) return false;
    const TensorId x = product.inputs[0], y = product.inputs[1];
    if (cut_axis(x, loops, true) != graph_.type(x).rank() - 1 ||
        cut_axis(y, loops, false) != graph_.type(y).rank() - 2)
      return false;
    TensorId source = y;
    while (!is_load(graph_.producer(source).kind)) source = graph_.producer(source).inputs[0];
    const size_t argument = size_t(argument_of(graph_.producer(source).inputs[0]));
    const std::vector<Layout>& layouts = result_.argument_layouts;
    if (argument >= layouts.size() || layouts[argument].panel == 0) return false;
    double bytes = double(num_elements(graph_.type(x).shape)) *
                   std::max(4, size_in_bytes(graph_.type(x).dtype));
    for (int l : a.loops) bytes *= double(graph_.loops()[size_t(l)]);
    return bytes <= kMostLeftBytes;
  }

  // The value of `t` with whole axes where `loops` cut them.
  int without_loops(TensorId t, uint8_t loops, const std::vector<int>& ids) {
    if ((phase_[t.index].varies & loops) == 0) return ids[t.index];
    const auto known = without_loops_.find({t.index, loops});
    if (known != without_loops_.end()) return known->second;
    return without_loops_[{t.index, loops}] = make_without_loops(t, loops, ids);
  }

  int make_without_loops(TensorId t, uint8_t loops, const std::vector<int>& ids) {
    const Op& op = graph_.producer(t);
    if (is_thread(op.kind)) {
      auto inputs = mapped(op.inputs, [&](TensorId x) { return without_loops(x, loops, ids); });
      return dissolve(graph_.body(op), inputs)[t.index - op.result().index];
    }
    Value value{.kind = op.kind, .attrs = op.attrs, .phase = phase_[t.index]};
    value.phase.varies = uint8_t(value.phase.varies & ~loops);
    if (is_load(op.kind)) {
      value.argument = argument_of(op.inputs[0]);
      auto& a = std::get<IterAttrs>(value.attrs);
      for (size_t l = 0; l < graph_.loops().size(); ++l)
        if ((loops >> l & 1) != 0) a.fmap[l] = -1;
      const Type& whole = graph_.type(op.inputs[0]);
      return add(std::move(value),
                 {whole.dtype, nominal_tile(whole.shape, a.imap, a.fmap, graph_)});
    }
    for (TensorId x : op.inputs) value.inputs.push_back(without_loops(x, loops, ids));
    const Type type = inferred(value);
    return add(std::move(value), type);
  }

  // The type that follows from the operands of `value`.
  Type inferred(Value& value) const {
    std::vector<Type> types;
    for (int id : value.inputs) {
      const Value& v = result_.values[size_t(id)];
      types.push_back({v.dtype, shape_of(v.shape())});
    }
    return infer_types(value.kind, types, value.attrs, graph_, nullptr)[0];
  }

  int argument_of(TensorId t) const {
    const auto& inputs = graph_.inputs();
    const auto it = std::ranges::find(inputs, t);
    CHECK(it != inputs.end()) << "an iterator reads something that is no argument";
    return int(it - inputs.begin());
  }

  // Savers were numbered as they came; results are numbered as the graph lists its outputs.
  void order_results(const std::vector<int>& ids) {
    const std::vector<std::vector<int64_t>> shapes = result_.argument_extents;
    const std::vector<DType> dtypes = result_.argument_dtypes;
    const size_t saves = shapes.size() - size_t(result_.operands);
    CHECK(saves == graph_.outputs().size()) << "savers and outputs differ in number";
    for (size_t i = 0; i < saves; ++i) {
      Value& save = result_.values[size_t(ids[graph_.outputs()[i].index])];
      CHECK(is_store(save.kind)) << "a block graph returns what is not saved";
      const size_t to = size_t(result_.operands) + i;
      result_.argument_extents[to] = shapes[size_t(save.argument)];
      result_.argument_dtypes[to] = dtypes[size_t(save.argument)];
      save.argument = int(to);
    }
  }

  // The operands may have other extents than the thread graph's.
  std::vector<int> dissolve(const Graph& thread, const std::vector<int>& inputs) {
    std::vector<int> ids(thread.tensors().size(), -1);
    for (size_t i = 0; i < inputs.size(); ++i) ids[thread.inputs()[i].index] = inputs[i];
    for (const Op& op : thread.ops()) {
      if (is_input(op.kind)) continue;
      Value value{.kind = op.kind, .attrs = op.attrs};
      for (TensorId t : op.inputs) {
        value.inputs.push_back(ids[t.index]);
        const Phase& p = result_.values[size_t(ids[t.index])].phase;
        value.phase.varies |= p.varies;
        value.phase.folded |= p.folded;
      }
      const Type type = value.inputs.empty() ? thread.type(op.result()) : inferred(value);
      ids[op.result().index] = add(std::move(value), type);
    }
    return mapped(thread.outputs(), [&](TensorId t) { return ids[t.index]; });
  }

  int add(Value value, const Type& type) {
    interruption_point();
    const int id = int(result_.values.size());
    value.dtype = type.dtype;
    for (int input : value.inputs) value.grid |= result_.values[size_t(input)].grid;
    if (is_store(value.kind)) {
      // Extents of the tile, not of the whole result.
      const auto& a = std::get<SaveAttrs>(value.attrs);
      value.extents = tile_extents(id, extents(type.shape), a.omap, a.fmap);
    } else if (is_load(value.kind)) {
      const auto& a = std::get<IterAttrs>(value.attrs);
      const size_t argument = size_t(value.argument);
      value.extents = tile_extents(id, result_.argument_extents[argument], a.imap, a.fmap);
      for (size_t d = 0; d < graph_.grid().size(); ++d)
        value.grid |= a.imap[d] >= 0 && graph_.grid()[d] > 1;
    } else {
      for (const Dim& dim : type.shape) value.extents.push_back({dim.extent, "", 0});
      derive(value, id);
    }
    result_.values.push_back(std::move(value));
    return id;
  }

  std::vector<Extent> tile_extents(int id, const std::vector<int64_t>& whole, const GridMap& grid,
                                   const LoopMap& loop) const {
    std::vector<Extent> result;
    for (size_t axis = 0; axis < whole.size(); ++axis) {
      Extent e{whole[axis], "", 0, 0};
      bool exact = true;
      int64_t parts = 1, splits = 0;
      for (size_t d = 0; d < graph_.grid().size(); ++d) {
        if (grid[d] != int(axis)) continue;
        exact = exact && e.nominal % graph_.grid()[d] == 0;
        e.nominal = ceil_div(e.nominal, graph_.grid()[d]);
        parts *= graph_.grid()[d];
        ++splits;
      }
      uint8_t loops = 0;
      for (size_t l = 0; l < graph_.loops().size(); ++l) {
        if (loop[l] != int(axis)) continue;
        exact = exact && e.nominal % graph_.loops()[l] == 0;
        e.nominal = ceil_div(e.nominal, graph_.loops()[l]);
        parts *= graph_.loops()[l];
        ++splits;
        loops = uint8_t(loops | 1u << l);
      }
      if (!exact) {
        e.actual = "n" + std::to_string(id) + "_" + std::to_string(axis);
        e.loops = loops;
        // Of tiles within tiles, every outer one has a last one.
        if (splits == 1) e.last = std::max<int64_t>(0, whole[axis] - (parts - 1) * e.nominal);
      }
      result.push_back(e);
    }
    return result;
  }

  [[noreturn]] static void unsupported(const Value& value, const std::string& what) {
    throw Error(ErrorKind::Unsupported,
                std::string(name(value.kind)) + " in a block: " + what +
                    " where tiles do not divide the tensor; choose a dividing grid or loop");
  }

  const Value& input(const Value& value, size_t i) const {
    return result_.values[size_t(value.inputs[i])];
  }

  // Result axis `to` has the extent of axis `from` of operand `i`, if that is not a broadcast 1.
  void inherit(Value& value, size_t to, size_t i, size_t from) const {
    const Extent& e = input(value, i).extents[from];
    Extent& r = value.extents[to];
    if (e.nominal == r.nominal && !e.exact()) r = e;
  }
  void inherit_broadcast(Value& value, size_t i, size_t result_axes) const {
    const size_t rank = input(value, i).extents.size();
    const size_t skip = result_axes - std::min(result_axes, rank);
    for (size_t axis = 0; axis < rank; ++axis) inherit(value, skip + axis, i, axis);
  }

  // Extents of the result from those of the operands.
  void derive(Value& value, int id) {
    interruption_point();
    if (has(value.kind, algebra::Pointwise)) {
      for (size_t i = 0; i < value.inputs.size(); ++i)
        inherit_broadcast(value, i, value.extents.size());
      return;
    }
    if (const auto* a = std::get_if<ReduceAttrs>(&value.attrs)) {
      size_t to = 0;
      for (size_t axis = 0; axis < input(value, 0).extents.size(); ++axis) {
        const bool gone = std::ranges::binary_search(a->axes, int(axis));
        if (!gone) inherit(value, to, 0, axis);
        to += !gone || a->keepdims ? 1 : 0;
      }
      return;
    }
    const int rank = value.inputs.empty() ? 0 : input(value, 0).rank();
    if (const auto reads = axis_reads(value.kind, value.attrs, rank, value.rank()))
      return derive_reads(value, *reads);
    switch (value.kind) {
    case OpKind::Matmul:
    case OpKind::ConcatMatmul: return derive_product(value);
    case OpKind::Reshape: return derive_reshape(value);
    case OpKind::Concat:
    case OpKind::Stack: return derive_joined(value);
    case OpKind::Pad: {
      const auto& a = std::get<PadAttrs>(value.attrs);
      for (size_t i = 0; i < a.low.size(); ++i)
        if (a.low[i] == 0 && a.high[i] == 0)
          inherit(value, i, 0, i);
        else
          require_exact(value, 0, i, "an axis cannot be padded");
      return;
    }
    case OpKind::Triu:
    case OpKind::Tril:
    case OpKind::Cumsum:
      for (size_t i = 0; i < value.extents.size(); ++i) inherit(value, i, 0, i);
      return;
    case OpKind::Gather: {
      const size_t axis = size_t(std::get<AxisAttrs>(value.attrs).axis);
      const size_t inner = input(value, 1).extents.size();
      for (size_t i = 0; i < axis; ++i) inherit(value, i, 0, i);
      for (size_t i = 0; i < inner; ++i) inherit(value, axis + i, 1, i);
      for (size_t i = axis + 1; i < input(value, 0).extents.size(); ++i)
        inherit(value, inner + i - 1, 0, i);
      return;
    }
    case OpKind::Accum:
    case OpKind::AccumRescale: return derive_accumulator(value, id);
    case OpKind::Const:
    case OpKind::Iota: return;
    default: break;  // never reaches a block's values
    }
    throw Error(ErrorKind::Unsupported,
                std::string(name(value.kind)) + " cannot be generated inside a block");
  }

  void require_exact(const Value& value, size_t i, size_t axis, const char* what) const {
    if (!input(value, i).extents[axis].exact()) unsupported(value, what);
  }

  void derive_reads(Value& value, const std::vector<AxisRead>& reads) const {
    for (size_t i = 0; i < reads.size(); ++i) {
      const int to = reads[i].axis;
      if (to < 0) continue;
      if (value.extents[size_t(to)].nominal == input(value, 0).extents[i].nominal)
        inherit(value, size_t(to), 0, i);
      else
        require_exact(value, 0, i, "an axis cannot be cut or repeated");
    }
  }

  void derive_product(Value& value) const {
    const size_t rank = value.extents.size();
    const size_t right = value.kind == OpKind::Matmul ? 1 : 2;
    for (size_t i = 0; i < value.inputs.size(); ++i) {
      const size_t n = input(value, i).extents.size();
      for (size_t axis = 0; axis + 2 < n; ++axis) inherit(value, rank - n + axis, i, axis);
    }
    inherit(value, rank - 2, 0, input(value, 0).extents.size() - 2);
    inherit(value, rank - 1, right, input(value, right).extents.size() - 1);
  }

  // Axes other than 1 that stay in place keep their extent; others must be whole.
  void derive_reshape(Value& value) const {
    const Value& x = input(value, 0);
    const auto wide = [](const Value& v) {
      std::vector<size_t> axes;
      for (size_t i = 0; i < v.extents.size(); ++i)
        if (v.extents[i].nominal != 1) axes.push_back(i);
      return axes;
    };
    const std::vector<size_t> from = wide(x), to = wide(value);
    const bool same = std::ranges::equal(from, to, [&](size_t a, size_t b) {
      return x.extents[a].nominal == value.extents[b].nominal;
    });
    if (same)
      for (size_t i = 0; i < from.size(); ++i) inherit(value, to[i], 0, from[i]);
    else if (std::ranges::any_of(x.extents, [](const Extent& e) { return !e.exact(); }))
      unsupported(value, "axes cannot be merged or split");
  }

  void derive_joined(Value& value) const {
    const size_t joined = size_t(std::get<AxisAttrs>(value.attrs).axis);
    for (size_t i = 0; i < value.inputs.size(); ++i)
      for (size_t axis = 0; axis < input(value, i).extents.size(); ++axis)
        if (value.kind == OpKind::Stack)
          inherit(value, axis + (axis >= joined ? 1 : 0), i, axis);
        else if (axis != joined)
          inherit(value, axis, i, axis);
        else
          require_exact(value, i, axis, "the joined axis is shorter");
  }

  // An axis shortened by the folded loop itself is whole afterwards: the missing elements hold the
  // neutral element.
  void derive_accumulator(Value& value, int id) const {
    const auto& a = std::get<AccumAttrs>(value.attrs);
    const uint8_t folded = folded_loops(a);
    for (size_t i = 0; i < value.extents.size(); ++i) {
      const Extent& e = input(value, 0).extents[i];
      const bool joined = a.kind == AccumKind::Concat && int(i) == a.axis;
      if (joined && !e.exact())
        value.extents[i].actual = "n" + std::to_string(id) + "_" + std::to_string(i);
      else if (!joined && (e.loops & folded) == 0)
        value.extents[i] = e;
    }
  }

  // A left operand that is read from end to end for each panel should stay in a core's cache.
  static constexpr double kMostLeftBytes = 512 * 1024;

  const Graph& graph_;
  std::vector<Phase> phase_;
  std::map<std::pair<uint32_t, uint8_t>, int> without_loops_;  // what without_loops() made
  KernelValues result_;
};

}  // namespace

uint8_t update_loops(const Value& value) {
  const uint8_t loops = value.phase.varies;
  if (!is_accumulator(value.kind)) return loops;
  return uint8_t(loops | folded_loops(std::get<AccumAttrs>(value.attrs)));
}

bool continues(uint8_t inner, uint8_t outer, int next) {
  if ((inner & outer) != outer) return false;
  const unsigned rest = inner & ~unsigned(outer);
  return rest != 0 && __builtin_ctz(rest) == next;
}

const GridMap& grid_map(const Value& tile) {
  return is_load(tile.kind) ? std::get<IterAttrs>(tile.attrs).imap
                            : std::get<SaveAttrs>(tile.attrs).omap;
}
const LoopMap& loop_map(const Value& tile) {
  return is_load(tile.kind) ? std::get<IterAttrs>(tile.attrs).fmap
                            : std::get<SaveAttrs>(tile.attrs).fmap;
}

int64_t elements_of(const std::vector<Extent>& extents) {
  return product_of<int64_t>(extents, &Extent::nominal);
}

std::vector<int64_t> Value::shape() const { return mapped(extents, &Extent::nominal); }

std::vector<std::vector<int>> KernelValues::users() const {
  std::vector<std::vector<int>> result(values.size());
  for (size_t i = 0; i < values.size(); ++i)
    for (int input : values[i].inputs) result[size_t(input)].push_back(int(i));
  return result;
}

Memory KernelValues::argument_memory(int argument, const std::string& pointer) const {
  const size_t i = size_t(argument);
  Memory m{pointer, argument_dtypes[i], argument_pitch(argument)};
  if (i >= argument_layouts.size() || argument_layouts[i].panel == 0) return m;
  const Layout& layout = argument_layouts[i];
  const size_t n = layout.axis(argument_extents[i].size() - 1);
  m.panel = layout.panel;
  m.panel_pitch = m.strides[n];
  m.strides[n] = 1;
  return m;
}

std::vector<int64_t> KernelValues::argument_pitch(int argument) const {
  const size_t i = size_t(argument);
  const std::vector<int64_t>& shape = argument_extents[i];
  if (i >= argument_layouts.size() || argument_layouts[i].row_major())
    return contiguous_strides(shape);
  const Layout& layout = argument_layouts[i];
  if (layout.view()) return layout.strides;
  const size_t rank = shape.size();
  std::vector<int64_t> pitch(rank);
  int64_t below = 1;
  for (size_t at = rank; at-- > 0;) {
    pitch[layout.axis(at)] = below;
    const int64_t extent = shape[layout.axis(at)];
    if (layout.panel > 0 && at + 1 == rank)
      below *= panel_columns(layout, extent);
    else if (layout.panel > 0 && at + 2 == rank)
      below *= ceil_div(extent, layout.group) * layout.group;
    else
      below *= extent;
  }
  if (layout.panel > 0) {
    // A panel's elements over its columns. Rows are looked up at multiples of the group.
    pitch[layout.axis(rank - 1)] =
        ceil_div(shape[layout.axis(rank - 2)], layout.group) * layout.group;
    pitch[layout.axis(rank - 2)] = layout.panel;
  }
  return pitch;
}

int64_t KernelValues::argument_offset(int argument) const {
  const size_t i = size_t(argument);
  return i < argument_layouts.size() ? argument_layouts[i].offset : 0;
}

const Layout* KernelValues::tiles_of(int argument, size_t axis) const {
  const size_t i = size_t(argument);
  if (i >= argument_layouts.size() || argument_layouts[i].tile == 0) return nullptr;
  const size_t n = argument_layouts[i].axis(argument_extents[i].size() - 1);
  return axis == n ? &argument_layouts[i] : nullptr;
}

KernelValues kernel_values(const Graph& block_graph, const std::vector<Layout>& layouts) {
  return KernelValuesBuilder(block_graph, layouts).run();
}

std::vector<KernelValues::Split> KernelValues::splits(const Value& tile, size_t axis) const {
  const GridMap& blocks = grid_map(tile);
  const LoopMap& iterations = loop_map(tile);
  int64_t extent = argument_extents[size_t(tile.argument)][axis];
  std::vector<Split> result;
  for (size_t d = 0; d < grid.size(); ++d) {
    if (blocks[d] != int(axis)) continue;
    extent = ceil_div(extent, grid[d]);
    result.push_back({"g" + std::to_string(d), extent});
  }
  for (size_t l = 0; l < loops.size(); ++l) {
    if (iterations[l] != int(axis)) continue;
    extent = ceil_div(extent, loops[l]);
    result.push_back({"l" + std::to_string(l), extent});
  }
  return result;
}

int KernelValues::same_scales(int id, const std::vector<bool>& needed) const {
  const Value& v = values[size_t(id)];
  const auto maxima = [&](const Value& accumulator) {  // axes of extent 1 do not matter
    const Value* m = &values[size_t(accumulator.inputs[1])];
    while (adds_or_drops_ones(m->kind)) m = &values[size_t(m->inputs[0])];
    return m;
  };
  for (int i = 0; i < id; ++i) {
    const Value& u = values[size_t(i)];
    if (u.kind == OpKind::AccumRescale && needed[size_t(i)] && maxima(u) == maxima(v) &&
        u.attrs == v.attrs && u.phase == v.phase && u.dtype == v.dtype)
      return i;
  }
  return id;
}

KernelValues operator_values(const Graph& graph, const Op& op, const std::vector<Layout>& layouts) {
  const Type& type = graph.type(op.result());
  auto shapes = mapped(op.inputs, [&](TensorId t) { return extents(graph.type(t).shape); });
  shapes.push_back(extents(type.shape));
  Value result{.kind = op.kind, .attrs = op.attrs, .dtype = type.dtype};
  if (is_reshape(op.kind)) {
    shapes = {{num_elements(type.shape)}, {num_elements(type.shape)}};
    result.kind = OpKind::Reshape;
    result.attrs = ShapeAttrs{{Dim(num_elements(type.shape))}};
  } else if (has(op.kind, algebra::Pointwise) &&
             std::ranges::none_of(layouts, [](const Layout& l) { return l.view(); })) {
    shapes = merged_axes(std::move(shapes));
  }
  const auto set_extents = [](Value& v, const std::vector<int64_t>& shape) {
    for (int64_t n : shape) v.extents.push_back({n, "", 0});
  };
  KernelValues kernel;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    Value v;
    v.dtype = graph.type(op.inputs[i]).dtype;
    set_extents(v, shapes[i]);
    v.in_memory = true;
    v.memory = {"a" + std::to_string(i), v.dtype,
                i < layouts.size() && layouts[i].view() ? layouts[i].strides
                                                        : contiguous_strides(shapes[i])};
    result.inputs.push_back(int(i));
    kernel.values.push_back(std::move(v));
  }
  set_extents(result, shapes.back());
  kernel.values.push_back(std::move(result));
  return kernel;
}

std::vector<std::vector<int64_t>> merged_axes(std::vector<std::vector<int64_t>> shapes) {
  const size_t rank = shapes.back().size();
  for (auto& s : shapes) s.insert(s.begin(), rank - s.size(), 1);
  const std::vector<int64_t> whole = shapes.back();
  std::vector<std::vector<int64_t>> merged(shapes.size());
  for (size_t axis = 0; axis < rank; ++axis) {
    if (whole[axis] == 1) continue;
    bool fits = !merged.back().empty();
    for (size_t i = 0; fits && i < shapes.size(); ++i)
      fits = (shapes[i][axis] == 1) == (merged[i].back() == 1);
    for (size_t i = 0; i < shapes.size(); ++i)
      if (fits)
        merged[i].back() *= shapes[i][axis];
      else
        merged[i].push_back(shapes[i][axis]);
  }
  return merged;
}

std::vector<int64_t> turned_strides(const Value& value, const std::vector<int64_t>& strides) {
  const auto reads = axis_reads(value.kind, value.attrs, int(strides.size()), value.rank());
  std::vector<int64_t> turned(value.extents.size(), 0);
  for (size_t d = 0; d < strides.size(); ++d)
    if ((*reads)[d].axis >= 0) turned[size_t((*reads)[d].axis)] = strides[d];
  return turned;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& extents) {
  std::vector<int64_t> strides(extents.size(), 1);
  for (size_t i = extents.size(); i-- > 1;) strides[i - 1] = strides[i] * extents[i];
  return strides;
}

}  // namespace tessera
