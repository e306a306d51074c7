#include "search/mugraph/region.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/interruption.h"

// An operator that is not named here is an opaque function (pointwise) or kept (all others): both
// are sound, so the switches below have defaults.

namespace tessera::mugraph {
namespace {

constexpr int kMaxAxes = 60;

// A reshape that only adds or removes unit dimensions keeps the order of all others.
bool unit_reshape(const Shape& from, const Shape& to) {
  std::vector<Dim> a, b;
  for (const Dim& d : from)
    if (!d.is_one()) a.push_back(d);
  for (const Dim& d : to)
    if (!d.is_one()) b.push_back(d);
  return a == b;
}

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
    return unit_reshape(g.type(op.inputs[0]).shape, g.type(op.result()).shape);
  return is_reduction(op.kind) ? is_float(out) : is_product(op.kind) || arranges(op.kind);
}

namespace {

// Assigns the result's dimension names to the operands. kNew marks a dimension that is contracted.
constexpr int kNew = -2;

std::vector<std::vector<int>> operand_dims(const Graph& g, const Op& op,
                                           const std::vector<int>& dims) {
  std::vector<std::vector<int>> out;
  auto shape = [&](size_t i) -> const Shape& { return g.type(op.inputs[i]).shape; };
  auto aligned = [&](size_t i) {
    std::vector<int> d(shape(i).size(), -1);
    for (size_t k = 0; k < d.size(); ++k)
      if (!shape(i)[k].is_one()) d[k] = dims[dims.size() - d.size() + k];
    return d;
  };
  if (has(op.kind, algebra::Pointwise) || op.kind == OpKind::Broadcast) {
    for (size_t i = 0; i < op.inputs.size(); ++i) out.push_back(aligned(i));
    return out;
  }
  if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs)) {
    std::vector<int> d(shape(0).size(), -1);
    size_t next = 0;
    for (size_t k = 0; k < d.size(); ++k) {
      bool reduced = std::ranges::find(a->axes, int(k)) != a->axes.end();
      if (reduced) {
        if (!shape(0)[k].is_one()) d[k] = kNew;
        if (a->keepdims) ++next;
      } else {
        d[k] = dims[next++];
      }
    }
    return {d};
  }
  if (is_product(op.kind)) {
    const size_t r = dims.size();
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // matmul: A B; concat_matmul: W X Y Z with W·Y + X·Z
      bool left = i < op.inputs.size() / 2;
      std::vector<int> d(shape(i).size(), -1);
      const size_t n = d.size();
      for (size_t k = 0; k + 2 < n; ++k)
        if (!shape(i)[k].is_one()) d[k] = dims[r - n + k];
      size_t keep = left ? n - 2 : n - 1, sum = left ? n - 1 : n - 2;
      if (!shape(i)[keep].is_one()) d[keep] = dims[left ? r - 2 : r - 1];
      if (!shape(i)[sum].is_one()) d[sum] = kNew;
      out.push_back(d);
    }
    return out;
  }
  if (const auto* a = std::get_if<PermAttrs>(&op.attrs)) {
    std::vector<int> d(dims.size(), -1);
    for (size_t k = 0; k < dims.size(); ++k) d[size_t(a->perm[k])] = dims[k];
    return {d};
  }
  CHECK(is_reshape(op.kind)) << "operator that is not transparent";
  std::vector<int> names;
  const Shape& to = g.type(op.result()).shape;
  for (size_t k = 0; k < to.size(); ++k)
    if (!to[k].is_one()) names.push_back(dims[k]);
  std::vector<int> d(shape(0).size(), -1);
  size_t next = 0;
  for (size_t k = 0; k < d.size(); ++k)
    if (!shape(0)[k].is_one()) d[k] = names[next++];
  return {d};
}

// Which dimensions of the program are the same axis.
class Classes {
 public:
  explicit Classes(const Graph& g) : g_(g) {
    for (const Tensor& t : g.tensors()) {
      first_.push_back(int(parent_.size()));
      for (size_t k = 0; k < t.type.shape.size(); ++k) parent_.push_back(int(parent_.size()));
    }
    for (const Op& op : g.ops()) {
      if (is_given(op.kind) || !transparent(g, op)) continue;
      // Name the result's dimensions by their own slots and see where the names go.
      std::vector<int> dims;
      for (size_t k = 0; k < g.type(op.result()).shape.size(); ++k) {
        bool unit = g.type(op.result()).shape[k].is_one();
        dims.push_back(unit ? -1 : slot(op.result(), k));
      }
      auto names = operand_dims(g, op, dims);
      for (size_t i = 0; i < names.size(); ++i) {
        for (size_t k = 0; k < names[i].size(); ++k)
          if (names[i][k] >= 0) join(names[i][k], slot(op.inputs[i], k));
      }
      if (is_product(op.kind)) {
        size_t n = op.inputs.size() / 2;
        for (size_t i = 0; i < n; ++i) {
          const Shape& a = g.type(op.inputs[i]).shape;
          const Shape& b = g.type(op.inputs[i + n]).shape;
          if (!a.back().is_one())
            join(slot(op.inputs[i], a.size() - 1), slot(op.inputs[i + n], b.size() - 2));
        }
      }
    }
  }
  int of(TensorId t, size_t dim) { return find(slot(t, dim)); }

 private:
  int slot(TensorId t, size_t dim) const { return first_[t.index] + int(dim); }
  int find(int x) {
    interruption_point();
    while (parent_[size_t(x)] != x) x = parent_[size_t(x)] = parent_[size_t(parent_[size_t(x)])];
    return x;
  }
  void join(int a, int b) {
    a = find(a);
    b = find(b);
    if (a != b) parent_[size_t(std::max(a, b))] = std::min(a, b);
  }
  const Graph& g_;
  std::vector<int> first_, parent_;
};

class RegionBuilder {
 public:
  RegionBuilder(const Graph& g, const std::vector<bool>& given)
      : g_(g), given_(given), classes_(g) {}

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
      auto names = operand_dims(g_, op, dims);
      // Contracted dimensions: the same name on both sides, distinct from what is free outside.
      std::vector<int> taken = dims;
      size_t pairs = is_product(op.kind) ? op.inputs.size() / 2 : op.inputs.size();
      for (size_t i = 0; i < pairs; ++i) {
        for (size_t k = 0; k < names[i].size(); ++k) {
          if (names[i][k] != kNew) continue;
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
  Classes classes_;
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
  std::vector<int64_t> out;
  for (const Axis& a : region.axes) out.push_back(a.extent);
  return out;
}

std::vector<std::vector<int>> axis_classes(const Graph& g) {
  Classes classes(g);
  std::vector<std::vector<int>> out(g.tensors().size());
  for (uint32_t t = 0; t < out.size(); ++t) {
    const Shape& shape = g.tensors()[t].type.shape;
    for (size_t d = 0; d < shape.size(); ++d)
      out[t].push_back(shape[d].is_one() ? -1 : classes.of(TensorId(t), d));
  }
  return out;
}

Region make_region(const Graph& graph, const std::vector<TensorId>& outputs,
                   const std::vector<bool>& given) {
  Region r = RegionBuilder(graph, given).build(outputs);
  if (int(r.axes.size()) > kMaxAxes) r.targets.clear();
  return r;
}

}  // namespace tessera::mugraph
