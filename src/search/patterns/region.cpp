#include "search/patterns/region.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "ir/build.h"
#include "search/patterns/axes.h"
#include "search/patterns/loops.h"

namespace tessera::patterns {
namespace {

Region region(const Graph& g, const std::set<uint32_t>& ops, OpId root) {
  std::set<uint32_t> needed = {root.index};
  for (uint32_t i = root.index + 1; i-- > 0;)
    if (needed.count(i))
      for (TensorId t : g.op(OpId(i)).inputs) {
        const OpId from = g.tensor(t).producer;
        const bool own = !is_input(g.op(from).kind) && is_leaf(g.op(from).kind);
        if (ops.count(from.index) || own) needed.insert(from.index);
      }
  Region r;
  std::map<uint32_t, TensorId> inside;
  std::vector<TensorId> map(g.tensors().size());
  for (uint32_t i : needed)
    for (TensorId t : g.op(OpId(i)).inputs) {
      if (needed.count(g.tensor(t).producer.index) || inside.count(t.index)) continue;
      inside[t.index] = map[t.index] =
          r.graph.add_input(g.tensor(t).type, g.tensor(t).name, g.is_weight(t));
      r.inputs.push_back(t);
    }
  for (uint32_t i : needed) {
    copy_op(g, g.op(OpId(i)), r.graph, map);
    if (!is_leaf(g.op(OpId(i)).kind)) r.ops.push_back(OpId(i));
  }
  r.output = g.op(root).result();
  r.graph.add_output(map[r.output.index]);
  return r;
}

std::optional<Rational> unchanged(const Rational& r) { return r; }

// An operator's attributes, the result's shape among them a new one.
template <class Shapes> std::optional<Attrs> with_shape(const Op& op, Shapes&& shape_of) {
  if (!std::holds_alternative<ShapeAttrs>(op.attrs)) return op.attrs;
  return ShapeAttrs{shape_of(op.result())};
}

// Copies a graph operator by operator under new shapes of its inputs; `fix` gives attributes, and
// `value` constants.
template <class Shapes, class Fix, class Value = decltype(&unchanged)>
std::optional<Graph> reshaped(const Graph& g, Shapes&& shape_of, Fix&& fix,
                              Value value = unchanged) {
  Graph out(g.name());
  std::vector<TensorId> map(g.tensors().size());
  try {
    for (const Op& op : g.ops()) {
      const Tensor& r = g.tensor(op.result());
      std::vector<TensorId> args = mapped(op.inputs, [&](TensorId t) { return map[t.index]; });
      if (is_input(op.kind)) {
        map[op.result().index] = out.add_input(Type{r.type.dtype, shape_of(op.result())}, r.name,
                                               g.is_weight(op.result()));
      } else if (op.constant()) {
        const std::optional<Rational> v = value(*op.constant());
        if (!v) return std::nullopt;
        map[op.result().index] =
            out.add_const(*v, Type{r.type.dtype, shape_of(op.result())}, r.name);
      } else {
        auto attrs = fix(op);
        if (!attrs) return std::nullopt;
        if (auto* iota = std::get_if<IotaAttrs>(&*attrs)) iota->type.shape = shape_of(op.result());
        map[op.result().index] = out.add(op.kind, std::move(args), *attrs, r.name);
      }
      if (!(out.tensor(map[op.result().index]).type.shape == shape_of(op.result())))
        return std::nullopt;
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  for (TensorId t : g.outputs()) out.add_output(map[t.index]);
  return out;
}

}  // namespace

std::vector<Region> regions(const Graph& g, const std::vector<OpId>& ops) {
  std::set<uint32_t> inside;
  for (OpId id : ops) inside.insert(id.index);
  std::set<uint32_t> wanted;
  for (TensorId t : g.outputs()) wanted.insert(t.index);
  for (uint32_t i = 0; i < g.ops().size(); i++)
    if (!inside.count(i))
      for (TensorId t : g.op(OpId(i)).inputs) wanted.insert(t.index);
  std::vector<Region> found;
  for (OpId id : ops)
    if (wanted.count(g.op(id).result().index)) found.push_back(region(g, inside, id));
  return found;
}

std::optional<Graph> merge_leading(const Graph& g, int count) {
  int rank = 0;
  for (const Tensor& t : g.tensors()) rank = std::max(rank, t.type.rank());
  if (count == 1) return g;
  if (count < 1 || count > rank) return std::nullopt;
  const Axes axes(g, all_ops(g));
  // The axes that are to be one; those of smaller tensors are none of them.
  std::optional<std::vector<int>> leading;
  const auto merges = [&](TensorId t) { return g.tensor(t).type.rank() == rank; };
  for (uint32_t i = 0; i < g.tensors().size(); i++) {
    if (!merges(TensorId(i))) continue;
    std::vector<int> mine = axes.of(TensorId(i));
    mine.resize(size_t(count));
    if (std::ranges::all_of(mine, [](int a) { return a < 0; })) continue;
    if (leading && *leading != mine) return std::nullopt;
    leading = mine;
  }
  const auto is_leading = [&](int a) {
    return a >= 0 && leading && std::ranges::count(*leading, a) > 0;
  };
  for (uint32_t i = 0; i < g.tensors().size(); i++) {
    const std::vector<int> of = axes.of(TensorId(i));
    const size_t from = merges(TensorId(i)) ? size_t(count) : 0;
    for (size_t k = from; k < of.size(); k++)
      if (is_leading(of[k])) return std::nullopt;
  }
  const auto shape_of = [&](TensorId t) {
    Shape s = g.tensor(t).type.shape;
    if (!merges(t)) return s;
    int64_t n = 1;
    for (int k = 0; k < count; k++) n *= s[size_t(k)].extent;
    Shape merged = {Dim(n)};
    merged.insert(merged.end(), s.begin() + count, s.end());
    return merged;
  };
  return reshaped(g, shape_of, [&](const Op& op) -> std::optional<Attrs> {
    Attrs attrs = op.attrs;
    if (auto* iota = std::get_if<IotaAttrs>(&attrs)) {
      if (merges(op.result()) && (iota->axis -= count - 1) < 1) return std::nullopt;
      return attrs;
    }
    const bool full = merges(op.inputs[0]);
    // Triangles lie in the last two axes.
    if (std::holds_alternative<DiagonalAttrs>(op.attrs) && full && count > rank - 2)
      return std::nullopt;
    if (full != merges(op.result()) && !tessera::has(op.kind, algebra::Pointwise) &&
        op.kind != OpKind::Matmul && op.kind != OpKind::Broadcast)
      return std::nullopt;
    const bool shaped = op.kind == OpKind::Broadcast || op.kind == OpKind::Reshape;
    if (shaped) attrs = ShapeAttrs{shape_of(op.result())};
    if (op.kind == OpKind::Matmul && merges(op.result()) && count > rank - 2) {
      // The rows of x: all but its last axis, with a matrix on the right.
      if (count != rank - 1 || g.tensor(op.inputs[1]).type.rank() != 2) return std::nullopt;
    }
    if (!full || shaped) return attrs;
    if (op.kind == OpKind::Transpose) {
      std::vector<int> perm;
      const std::vector<int>& old = g.attrs<PermAttrs>(op).perm;
      for (int i = 0; i < rank; i++) {
        if (i < count && old[size_t(i)] != i) return std::nullopt;
        if (i == 0 || i >= count) perm.push_back(i == 0 ? 0 : old[size_t(i)] - count + 1);
      }
      return PermAttrs{perm};
    }
    if (const ReduceAttrs* reduce = std::get_if<ReduceAttrs>(&op.attrs)) {
      ReduceAttrs moved = *reduce;
      for (int& a : moved.axes) {
        if (a < count) return std::nullopt;
        a -= count - 1;
      }
      return moved;
    }
    if (adds_or_drops_ones(op.kind)) return std::nullopt;
    return attrs;
  });
}

Graph unmerged(const Graph& original, const Graph& merged) {
  Graph out(original.name());
  std::vector<TensorId> args;
  for (TensorId t : original.inputs())
    args.push_back(
        out.add_input(original.tensor(t).type, original.tensor(t).name, original.is_weight(t)));
  for (size_t i = 0; i < args.size(); i++) {
    const Shape& shape = merged.tensor(merged.inputs()[i]).type.shape;
    if (!(out.tensor(args[i]).type.shape == shape)) args[i] = build::reshape(out, args[i], {shape});
  }
  const std::vector<TensorId> made = build::graph(out, merged, args);
  for (size_t i = 0; i < made.size(); i++) {
    TensorId t = made[i];
    const Shape& shape = original.tensor(original.outputs()[i]).type.shape;
    if (!(out.tensor(t).type.shape == shape)) t = build::reshape(out, t, {shape});
    out.add_output(t);
  }
  return out;
}

std::optional<Graph> reduced(const Graph& g) {
  constexpr int64_t kMostKept = 4096;
  const Axes axes(g, all_ops(g));
  std::set<int> kept;
  for (const Op& op : g.ops())
    if (is_skeleton(op) && op.kind != OpKind::Matmul)
      for (int a : axes.folded(op)) kept.insert(a);
  // Axes of one extent keep one: a pattern may ask for square matrices.
  std::set<int64_t> whole;
  for (int a : kept) whole.insert(axes.extent(a).extent);
  std::map<int64_t, int64_t> sizes;
  const std::vector<int64_t> small = {2, 3, 5, 7, 4, 6, 9, 8};
  const auto size_of = [&](int a) {
    const int64_t extent = axes.extent(a).extent;
    const auto [at, is_new] = sizes.emplace(extent, 0);
    if (is_new)
      at->second = std::min(extent, whole.count(extent) ? kMostKept
                                                        : small[(sizes.size() - 1) % small.size()]);
    return at->second;
  };
  const auto shape_of = [&](TensorId t) {
    Shape s;
    for (int a : axes.of(t)) s.push_back(a < 0 ? Dim(1) : Dim(size_of(a)));
    return s;
  };
  return reshaped(g, shape_of, [&](const Op& op) { return with_shape(op, shape_of); });
}

std::optional<Graph> with_sizes(const Graph& g, const std::map<int64_t, Dim>& sizes) {
  const auto shape_of = [&](TensorId t) {
    Shape s = g.tensor(t).type.shape;
    for (Dim& d : s)
      if (const auto found = sizes.find(d.extent); found != sizes.end()) d = found->second;
    return s;
  };
  const auto attributes = [&](const Op& op) { return with_shape(op, shape_of); };
  const auto value = [&](const Rational& r) -> std::optional<Rational> {
    for (const auto& [extent, size] : sizes) {
      const bool whole = r == Rational(extent);
      if (!whole && !(r == Rational::ratio(1, extent))) continue;
      if (size.symbolic()) return std::nullopt;
      return whole ? Rational(size.extent) : Rational::ratio(1, size.extent);
    }
    return r;
  };
  return reshaped(g, shape_of, attributes, value);
}

}  // namespace tessera::patterns
