#include "search/mugraph/region.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"

// An operator that is not named here is an opaque function (pointwise) or kept (all others): both
// are sound, so the switches below have defaults.
#pragma GCC diagnostic ignored "-Wswitch-enum"

namespace tessera::mugraph {
namespace {

constexpr int kMaxContractions = 3;  // matmuls in a row within one region
constexpr int kMaxOperators = 32;    // of one region
constexpr int kMaxAxes = 60;

// A reshape that only adds or removes unit dimensions keeps the order of all others.
bool unit_reshape(const Shape& from, const Shape& to) {
  std::vector<Dim> a, b;
  for (const Dim& d : from) {
    if (!d.is_one()) a.push_back(d);
  }
  for (const Dim& d : to) {
    if (!d.is_one()) b.push_back(d);
  }
  return a == b;
}

bool transparent(const Graph& g, const Op& op) {
  const OpInfo& row = info(op.kind);
  if (op.kind == OpKind::Const) return true;
  if (op.num_results != 1) return false;
  DType out = g.type(op.result()).dtype;
  if (!is_float(out) && out != DType::Bool) return false;
  bool any_int = false;
  for (TensorId t : op.inputs) any_int = any_int || is_integer(g.type(t).dtype);
  if (row.flags & algebra::Pointwise) return !any_int || op.kind == OpKind::Cast;
  if (any_int) return false;
  switch (op.kind) {
  case OpKind::Sum:
  case OpKind::Mean:
  case OpKind::ReduceMax:
  case OpKind::ReduceMin: return is_float(out);
  case OpKind::Matmul:
  case OpKind::ConcatMatmul:
  case OpKind::Transpose:
  case OpKind::Broadcast:
  case OpKind::Unsqueeze:
  case OpKind::Squeeze: return true;
  case OpKind::Reshape: return unit_reshape(g.type(op.inputs[0]).shape, g.type(op.result()).shape);
  default: return false;
  }
}

bool contracts(OpKind k) { return k == OpKind::Matmul || k == OpKind::ConcatMatmul; }

// Assigns the result's dimension names to the operands. kNew marks a dimension that is contracted.
constexpr int kNew = -2;

std::vector<std::vector<int>> operand_dims(const Graph& g, const Op& op,
                                           const std::vector<int>& dims) {
  std::vector<std::vector<int>> out;
  auto shape = [&](size_t i) -> const Shape& { return g.type(op.inputs[i]).shape; };
  auto aligned = [&](size_t i) {
    std::vector<int> d(shape(i).size(), -1);
    for (size_t k = 0; k < d.size(); ++k) {
      if (!shape(i)[k].is_one()) d[k] = dims[dims.size() - d.size() + k];
    }
    return d;
  };
  if (info(op.kind).flags & algebra::Pointwise || op.kind == OpKind::Broadcast) {
    for (size_t i = 0; i < op.inputs.size(); ++i) out.push_back(aligned(i));
    return out;
  }
  switch (op.kind) {
  case OpKind::Sum:
  case OpKind::Mean:
  case OpKind::ReduceMax:
  case OpKind::ReduceMin: {
    const auto& a = std::get<ReduceAttrs>(op.attrs);
    std::vector<int> d(shape(0).size(), -1);
    size_t next = 0;
    for (size_t k = 0; k < d.size(); ++k) {
      bool reduced = std::find(a.axes.begin(), a.axes.end(), int(k)) != a.axes.end();
      if (reduced) {
        if (!shape(0)[k].is_one()) d[k] = kNew;
        if (a.keepdims) ++next;
      } else {
        d[k] = dims[next++];
      }
    }
    return {d};
  }
  case OpKind::Matmul:
  case OpKind::ConcatMatmul: {
    const size_t r = dims.size();
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // matmul: A B; concat_matmul: W X Y Z with W·Y + X·Z
      bool left = op.kind == OpKind::Matmul ? i == 0 : i < 2;
      std::vector<int> d(shape(i).size(), -1);
      const size_t n = d.size();
      for (size_t k = 0; k + 2 < n; ++k) {
        if (!shape(i)[k].is_one()) d[k] = dims[r - n + k];
      }
      size_t keep = left ? n - 2 : n - 1, sum = left ? n - 1 : n - 2;
      if (!shape(i)[keep].is_one()) d[keep] = dims[left ? r - 2 : r - 1];
      if (!shape(i)[sum].is_one()) d[sum] = kNew;
      out.push_back(d);
    }
    return out;
  }
  case OpKind::Transpose: {
    const auto& a = std::get<PermAttrs>(op.attrs);
    std::vector<int> d(dims.size(), -1);
    for (size_t k = 0; k < dims.size(); ++k) d[size_t(a.perm[k])] = dims[k];
    return {d};
  }
  case OpKind::Reshape:
  case OpKind::Unsqueeze:
  case OpKind::Squeeze: {
    std::vector<int> names;
    const Shape& to = g.type(op.result()).shape;
    for (size_t k = 0; k < to.size(); ++k) {
      if (!to[k].is_one()) names.push_back(dims[k]);
    }
    std::vector<int> d(shape(0).size(), -1);
    size_t next = 0;
    for (size_t k = 0; k < d.size(); ++k) {
      if (!shape(0)[k].is_one()) d[k] = names[next++];
    }
    return {d};
  }
  default: unreachable("operator that is not transparent");
  }
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
      if (op.kind == OpKind::Input || op.kind == OpKind::Const || !transparent(g, op)) continue;
      // Name the result's dimensions by their own slots and see where the names go.
      std::vector<int> dims;
      for (size_t k = 0; k < g.type(op.result()).shape.size(); ++k) {
        bool unit = g.type(op.result()).shape[k].is_one();
        dims.push_back(unit ? -1 : slot(op.result(), k));
      }
      auto names = operand_dims(g, op, dims);
      for (size_t i = 0; i < names.size(); ++i) {
        for (size_t k = 0; k < names[i].size(); ++k) {
          if (names[i][k] >= 0) join(names[i][k], slot(op.inputs[i], k));
        }
      }
      if (contracts(op.kind)) {
        size_t n = op.inputs.size() / 2;
        for (size_t i = 0; i < n; ++i) {
          const Shape& a = g.type(op.inputs[i]).shape;
          const Shape& b = g.type(op.inputs[i + n]).shape;
          if (!a.back().is_one()) {
            join(slot(op.inputs[i], a.size() - 1), slot(op.inputs[i + n], b.size() - 2));
          }
        }
      }
    }
  }
  int of(TensorId t, size_t dim) { return find(slot(t, dim)); }

 private:
  int slot(TensorId t, size_t dim) const { return first_[t.index] + int(dim); }
  int find(int x) {
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
      for (size_t k = 0; k < shape.size(); ++k) {
        dims.push_back(shape[k].is_one() ? -1 : name(classes_.of(t, k), shape[k], dims));
      }
      region_.targets.push_back(node(t, dims));
    }
    return std::move(region_);
  }

 private:
  // The first name of this class that is not among `taken`.
  int name(int cls, const Dim& dim, const std::vector<int>& taken) {
    std::vector<int>& names = names_[cls];
    for (int a : names) {
      if (std::find(taken.begin(), taken.end(), a) == taken.end()) return a;
    }
    int axis = int(region_.axes.size());
    if (names.empty()) numbers_[cls] = int(numbers_.size());
    region_.axes.push_back(
        {dim.extent, "a" + std::to_string(numbers_[cls]) + std::string(names.size(), '\'')});
    names.push_back(axis);
    return axis;
  }

  uint32_t node(TensorId t, const std::vector<int>& dims) {
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
    if (op.kind == OpKind::Const) {
    } else if (given_[t.index]) {
      n.kind = OpKind::Input;
      n.view = int(region_.views.size());
      region_.views.push_back({t, dims, n.dtype});
    } else {
      auto names = operand_dims(g_, op, dims);
      // Contracted dimensions: the same name on both sides, distinct from what is free outside.
      std::vector<int> taken = dims;
      size_t pairs = contracts(op.kind) ? op.inputs.size() / 2 : op.inputs.size();
      for (size_t i = 0; i < pairs; ++i) {
        for (size_t k = 0; k < names[i].size(); ++k) {
          if (names[i][k] != kNew) continue;
          int axis = name(classes_.of(op.inputs[i], k), g_.type(op.inputs[i]).shape[k], taken);
          taken.push_back(axis);
          names[i][k] = axis;
          n.reduced.push_back(axis);
          if (contracts(op.kind)) {
            std::vector<int>& other = names[i + pairs];
            other[other.size() - 2] = axis;
          }
        }
        if (contracts(op.kind) && n.reduced.size() <= i) n.reduced.push_back(-1);
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
  for (int a : dims) {
    if (a >= 0) m |= bits(a);
  }
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

Region make_region(const Graph& graph, const std::vector<TensorId>& outputs,
                   const std::vector<bool>& given) {
  Region r = RegionBuilder(graph, given).build(outputs);
  if (int(r.axes.size()) > kMaxAxes) r.targets.clear();
  return r;
}

// Eras are separated by kept operators; an era is a sequence of regions of bounded size.
std::vector<Step> partition(const Graph& graph) {
  const size_t n = graph.ops().size();
  std::vector<bool> pure(n, false), skip(n, false);
  std::vector<int> era(n, 0);
  auto producer = [&](TensorId t) { return size_t(graph.tensor(t).producer.index); };
  int last = 0;
  for (size_t i = 0; i < n; ++i) {
    const Op& op = graph.ops()[i];
    skip[i] = op.kind == OpKind::Input || op.kind == OpKind::Const;
    if (skip[i]) continue;
    pure[i] = transparent(graph, op);
    for (TensorId t : op.inputs) {
      const size_t p = producer(t);
      // What a kept operator reads is complete at the end of its era.
      if (!skip[p]) era[i] = std::max(era[i], era[p] + (pure[p] && !pure[i] ? 1 : 0));
    }
    last = std::max(last, era[i]);
  }
  // An operator that only later eras use moves there, so that nothing is stored for its sake.
  std::vector<int> latest(n, last + 1);
  std::vector<bool> result(n, false);
  for (TensorId t : graph.outputs()) result[producer(t)] = true;
  for (size_t i = n; i-- > 0;) {
    if (skip[i]) continue;
    if (pure[i] && !result[i] && latest[i] <= last) era[i] = std::max(era[i], latest[i]);
    for (TensorId t : graph.ops()[i].inputs) {
      int& of = latest[producer(t)];
      of = std::min(of, pure[i] ? era[i] : era[i] - 1);
    }
  }
  // Regions of an era, numbered so that no operator reads a later one.
  struct Place {
    int region = 0, chain = 0;  // chain: contractions in a row within the region
  };
  std::vector<Place> at(n);
  std::map<std::pair<int, int>, int> size;  // operators by era and region
  std::vector<int> regions(size_t(last) + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    if (!pure[i]) continue;
    Place p;
    for (TensorId t : graph.ops()[i].inputs) {
      const size_t from = producer(t);
      if (!pure[from] || era[from] != era[i]) continue;
      const Place& q = at[from];
      if (q.region > p.region)
        p = q;
      else if (q.region == p.region)
        p.chain = std::max(p.chain, q.chain);
    }
    if (contracts(graph.ops()[i].kind) && ++p.chain > kMaxContractions) {
      ++p.region;
      p.chain = 1;
    }
    while (size[{era[i], p.region}] >= kMaxOperators) {
      ++p.region;
      p.chain = contracts(graph.ops()[i].kind) ? 1 : 0;
    }
    ++size[{era[i], p.region}];
    at[i] = p;
    regions[size_t(era[i])] = std::max(regions[size_t(era[i])], p.region + 1);
  }
  // What leaves its region.
  auto same_region = [&](size_t p, size_t i) {
    return pure[p] && pure[i] && era[p] == era[i] && at[p].region == at[i].region;
  };
  std::vector<bool> leaves(graph.tensors().size(), false);
  for (size_t i = 0; i < n; ++i) {
    for (TensorId t : graph.ops()[i].inputs) {
      if (pure[producer(t)] && !same_region(producer(t), i)) leaves[t.index] = true;
    }
  }
  for (TensorId t : graph.outputs()) {
    if (pure[producer(t)]) leaves[t.index] = true;
  }
  std::map<std::pair<int, int>, std::vector<TensorId>> outputs;
  for (size_t t = 0; t < graph.tensors().size(); ++t) {
    const size_t p = producer(TensorId(t));
    if (leaves[t]) outputs[{era[p], at[p].region}].push_back(TensorId(t));
  }
  std::vector<std::vector<size_t>> kept(size_t(last) + 1);
  for (size_t i = 0; i < n; ++i) {
    if (!skip[i] && !pure[i] && graph.ops()[i].num_results > 0) kept[size_t(era[i])].push_back(i);
  }
  std::vector<Step> steps;
  for (int e = 0; e <= last; ++e) {
    for (size_t i : kept[size_t(e)]) {  // kept operators open their era
      Step k;
      k.kept = OpId(i);
      steps.push_back(k);
    }
    for (int r = 0; r < regions[size_t(e)]; ++r) {
      auto it = outputs.find({e, r});
      if (it == outputs.end()) continue;
      Step region;
      region.outputs = it->second;
      steps.push_back(std::move(region));
    }
  }
  return steps;
}

RegionForms build_forms(const Region& region, NormalForms& nf) {
  RegionForms out;
  auto function = [&](OpKind kind, const Attrs& attrs, DType result, bool same, bool nonneg,
                      bool is_max) {
    std::string key = tessera::name(kind);
    if (const auto* p = std::get_if<PowAttrs>(&attrs)) key += " " + p->exponent.str();
    if (const auto* c = std::get_if<CastAttrs>(&attrs)) key += std::string(" ") + name(c->dtype);
    if (const auto* c = std::get_if<ConstAttrs>(&attrs)) key += " " + c->value.str();
    uint32_t f = nf.function({key, nonneg, is_max});
    if (f == out.functions.size()) out.functions.push_back({kind, attrs, result, same});
    return f;
  };
  // The form's own exponential and logarithm come first.
  function(OpKind::Exp, NoAttrs{}, DType::F32, true, true, false);
  function(OpKind::Log, NoAttrs{}, DType::F32, true, false, false);
  for (const Node& n : region.nodes) {
    std::vector<PolyId> x;
    for (uint32_t o : n.operands) x.push_back(out.of_node[o]);
    auto reduced = [&](size_t i) {
      return n.reduced[i] < 0 ? AxisMask(0) : region.bits(n.reduced[i]);
    };
    const AxisMask all = region.mask(n.reduced);
    PolyId f = kNone;
    bool nonneg = false;
    switch (n.kind) {
    case OpKind::Input:
      f = nf.input(uint32_t(n.view), region.mask(region.views[size_t(n.view)].dims),
                   "t" + std::to_string(n.tensor.index));
      break;
    case OpKind::Const: f = nf.constant(Q::from(std::get<ConstAttrs>(n.attrs).value)); break;
    case OpKind::Neg: f = nf.scale(x[0], -1); break;
    case OpKind::Sqr: f = nf.mul(x[0], x[0]); break;
    case OpKind::Sqrt: f = nf.pow(x[0], Q::ratio(1, 2)); break;
    case OpKind::Rsqrt: f = nf.pow(x[0], Q::ratio(-1, 2)); break;
    case OpKind::Exp:
      f = nf.exp(x[0]);
      nonneg = true;
      break;
    case OpKind::Log: f = nf.log(x[0]); break;
    case OpKind::Pow: {
      Q e = Q::from(std::get<PowAttrs>(n.attrs).exponent);
      if (!e.bad() && e.den <= 2 && e.num >= -8 && e.num <= 8) f = nf.pow(x[0], e);
      break;
    }
    case OpKind::Add: f = nf.add(x[0], x[1]); break;
    case OpKind::Sub: f = nf.add(x[0], nf.scale(x[1], -1)); break;
    case OpKind::Mul: f = nf.mul(x[0], x[1]); break;
    case OpKind::Div: f = nf.div(x[0], x[1]); break;
    case OpKind::Sum: f = nf.sum(x[0], all); break;
    case OpKind::Mean: {
      int64_t count = 1;
      for (int a : n.reduced) count *= region.axes[size_t(a)].extent;
      f = nf.scale(nf.sum(x[0], all), Q::ratio(1, count));
      break;
    }
    case OpKind::Matmul: f = nf.sum(nf.mul(x[0], x[1]), reduced(0)); break;
    case OpKind::ConcatMatmul:
      f = nf.add(nf.sum(nf.mul(x[0], x[2]), reduced(0)), nf.sum(nf.mul(x[1], x[3]), reduced(1)));
      break;
    case OpKind::Transpose:
    case OpKind::Reshape:
    case OpKind::Broadcast:
    case OpKind::Unsqueeze:
    case OpKind::Squeeze: f = x[0]; break;
    case OpKind::ReduceMax:
    case OpKind::ReduceMin: {
      if (x[0] == kNone) break;
      NormalForms::Primitive p = nf.primitive(x[0]);
      if (p.coef.q.num < 0) p = {x[0], 1};  // only positive scales commute with max
      uint32_t fn = function(n.kind, n.attrs, n.dtype, true, false, n.kind == OpKind::ReduceMax);
      AxisMask on = all & nf.poly(p.form).axes;
      f = on ? nf.scale(nf.fn(fn, {p.form}, on), p.coef) : x[0];
      break;
    }
    case OpKind::Abs:
    case OpKind::Relu:
    case OpKind::Sigmoid: nonneg = true; break;
    default: break;
    }
    bool pointwise = (info(n.kind).flags & algebra::Pointwise) != 0;
    // Where factors cancel so that a whole axis disappears, the operator stays a function: nothing
    // would compute its value on the axes that are left.
    if (f != kNone && pointwise && nf.poly(f).axes != 0) {
      AxisMask axes = 0;
      for (PolyId p : x) axes |= p == kNone ? 0 : nf.poly(p).axes;
      if (axes != nf.poly(f).axes) f = kNone;
    }
    if (f == kNone && (pointwise || n.kind == OpKind::Const)) {
      bool same = n.kind != OpKind::Cast && n.dtype != DType::Bool && n.kind != OpKind::Where;
      uint32_t fn = function(n.kind, n.attrs, n.dtype, same, nonneg, false);
      if (info(n.kind).flags & algebra::Commutative) std::sort(x.begin(), x.end());
      f = nf.fn(fn, std::move(x));
    }
    out.of_node.push_back(f);
  }
  for (uint32_t t : region.targets) {
    if (out.of_node[t] == kNone) out.of_node.clear();
    if (out.of_node.empty()) break;
  }
  return out;
}

}  // namespace tessera::mugraph
