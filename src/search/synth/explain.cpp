#include "search/synth/explain.h"

#include <span>

#include "base/check.h"
#include "base/text.h"

namespace tessera::synth {
namespace {

class Printer {
 public:
  Printer(const EGraph& graph, const Choice& choice, const std::map<ValueId, std::string>& names)
      : graph_(graph), choice_(choice), names_(names) {}

  Text print(ValueId v, int depth) const {
    if (const auto name = names_.find(v); name != names_.end()) return {name->second, Atom};
    if (depth > 40 || v >= choice_.size() || choice_[v] == kNone) return {"…", Atom};
    const Node& n = graph_[v].nodes[choice_[v]];
    auto arg = [&](int i) { return print(n.arg[size_t(i)], depth + 1); };
    auto call = [&](const std::string& function, const std::string& more = "") {
      const std::span args(n.arg.data(), n.arity);
      return Text{function + "(" + told(args, depth) + more + ")", Atom};
    };
    const World& world = graph_.world();
    switch (n.form) {
    case Form::Leaf: return {"input " + std::to_string(n.attr), Atom};
    case Form::Const: {
      const Rational& c = world.constants()[n.attr];
      const bool fraction = c.finite() && !c.is_integer();
      return {c.str(), c.negative() ? Sign : fraction ? Product : Atom};
    }
    case Form::Extent: return {std::to_string(world.dims().elements(n.attr)), Atom};
    case Form::Identity:
      return {"eye(" + std::to_string(world.dims().elements(graph_[v].sample.dims.axis[0])) + ")",
              Atom};
    case Form::Spread: return call("diag");
    case Form::Pointwise: return pointwise(n, arg, call);
    case Form::Reduce: {
      const std::string function = numpy_name(n.kind);
      const int rank = graph_[n.arg[0]].sample.dims.rank;
      if (n.attr + 1 == uint64_t(1) << rank) return call(function);
      return call(function, ", axis=" + axes(n.attr));
    }
    case Form::Dot: return binary(" @ ", Product, arg(0), arg(1));
    case Form::Transpose: {
      const int rank = graph_[v].sample.dims.rank;
      if (rank == 2) return {wrap(arg(0), Atom) + ".T", Atom};
      const auto perm = mapped(rank, [&](int a) { return n.attr >> (4 * a) & 15; });
      return call("transpose", ", (" + joined(perm, ", ") + ")");
    }
    case Form::Unsqueeze: return call("expand_dims", ", " + axes(n.attr));
    case Form::Squeeze: return call("squeeze", ", " + axes(n.attr));
    case Form::Broadcast:
      if (graph_[n.arg[0]].nodes.front().form == Form::Const)
        return call("full", ", " + extents(graph_[v].sample.dims));
      return call("broadcast_to", ", " + extents(graph_[v].sample.dims));
    case Form::Diagonal: return call("diagonal");
    case Form::Triangle: {
      const int64_t k = int64_t(n.attr);
      return call(name(n.kind), k == 0 ? "" : ", " + std::to_string(k));
    }
    case Form::Stack:
    case Form::Kept: {
      const KeptOp& op = world.kept_ops()[n.attr];
      return {std::string(name(op.kind)) + "(" + told(op.args, depth) + ")", Atom};
    }
    }
    unreachable("Form");
  }

 private:
  // Operands of what is printed at this depth.
  template <class Args> std::string told(const Args& args, int depth) const {
    return joined(
        args, ", ", [&](ValueId a) { return print(a, depth + 1).text; });
  }
  std::string extents(const Dims& d) const {
    const std::vector<int64_t>& all = graph_.world().dims().extents;
    const std::span axes(d.axis.data(), d.rank);
    return "(" + joined(axes, ", ", [&](DimId a) { return std::to_string(all[a]); }) + ")";
  }
  static std::string axes(uint64_t mask) {
    const std::vector<int> named = axes_of(mask);
    return named.size() == 1 ? joined(named) : "(" + joined(named, ", ") + ")";
  }
  template <class Arg, class Call> Text pointwise(const Node& n, Arg arg, Call call) const {
    if (const std::string sign = infix(n.kind); !sign.empty())
      return binary(" " + sign + " ", sign == "*" || sign == "/" ? Product : Sum, arg(0), arg(1));
    if (n.kind == OpKind::Neg) return {"-" + wrap(arg(0), Power), Sign};
    if (n.kind == OpKind::Sqr) return {wrap(arg(0), Atom) + "**2", Power};
    if (n.kind == OpKind::Pow) {
      const Rational& e = graph_.world().constants()[n.attr];
      const bool plain = e.is_integer() && !e.negative();
      return {wrap(arg(0), Atom) + "**" + (plain ? e.str() : "(" + e.str() + ")"), Power};
    }
    return call(numpy_name(n.kind));
  }

  const EGraph& graph_;
  const Choice& choice_;
  const std::map<ValueId, std::string>& names_;
};

}  // namespace

std::string expression(const EGraph& graph, const Choice& choice, ValueId value,
                       const std::map<ValueId, std::string>& names) {
  return Printer(graph, choice, names).print(value, 0).text;
}

}  // namespace tessera::synth
