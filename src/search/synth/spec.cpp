#include "search/synth/spec.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/interruption.h"
#include "search/synth/slice_graph.h"

namespace tessera::synth {
namespace {

// Axes before dimensions are known: variables that constraints of the program unite.
using Var = int;
constexpr Var kVarOne = 0;

class Parser {
 public:
  Parser(const Graph& g, bool any_size)
      : g_(g), any_size_(any_size), value_(g.tensors().size(), kNone) {
    vars_.push_back({0, 1, false});
  }

  std::optional<Spec> parse() {
    for (size_t i = 0; i < g_.inputs().size(); ++i) {
      const Type& type = g_.type(g_.inputs()[i]);
      if (type.rank() > kMaxAxes) return std::nullopt;
      value_[g_.inputs()[i].index] =
          add(leaf(Form::Leaf, i), fresh(type), type.dtype, derive_key(1, i));
    }
    for (size_t i = 0; i < g_.ops().size(); ++i) {
      const Op& op = g_.ops()[i];
      if (is_input(op.kind)) continue;
      if (!understood(op)) keep(OpId(uint32_t(i)), op);
    }
    for (TensorId t : g_.outputs()) spec_.outputs.push_back(value_[t.index]);
    for (ValueId v = 0; v < spec_.nodes.size(); ++v)
      if (axes_[v].size() > size_t(kMaxAxes)) return std::nullopt;
    if (!name_dimensions()) return std::nullopt;
    return std::move(spec_);
  }

 private:
  struct Variable {
    Var parent;
    int64_t extent;
    bool literal;  // as large in every world: the number of operands of a stack
  };
  using Axes = std::vector<Var>;

  Var find(Var v) {
    interruption_point();
    while (vars_[size_t(v)].parent != v) v = vars_[size_t(v)].parent;
    return v;
  }
  void unite(Var a, Var b) {
    a = find(a);
    b = find(b);
    if (a == b) return;
    CHECK(a != kVarOne && b != kVarOne);
    vars_[size_t(b)].literal |= vars_[size_t(a)].literal;
    vars_[size_t(a)].parent = b;
  }
  Var variable(int64_t extent, bool literal = false) {
    if (extent == 1) return kVarOne;
    vars_.push_back({Var(vars_.size()), extent, literal});
    return Var(vars_.size()) - 1;
  }
  Axes fresh(const Type& type) {
    Axes axes;
    for (int64_t extent : extents(type.shape)) axes.push_back(variable(extent));
    return axes;
  }
  ValueId add(const Node& node, Axes axes, DType dtype, uint64_t key = 0) {
    interruption_point();
    spec_.nodes.push_back(node);
    axes_.push_back(std::move(axes));
    spec_.keys.push_back(key);
    Dims d;
    d.dtype = dtype;
    spec_.dims.push_back(d);
    return ValueId(spec_.nodes.size() - 1);
  }
  uint64_t constant(const Rational& value) { return add_unique(spec_.constants, value); }
  DType dtype(ValueId v) const { return spec_.dims[v].dtype; }
  // NumPy's broadcasting, uniting what is combined.
  Axes combined(const Axes& a, const Axes& b) {
    Axes r(std::max(a.size(), b.size()));
    for (size_t i = 0; i < r.size(); ++i) {
      const Var x = i < a.size() ? a[a.size() - 1 - i] : kVarOne;
      const Var y = i < b.size() ? b[b.size() - 1 - i] : kVarOne;
      if (x != kVarOne && y != kVarOne) unite(x, y);
      r[r.size() - 1 - i] = x == kVarOne ? y : x;
    }
    return r;
  }

  bool understood(const Op& op) {
    std::vector<ValueId> in = mapped(op.inputs, [&](TensorId t) { return value_[t.index]; });
    if (op.kind == OpKind::Stack) return stack(op, in);
    if (op.num_results != 1 || op.inputs.size() > 3) return false;
    if (op.kind == OpKind::Custom) return false;  // its nodes name no function
    const Type& type = g_.type(op.result());
    if (type.rank() > kMaxAxes) return false;
    ValueId r = identity(op, type);
    if (r == kNone) r = spread(op, type);
    if (r != kNone) {  // several operators that NumPy has a name for
    } else if (has(op.kind, algebra::Pointwise)) {
      r = pointwise(op, in, type);
    } else if (op.constant()) {
      r = splat(op, type);
    } else if (is_reduction(op.kind)) {
      r = reduce(op, in[0]);
    } else if (op.kind == OpKind::Matmul) {
      r = matmul(in[0], in[1]);
    } else if (op.kind == OpKind::Transpose) {
      r = transpose(in[0], g_.attrs<PermAttrs>(op).perm);
    } else if (is_reshape(op.kind)) {
      r = moved_ones(in[0], type);
    } else if (op.kind == OpKind::Broadcast) {
      r = broadcast(in[0], type);
    } else if (op.kind == OpKind::Repeat) {  // of single rows, as numpy.tile makes it
      const std::vector<int64_t>& times = g_.attrs<RepeatAttrs>(op).repeats;
      bool ones = true;
      for (size_t i = 0; i < times.size(); ++i)
        ones = ones && (times[i] == 1 || axes_[in[0]][i] == kVarOne);
      if (ones) r = broadcast(in[0], type);
    } else if (op.kind == OpKind::Slice) {
      r = slice(op, in[0]);
    } else if (is_triangle(op.kind)) {
      const int64_t k = g_.attrs<DiagonalAttrs>(op).k;
      if (std::abs(k) <= 1)
        r = add(view(Form::Triangle, in[0], uint64_t(k), op.kind), axes_[in[0]], dtype(in[0]));
    }
    if (r == kNone) return false;
    value_[op.result().index] = r;
    return true;
  }

  ValueId pointwise(const Op& op, const std::vector<ValueId>& in, const Type& type) {
    Axes axes = axes_[in[0]];
    for (size_t i = 1; i < in.size(); ++i) axes = combined(axes, axes_[in[i]]);
    Node n = leaf(Form::Pointwise, 0);
    n.kind = op.kind;
    for (ValueId v : in) n.arg[n.arity++] = v;
    if (op.kind == OpKind::Cast) n.dtype = type.dtype;
    if (op.kind == OpKind::Pow) {
      const Rational& e = g_.attrs<PowAttrs>(op).exponent;
      n.attr = constant(e);
      spec_.with_roots |= !e.is_integer();
    }
    spec_.with_q |=
        has(op.kind, algebra::Exponential) || is_one_of(op.kind, OpKind::Log, OpKind::Log1p);
    spec_.with_roots |=
        is_one_of(op.kind, OpKind::Log, OpKind::Log1p, OpKind::Sqrt, OpKind::Rsqrt, OpKind::Power);
    spec_.with_order |= type.dtype == DType::Bool || op.kind == OpKind::Where ||
                        is_extremum(op.kind) || decides_by_sign(op.kind);
    return add(n, std::move(axes), type.dtype);
  }

  // numpy.eye as it is traced: rows equal columns, as floats.
  ValueId identity(const Op& op, const Type& type) {
    if (op.kind != OpKind::Cast || !is_float(type.dtype) || type.rank() != 2) return kNone;
    const Op& equal = g_.producer(op.inputs[0]);
    if (equal.kind != OpKind::Eq) return kNone;
    const Op &rows = g_.producer(equal.inputs[0]), &columns = g_.producer(equal.inputs[1]);
    if (rows.kind != OpKind::Iota || columns.kind != OpKind::Iota) return kNone;
    const std::vector<int64_t> e = extents(type.shape);
    if (e[0] != e[1] || e[0] == 1 || g_.type(rows.result()).shape != type.shape ||
        g_.type(columns.result()).shape != type.shape ||
        g_.attrs<IotaAttrs>(rows).axis + g_.attrs<IotaAttrs>(columns).axis != 1)
      return kNone;
    const Var n = variable(e[0]);
    return add(leaf(Form::Identity, 0), {n, n}, type.dtype);
  }

  // numpy.diag of a vector as it is traced: padded to rows of n + 1, folded into rows of n.
  ValueId spread(const Op& op, const Type& type) {
    if (op.kind != OpKind::Reshape || type.rank() != 2) return kNone;
    const int64_t n = extents(type.shape)[0];
    if (n == 1 || extents(type.shape)[1] != n) return kNone;
    const Op& cut = g_.producer(op.inputs[0]);
    if (cut.kind != OpKind::Slice || g_.attrs<SliceAttrs>(cut).starts != std::vector<int64_t>{0} ||
        g_.attrs<SliceAttrs>(cut).steps != std::vector<int64_t>{1})
      return kNone;
    const Op& flat = g_.producer(cut.inputs[0]);
    if (flat.kind != OpKind::Reshape) return kNone;
    const Op& pad = g_.producer(flat.inputs[0]);
    if (pad.kind != OpKind::Pad) return kNone;
    const auto& p = g_.attrs<PadAttrs>(pad);
    if (p.low != std::vector<int64_t>{0, 0} || p.high != std::vector<int64_t>{0, n} ||
        !p.value.is_zero())
      return kNone;
    const Op& column = g_.producer(pad.inputs[0]);
    if (column.kind != OpKind::Reshape && column.kind != OpKind::Unsqueeze) return kNone;
    const ValueId vector = value_[column.inputs[0].index];
    if (axes_[vector].size() != 1 || !is_float(dtype(vector)) ||
        extents(g_.type(column.result()).shape) != std::vector<int64_t>{n, 1})
      return kNone;
    return add(view(Form::Spread, vector, 0), {axes_[vector][0], axes_[vector][0]}, dtype(vector));
  }

  ValueId splat(const Op& op, const Type& type) {
    const Rational& value = std::get<ConstAttrs>(op.attrs).value;
    if (!value.finite()) return kNone;
    const ValueId scalar = add(leaf(Form::Const, constant(value), type.dtype), {}, type.dtype);
    return type.rank() == 0 ? scalar : broadcast(scalar, type);
  }

  ValueId reduce(const Op& op, ValueId x) {
    const auto& a = g_.attrs<ReduceAttrs>(op);
    if (dtype(x) == DType::Bool) return kNone;
    spec_.with_order |= reduces_by_order(op.kind);
    uint64_t mask = 0;
    for (int axis : a.axes) mask |= uint64_t(1) << axis;
    if (mask == 0) return x;
    Axes left;
    for (size_t i = 0; i < axes_[x].size(); ++i)
      if (!(mask >> i & 1)) left.push_back(axes_[x][i]);
    const ValueId r = add(view(Form::Reduce, x, mask, op.kind), left, dtype(x));
    if (!a.keepdims) return r;
    Axes with(axes_[x].size());
    for (size_t i = 0, from = 0; i < with.size(); ++i)
      with[i] = mask >> i & 1 ? kVarOne : left[from++];
    return add(view(Form::Unsqueeze, r, mask), with, dtype(x));
  }

  ValueId matmul(ValueId a, ValueId b) {
    if (dtype(a) == DType::Bool || dtype(a) != dtype(b)) return kNone;
    const Axes x = axes_[a], y = axes_[b];
    const Var k = x.back(), l = y[y.size() - 2];
    if ((k == kVarOne) != (l == kVarOne)) return kNone;
    if (k != kVarOne) unite(k, l);
    Axes axes = combined(Axes(x.begin(), x.end() - 2), Axes(y.begin(), y.end() - 2));
    axes.push_back(x[x.size() - 2]);
    axes.push_back(y.back());
    return add(product(a, b), axes, dtype(a));
  }

  ValueId transpose(ValueId x, const std::vector<int>& perm) {
    Axes axes;
    uint64_t code = 0;
    for (size_t i = 0; i < perm.size(); ++i) {
      axes.push_back(axes_[x][size_t(perm[i])]);
      code |= uint64_t(perm[i]) << (4 * i);
    }
    return add(view(Form::Transpose, x, code), axes, dtype(x));
  }

  // Reshapes that move extents of 1 only.
  ValueId moved_ones(ValueId x, const Type& type) {
    Axes bare;
    uint64_t dropped = 0, added = 0;
    for (size_t i = 0; i < axes_[x].size(); ++i)
      if (axes_[x][i] == kVarOne)
        dropped |= uint64_t(1) << i;
      else
        bare.push_back(axes_[x][i]);
    Axes result;
    size_t from = 0;
    for (int64_t extent : extents(type.shape)) {
      if (extent == 1) {
        added |= uint64_t(1) << result.size();
        result.push_back(kVarOne);
      } else {
        if (from == bare.size() || vars_[size_t(find(bare[from]))].extent != extent) return kNone;
        result.push_back(bare[from++]);
      }
    }
    if (from != bare.size()) return kNone;
    if (dropped == added && axes_[x].size() == result.size()) return x;
    ValueId r = x;
    // numpy.matmul takes vectors as they are: no axes are added to be dropped again.
    if (const ValueId y = vector_product(x, dropped); y != kNone && added == 0) return y;
    if (dropped != 0) r = add(view(Form::Squeeze, r, dropped), bare, dtype(x));
    if (added != 0) r = add(view(Form::Unsqueeze, r, added), result, dtype(x));
    return r;
  }

  // matmul(x[None, :], B)[0] and the like.
  ValueId vector_product(ValueId x, uint64_t dropped) {
    const Node& dot = spec_.nodes[x];
    if (dot.form != Form::Dot) return kNone;
    ValueId a = dot.arg[0], b = dot.arg[1];
    const size_t rank = axes_[x].size();
    uint64_t covered = 0;
    Axes axes = axes_[x];
    if (const Node& right = spec_.nodes[b]; right.form == Form::Unsqueeze && right.attr == 2 &&
                                            axes_[b].size() == 2 && (dropped >> (rank - 1) & 1)) {
      b = right.arg[0];
      covered |= uint64_t(1) << (rank - 1);
      axes.erase(axes.end() - 1);
    }
    if (const Node& left = spec_.nodes[a]; left.form == Form::Unsqueeze && left.attr == 1 &&
                                           axes_[a].size() == 2 && (dropped >> (rank - 2) & 1)) {
      a = left.arg[0];
      covered |= uint64_t(1) << (rank - 2);
      axes.erase(axes.begin() + long(rank) - 2);
    }
    if (covered == 0 || covered != dropped) return kNone;
    return add(product(a, b), axes, dtype(x));
  }

  ValueId broadcast(ValueId x, const Type& type) {
    Axes axes;
    const std::vector<int64_t> to = extents(type.shape);
    const size_t shift = to.size() - axes_[x].size();
    for (size_t i = 0; i < to.size(); ++i) {
      const Var from = i < shift ? kVarOne : axes_[x][i - shift];
      axes.push_back(from == kVarOne ? variable(to[i]) : from);
    }
    if (axes == axes_[x]) return x;
    return add(view(Form::Broadcast, x, 0), axes, dtype(x));
  }

  // Whole tensors and, behind a reshape, diagonals of square matrices and of batches of them.
  ValueId slice(const Op& op, ValueId x) {
    const auto& a = g_.attrs<SliceAttrs>(op);
    const std::vector<int64_t> from = extents(g_.type(op.inputs[0]).shape);
    if (a == whole(g_.type(op.inputs[0]).shape)) return x;
    const Op& reshape = g_.producer(op.inputs[0]);
    if (reshape.kind != OpKind::Reshape) return kNone;
    const ValueId matrix = value_[reshape.inputs[0].index];
    const std::vector<int64_t> square = extents(g_.type(reshape.inputs[0]).shape);
    const size_t last = from.size() - 1;
    if (square.size() != from.size() + 1 || square[last] != square[last + 1] || square[last] == 1)
      return kNone;
    const int64_t n = square[last];
    for (size_t i = 0; i < last; ++i)
      if (a.starts[i] != 0 || a.stops[i] != square[i] || a.steps[i] != 1) return kNone;
    if (from[last] != n * n || a.starts[last] != 0 || a.steps[last] != n + 1 ||
        a.stops[last] <= n * n - n - 1)
      return kNone;
    unite(axes_[matrix][last], axes_[matrix][last + 1]);
    Axes axes = axes_[matrix];
    axes.pop_back();
    return add(view(Form::Diagonal, matrix, 0), axes, dtype(matrix));
  }

  bool stack(const Op& op, const std::vector<ValueId>& in) {
    constexpr size_t kMany = 6;
    if (in.size() > kMany) return false;
    const size_t axis = size_t(g_.attrs<AxisAttrs>(op).axis);
    if (axes_[in[0]].size() + 1 > size_t(kMaxAxes)) return false;
    Axes axes = axes_[in[0]];
    for (ValueId v : in) {
      for (size_t i = 0; i < axes.size(); ++i)
        if (axes[i] != kVarOne) unite(axes[i], axes_[v][i]);
    }
    axes.insert(axes.begin() + long(axis), variable(int64_t(in.size()), true));
    value_[op.result().index] = add(leaf(Form::Stack, spec_.kept.size()), axes, dtype(in[0]));
    spec_.kept.push_back({OpKind::Stack, op.attrs, in, 0, 1, OpId()});
    return true;
  }

  void keep(OpId id, const Op& op) {
    KeptOp kept{op.kind, op.attrs, {}, 0, op.num_results, id};
    for (TensorId t : op.inputs) kept.args.push_back(value_[t.index]);
    for (uint32_t r = 0; r < op.num_results; ++r) {
      kept.result = r;
      const Type& type = g_.type(op.result(r));
      value_[op.result(r).index] = add(leaf(Form::Kept, spec_.kept.size()), fresh(type), type.dtype,
                                       derive_key(derive_key(2, id.index), r));
      spec_.kept.push_back(kept);
    }
  }

  // Gives every class of axes a dimension, and dimensions sizes.
  bool name_dimensions() {
    std::map<Var, DimId> names{{kVarOne, kOne}};
    std::vector<bool> literal{false};
    for (ValueId v = 0; v < spec_.nodes.size(); ++v) {
      for (Var axis : axes_[v]) {
        const Var root = find(axis);
        auto [at, fresh] = names.emplace(root, DimId(names.size()));
        if (fresh) {
          if (names.size() > 200) return false;
          spec_.table.extents.push_back(vars_[size_t(root)].extent);
          literal.push_back(vars_[size_t(root)].literal);
        }
        spec_.dims[v].push(at->second);
      }
    }
    // Unlike sizes tell dimensions apart, and no product of some is the same in both draws (it
    // would pass for a constant) or that of others. Where values get too large, smaller sizes
    // repeat; only the last, smallest ones have products that pass for constants.
    static constexpr int kSizes[][kDraws][4] = {{{3, 2, 4, 4}, {2, 5, 2, 3}},
                                                {{3, 2, 3, 3}, {2, 5, 2, 2}},
                                                {{3, 3, 3, 3}, {2, 2, 2, 2}},
                                                {{3, 2, 3, 2}, {2, 3, 2, 3}},
                                                {{3, 2, 1, 1}, {2, 3, 1, 1}}};
    const bool alike = std::ranges::all_of(spec_.nodes, [](const Node& n) {
      return n.form == Form::Pointwise || n.form == Form::Leaf || n.form == Form::Const;
    });
    for (const auto& sizes : kSizes) {
      if (&sizes == std::end(kSizes) - 1 && !alike) break;  // an axis of one tells nothing of sums
      spec_.table.sizes.assign(1, {1, 1});
      for (size_t d = 1, base = 0; d < spec_.table.extents.size(); ++d) {
        const int same = int(spec_.table.extents[d]);
        if (literal[d]) {
          spec_.table.sizes.push_back({same, same});
          continue;
        }
        spec_.table.sizes.push_back({sizes[0][base % 4], sizes[1][base % 4]});
        ++base;
      }
      if (std::ranges::all_of(spec_.dims,
                              [&](const Dims& d) { return spec_.table.count(d) <= kMaxCount; }))
        return true;
    }
    return any_size_;
  }

  const Graph& g_;
  bool any_size_;
  Spec spec_;
  std::vector<ValueId> value_;  // of tensors
  std::vector<Axes> axes_;      // of values
  std::vector<Variable> vars_;
};

}  // namespace

std::optional<Spec> parse(const Graph& program, bool any_size) {
  for (const Tensor& t : program.tensors())
    if (!is_static(t.type.shape)) return std::nullopt;
  return Parser(program, any_size).parse();
}

}  // namespace tessera::synth
