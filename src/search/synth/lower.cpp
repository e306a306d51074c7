#include "search/synth/lower.h"

#include <map>

#include "base/check.h"
#include "ir/build.h"
#include "search/rules/instance.h"
#include "search/synth/slice_graph.h"

namespace tessera::synth {
namespace {

class Lowering {
 public:
  Lowering(const Graph& program, const EGraph& graph)
      : program_(program), graph_(graph), out_(program.name()) {
    for (TensorId t : program.inputs())
      out_.add_input(program.type(t), program.tensor(t).name, program.is_weight(t));
  }

  Graph run(const Choice& choice, const std::vector<ValueId>& outputs) {
    tensor_.resize(graph_.size());
    for (ValueId v : graph_.order(choice, outputs)) {
      const Dims& dims = graph_[v].sample.dims;
      tensor_[v] = build(graph_[v].nodes[choice[v]], dims);
      CHECK(out_.type(tensor_[v]) == (Type{dims.dtype, shape(dims)}))
          << "of class " << v << " form " << int(graph_[v].nodes[choice[v]].form) << " kind "
          << name(graph_[v].nodes[choice[v]].kind) << " " << out_.type(tensor_[v]).str() << " "
          << str(shape(dims));
    }
    for (ValueId v : outputs) out_.add_output(tensor_[v]);
    return without_dead_code(out_);
  }

 private:
  Shape shape(const Dims& d) const {
    Shape s;
    for (int a = 0; a < d.rank; ++a)
      s.push_back(Dim(graph_.world().dims().extents[d.axis[size_t(a)]]));
    return s;
  }

  TensorId build(const Node& n, const Dims& dims) {
    std::vector<TensorId> in = mapped(n.arity, [&](int i) { return tensor_[n.arg[size_t(i)]]; });
    const World& world = graph_.world();
    switch (n.form) {
    case Form::Leaf: return out_.inputs()[n.attr];
    case Form::Extent:
      return out_.add_const(Rational(world.dims().elements(n.attr)), Type{dims.dtype, {}});
    case Form::Const: return out_.add_const(world.constants()[n.attr], Type{dims.dtype, {}});
    case Form::Pointwise:
      if (n.kind == OpKind::Pow) return out_.add(n.kind, in, PowAttrs{world.constants()[n.attr]});
      if (n.kind == OpKind::Cast) return out_.add(n.kind, in, CastAttrs{n.dtype});
      return out_.add(n.kind, in);
    case Form::Reduce: return out_.add(n.kind, in, ReduceAttrs{axes_of(n.attr), false});
    case Form::Dot: return rules::add_dot(out_, in[0], in[1]);
    case Form::Transpose: {
      std::vector<int> perm = mapped(dims.rank, [&](int a) { return int(n.attr >> (4 * a) & 15); });
      return build::transpose(out_, in[0], {perm});
    }
    case Form::Unsqueeze: return build::unsqueeze(out_, in[0], {axes_of(n.attr)});
    case Form::Squeeze: return build::squeeze(out_, in[0], {axes_of(n.attr)});
    case Form::Broadcast:
      if (const Op& c = out_.producer(in[0]); c.constant())
        return out_.add_const(std::get<ConstAttrs>(c.attrs).value, Type{dims.dtype, shape(dims)});
      return build::broadcast(out_, in[0], {shape(dims)});
    case Form::Identity: return identity(dims);
    case Form::Spread: return spread(in[0]);
    case Form::Diagonal: return diagonal(in[0]);
    case Form::Triangle: return out_.add(n.kind, in, DiagonalAttrs{int64_t(n.attr)});
    case Form::Stack:
    case Form::Kept: return kept(world.kept_ops()[n.attr]);
    }
    unreachable("Form");
  }

  // Every element of the last two axes, flat, that lies on the diagonal.
  TensorId diagonal(TensorId a) {
    std::vector<int64_t> e = extents(out_.type(a).shape);
    const int64_t size = e.back();
    e.pop_back();
    e.back() = size * size;
    const Shape flat(e.begin(), e.end());
    const TensorId f = build::reshape(out_, a, {flat});
    SliceAttrs s = whole(flat);
    s.steps.back() = size + 1;
    return build::slice(out_, f, s);
  }
  // As numpy.eye and numpy.diag are traced.
  TensorId identity(const Dims& dims) {
    const Type indices{DType::I64, shape(dims)};
    const TensorId rows = out_.add(OpKind::Iota, {}, IotaAttrs{0, indices});
    const TensorId columns = out_.add(OpKind::Iota, {}, IotaAttrs{1, indices});
    return build::cast(out_, out_.add(OpKind::Eq, {rows, columns}), {dims.dtype});
  }
  TensorId spread(TensorId a) {
    const int64_t n = extents(out_.type(a).shape)[0];
    const TensorId column = build::reshape(out_, a, {{Dim(n), Dim(1)}});
    const TensorId padded = build::pad(out_, column, {{0, 0}, {0, n}, Rational(0)});
    const TensorId flat = build::reshape(out_, padded, {{Dim(n * (n + 1))}});
    const TensorId cut = build::slice(out_, flat, {{0}, {n * n}, {1}});
    return build::reshape(out_, cut, {{Dim(n), Dim(n)}});
  }

  TensorId kept(const KeptOp& op) {
    std::vector<TensorId> in = mapped(op.args, [&](ValueId v) { return tensor_[v]; });
    if (op.kind == OpKind::Stack) return out_.add(op.kind, in, op.attrs);
    const auto [at, fresh] =
        made_.emplace(op.original.index, TensorId(uint32_t(out_.tensors().size())));
    if (fresh) {
      const Op& original = program_.op(op.original);
      if (original.body.valid())
        out_.add_graph_op(op.kind, in, program_.body(original));
      else
        out_.add_op(op.kind, in, op.attrs);
    }
    return TensorId(at->second.index + op.result);
  }

  const Graph& program_;
  const EGraph& graph_;
  Graph out_;
  std::vector<TensorId> tensor_;       // of classes
  std::map<uint32_t, TensorId> made_;  // first results of kept operators
};

}  // namespace

Graph lower(const Graph& program, const EGraph& graph, const Choice& choice,
            const std::vector<ValueId>& outputs) {
  return Lowering(program, graph).run(choice, outputs);
}

}  // namespace tessera::synth
