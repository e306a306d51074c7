#include "verify/gathers.h"

#include <map>
#include <optional>
#include <tuple>

#include "ir/build.h"
#include "ir/walk.h"

namespace tessera {
namespace {

class Mover {
 public:
  explicit Mover(const Graph& g) : g_(g), out_(g.name()), map_(g.tensors().size()) {}

  Graph run() {
    const std::vector<bool> computed = made_of_inputs(g_);
    for (const Op& op : g_.ops()) {
      if (op.kind == OpKind::Gather && computed[op.inputs[1].index])
        if (const auto moved =
                picked(op.inputs[0], g_.attrs<AxisAttrs>(op).axis, map_[op.inputs[1].index])) {
          map_[op.result().index] = *moved;
          continue;
        }
      copy_op(g_, op, out_, map_);
    }
    for (TensorId t : g_.outputs()) out_.add_output(map_[t.index]);
    return std::move(out_);
  }

 private:
  int rank_of(TensorId index) const { return out_.type(index).rank(); }
  // A shape with those of the index in place of an axis.
  static Shape replaced(const Shape& shape, int axis, const Shape& by) {
    Shape s(shape.begin(), shape.begin() + axis);
    s.insert(s.end(), by.begin(), by.end());
    s.insert(s.end(), shape.begin() + axis + 1, shape.end());
    return s;
  }

  // t[index] along an axis; nullopt where what an element is depends on where it is.
  std::optional<TensorId> picked(TensorId t, int axis, TensorId index) {
    const auto key = std::tuple(t.index, axis, index.index);
    if (const auto known = picked_.find(key); known != picked_.end()) return known->second;
    return picked_[key] = made(t, axis, index);
  }
  std::optional<TensorId> made(TensorId t, int axis, TensorId index) {
    const Op& op = g_.producer(t);
    const Type type{g_.type(t).dtype, replaced(g_.type(t).shape, axis, out_.type(index).shape)};
    if (is_input(op.kind)) return out_.add(OpKind::Gather, {map_[t.index], index}, AxisAttrs{axis});
    if (op.constant()) return out_.add_const(*op.constant(), type);
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs)) {
      if (a->axis == axis) return std::nullopt;
      const int more = a->axis > axis ? rank_of(index) - 1 : 0;
      return out_.add(OpKind::Iota, {}, IotaAttrs{a->axis + more, type});
    }
    if (const auto* a = std::get_if<PermAttrs>(&op.attrs))
      return transposed(op.inputs[0], a->perm, axis, index);
    const auto* reduced = is_reduction(op.kind) ? &g_.attrs<ReduceAttrs>(op) : nullptr;
    const bool product = op.kind == OpKind::Matmul;
    const bool one = g_.type(t).shape[size_t(axis)].is_one();  // of all operands, too
    if ((product || reduced) && rank_of(index) != 1) {
      const ShapeAttrs flat{{Dim(num_elements(out_.type(index).shape))}};
      const auto element = picked(t, axis, build::reshape(out_, index, flat));
      if (!element) return std::nullopt;
      return build::reshape(out_, *element, ShapeAttrs{type.shape});
    }
    if (reduced ? one
                : !product && op.kind != OpKind::Broadcast && !has(op.kind, algebra::Pointwise))
      return std::nullopt;
    std::vector<TensorId> operands;
    for (TensorId x : op.inputs) {
      int mine = reduced ? axis : axis - (g_.type(t).rank() - g_.type(x).rank());
      if (reduced && !reduced->keepdims)
        for (int gone : reduced->axes) mine += gone <= mine;
      // The axis that a product sums over is none of the result's.
      if (product && g_.type(t).rank() - axis == int(operands.size()) + 1) mine = -1;
      const auto element = operand(x, mine, index, one);
      if (!element) return std::nullopt;
      operands.push_back(*element);
    }
    if (op.kind == OpKind::Broadcast)
      return build::broadcast(out_, operands[0], ShapeAttrs{type.shape});
    return out_.add(op.kind, operands, op.attrs);
  }

  // What broadcasts against what is picked; `axis` is the operand's own, if it has it; `one`: all
  // operands have one element along it, the one that may be picked.
  std::optional<TensorId> operand(TensorId x, int axis, TensorId index, bool one) {
    const Shape& shape = g_.type(x).shape;
    if (axis < 0) return map_[x.index];
    if (one || !shape[size_t(axis)].is_one()) return picked(x, axis, index);
    const Shape ones(size_t(rank_of(index)), Dim(1));
    return build::reshape(out_, map_[x.index], ShapeAttrs{replaced(shape, axis, ones)});
  }

  std::optional<TensorId> transposed(TensorId x, const std::vector<int>& perm, int axis,
                                     TensorId index) {
    const int from = perm[size_t(axis)], count = rank_of(index);
    const auto inner = picked(x, from, index);
    if (!inner) return std::nullopt;
    PermAttrs a;
    for (size_t d = 0; d < perm.size(); d++)
      for (int k = 0; k < (int(d) == axis ? count : 1); k++)
        a.perm.push_back(int(d) == axis ? from + k : perm[d] + (perm[d] > from ? count - 1 : 0));
    return build::transpose(out_, *inner, std::move(a));
  }

  const Graph& g_;
  Graph out_;
  std::vector<TensorId> map_;
  std::map<std::tuple<uint32_t, int, uint32_t>, std::optional<TensorId>> picked_;
};

}  // namespace

Graph with_gathers_of_inputs(const Graph& graph) { return Mover(graph).run(); }

}  // namespace tessera
