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
    for (const Op& op : g_.ops())
      if (op.kind != OpKind::Gather || !computed[op.inputs[1].index] ||
          is_input(g_.producer(op.inputs[0]).kind) || !moved(op))
        copy_op(g_, op, out_, map_);
    for (TensorId t : g_.outputs()) out_.add_output(map_[t.index]);
    return std::move(out_);
  }

 private:
  // By a list of indices, so that all axes stay where they are.
  bool moved(const Op& gather) {
    const Shape& shape = g_.type(gather.inputs[1]).shape;
    TensorId index = map_[gather.inputs[1].index];
    if (shape.size() != 1)
      index = build::reshape(out_, index, ShapeAttrs{{Dim(num_elements(shape))}});
    const auto found = picked(gather.inputs[0], g_.attrs<AxisAttrs>(gather).axis, index);
    if (!found) return false;
    const Shape& result = g_.type(gather.result()).shape;
    map_[gather.result().index] =
        shape.size() == 1 ? *found : build::reshape(out_, *found, ShapeAttrs{result});
    return true;
  }

  // t[index] along an axis; nullopt where what an element is depends on where it is.
  std::optional<TensorId> picked(TensorId t, int axis, TensorId index) {
    const auto key = std::tuple(t.index, axis, index.index);
    if (const auto known = picked_.find(key); known != picked_.end()) return known->second;
    return picked_[key] = made(t, axis, index);
  }
  std::optional<TensorId> made(TensorId t, int axis, TensorId index) {
    const Op& op = g_.producer(t);
    Type type = g_.type(t);
    const bool one = type.shape[size_t(axis)].is_one();  // of all operands, too
    type.shape[size_t(axis)] = out_.type(index).shape[0];
    if (is_input(op.kind)) return out_.add(OpKind::Gather, {map_[t.index], index}, AxisAttrs{axis});
    if (op.constant()) return out_.add_const(*op.constant(), type);
    if (const auto* a = std::get_if<IotaAttrs>(&op.attrs)) {
      if (a->axis == axis) return std::nullopt;
      return out_.add(OpKind::Iota, {}, IotaAttrs{a->axis, type});
    }
    const auto* reduced = is_reduction(op.kind) ? &g_.attrs<ReduceAttrs>(op) : nullptr;
    const auto* perm = std::get_if<PermAttrs>(&op.attrs);
    const bool product = is_product(op.kind) && op.inputs.size() == 2;
    if (!has(op.kind, algebra::Pointwise) && op.kind != OpKind::Broadcast && !perm && !product &&
        (!reduced || one))
      return std::nullopt;
    std::vector<TensorId> operands;
    for (TensorId x : op.inputs) {
      // The operand's own axis, if it has it; that which a product sums over is none.
      int mine = axis - (type.rank() - g_.type(x).rank());
      if (perm) mine = perm->perm[size_t(axis)];
      if (reduced && !reduced->keepdims) {
        mine = axis;
        for (int gone : reduced->axes) mine += gone <= mine;
      }
      if (product && type.rank() - axis == int(operands.size()) + 1) mine = -1;
      const bool spread = mine < 0 || (!one && g_.type(x).shape[size_t(mine)].is_one());
      const auto element = spread ? map_[x.index] : picked(x, mine, index);
      if (!element) return std::nullopt;
      operands.push_back(*element);
    }
    if (op.kind == OpKind::Broadcast)
      return build::broadcast(out_, operands[0], ShapeAttrs{type.shape});
    return out_.add(op.kind, operands, op.attrs);
  }

  const Graph& g_;
  Graph out_;
  std::vector<TensorId> map_;
  std::map<std::tuple<uint32_t, int, uint32_t>, std::optional<TensorId>> picked_;
};

}  // namespace

Graph with_gathers_of_inputs(const Graph& graph) { return Mover(graph).run(); }

}  // namespace tessera
