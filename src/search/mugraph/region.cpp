#include "search/mugraph/region.h"

#include <algorithm>
#include <map>

#include "base/interruption.h"
#include "search/axis_classes.h"

// An operator that is not named here is an opaque function (pointwise) or kept (all others): both
// are sound, so the switches below have defaults.

namespace tessera::mugraph {
namespace {

constexpr int kMaxAxes = 60;

}  // namespace

bool transparent(const Graph& g, const Op& op) {
  if (op.constant()) return true;
  if (op.num_results != 1) return false;
  DType out = g.type(op.result()).dtype;
  if (!is_float(out) && out != DType::Bool) return false;
  bool any_int = false;
  for (TensorId t : op.inputs) any_int = any_int || is_integer(g.type(t).dtype);
  if (has(op.kind, algebra::Pointwise)) return !any_int || op.kind == OpKind::Cast;
  if (any_int) return false;
  if (op.kind == OpKind::Reshape)
    return only_units_differ(g.type(op.inputs[0]).shape, g.type(op.result()).shape);
  return is_reduction(op.kind) ? is_float(out) : is_product(op.kind) || arranges(op.kind);
}

namespace {

std::vector<OpId> transparent_ops(const Graph& g) {
  std::vector<OpId> ops;
  for (size_t i = 0; i < g.ops().size(); ++i)
    if (!is_given(g.ops()[i].kind) && transparent(g, g.ops()[i])) ops.push_back(OpId(i));
  return ops;
}

class RegionBuilder {
 public:
  RegionBuilder(const Graph& g, const std::vector<bool>& given)
      : g_(g), given_(given), classes_(g, transparent_ops(g)) {}

  Region build(const std::vector<TensorId>& outputs) {
    for (TensorId t : outputs) {
      std::vector<int> dims;
      const Shape& shape = g_.type(t).shape;
      for (size_t k = 0; k < shape.size(); ++k)
        dims.push_back(shape[k].is_one() ? -1 : name(classes_.of(t, k), shape[k], dims));
      region_.targets.push_back(node(t, dims));
    }
    return std::move(region_);
  }

 private:
  // The first name of this class that is not among `taken`.
  int name(int cls, const Dim& dim, const std::vector<int>& taken) {
    std::vector<int>& names = names_[cls];
    for (int a : names)
      if (std::ranges::find(taken, a) == taken.end()) return a;
    int axis = int(region_.axes.size());
    if (names.empty()) numbers_[cls] = int(numbers_.size());
    region_.axes.push_back(
        {dim.extent, "a" + std::to_string(numbers_[cls]) + std::string(names.size(), '\'')});
    names.push_back(axis);
    return axis;
  }

  uint32_t node(TensorId t, const std::vector<int>& dims) {
    interruption_point();
    auto key = std::make_pair(t.index, dims);
    auto it = memo_.find(key);
    if (it != memo_.end()) return it->second;
    Node n;
    n.tensor = t;
    n.dims = dims;
    n.dtype = g_.type(t).dtype;
    const Op& op = g_.producer(t);
    n.kind = op.kind;
    n.attrs = op.attrs;
    if (op.constant()) {
    } else if (given_[t.index]) {
      n.kind = OpKind::Input;
      n.view = int(region_.views.size());
      region_.views.push_back({t, dims, n.dtype});
    } else {
      auto names = operand_axes(g_, op, dims);
      // Contracted dimensions: the same name on both sides, distinct from what is free outside.
      std::vector<int> taken = dims;
      size_t pairs = is_product(op.kind) ? op.inputs.size() / 2 : op.inputs.size();
      for (size_t i = 0; i < pairs; ++i) {
        for (size_t k = 0; k < names[i].size(); ++k) {
          if (names[i][k] != kContracted) continue;
          int axis = name(classes_.of(op.inputs[i], k), g_.type(op.inputs[i]).shape[k], taken);
          taken.push_back(axis);
          names[i][k] = axis;
          n.reduced.push_back(axis);
          if (is_product(op.kind)) {
            std::vector<int>& other = names[i + pairs];
            other[other.size() - 2] = axis;
          }
        }
        if (is_product(op.kind) && n.reduced.size() <= i) n.reduced.push_back(-1);
      }
      for (size_t i = 0; i < op.inputs.size(); ++i)
        n.operands.push_back(node(op.inputs[i], names[i]));
    }
    region_.nodes.push_back(std::move(n));
    uint32_t id = uint32_t(region_.nodes.size() - 1);
    memo_.emplace(key, id);
    return id;
  }

  const Graph& g_;
  const std::vector<bool>& given_;
  AxisClasses classes_;
  Region region_;
  std::map<int, std::vector<int>> names_;
  std::map<int, int> numbers_;
  std::map<std::pair<uint32_t, std::vector<int>>, uint32_t> memo_;
};

}  // namespace

AxisMask Region::bits(int axis) const {
  int p = part_of(axis);
  return p < 0 ? bit(axis) : bit(axis) | bit(p);
}

AxisMask Region::mask(const std::vector<int>& dims) const {
  AxisMask m = 0;
  for (int a : dims)
    if (a >= 0) m |= bits(a);
  return m;
}

void Region::split(int axis) {
  part.resize(axes.size(), -1);
  whole.resize(axes.size(), -1);
  part[size_t(axis)] = int(axes.size());
  part.push_back(-1);
  whole.push_back(axis);
  axes.push_back({0, "parts(" + axes[size_t(axis)].name + ")"});
}

std::vector<int64_t> axis_extents(const Region& region) {
  return mapped(region.axes, &Axis::extent);
}

std::vector<std::vector<int>> axis_classes(const Graph& g) {
  const AxisClasses classes(g, transparent_ops(g));
  return mapped(g.tensors().size(), [&](uint32_t t) { return classes.of(TensorId(t)); });
}

Region make_region(const Graph& graph, const std::vector<TensorId>& outputs,
                   const std::vector<bool>& given) {
  Region r = RegionBuilder(graph, given).build(outputs);
  if (int(r.axes.size()) > kMaxAxes) r.targets.clear();
  return r;
}

}  // namespace tessera::mugraph
