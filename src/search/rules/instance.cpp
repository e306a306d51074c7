#include "search/rules/instance.h"

#include <algorithm>

#include "base/error.h"
#include "ir/build.h"

namespace tessera::rules {
namespace {

using synth::Form, synth::Node, synth::ValueId;

std::vector<int64_t> concrete(const ShapePattern& s, const Assignment& a,
                              std::vector<int64_t> leading) {
  if (s.leading && !s.leading->empty()) leading = a.leading.at(*s.leading);
  for (const std::string& d : s.dims) leading.push_back(d == "1" ? 1 : a.dims.at(d));
  return leading;
}

Shape shape_of(const std::vector<int64_t>& extents) { return {extents.begin(), extents.end()}; }

class Builder {
 public:
  Builder(const Rule& rule, const Assignment& a, DType dtype)
      : rule_(rule), a_(a), dtype_(dtype), graph_(rule.name), made_(rule.nodes.size()) {
    for (size_t v = 0; v < rule.variables.size(); ++v) {
      const bool boolean = rule.variables[v].boolean;
      TensorId t = graph_.add_input(Type{boolean ? DType::Bool : dtype, shape_of(a.shapes[v])},
                                    rule.variables[v].name);
      for (const Condition& c : rule.conditions) {
        const Node& n = rule.nodes[c.value];
        if (c.implied || n.form != Form::Leaf || n.attr != v) continue;
        if (c.kind == Condition::Kind::Positive) t = graph_.add(OpKind::Exp, {t});
        if (c.kind == Condition::Kind::NonNegative) t = graph_.add(OpKind::Sqr, {t});
      }
      leaves_.push_back(t);
    }
  }

  TensorId value(ValueId v) {
    if (!made_[v]) made_[v] = make(rule_.nodes[v]);
    return *made_[v];
  }
  Graph& graph() { return graph_; }

 private:
  [[noreturn]] static void refuse() { bad_input("does not fit"); }
  static std::vector<int> axes(uint64_t mask, int rank) {
    std::vector<int> r;
    if (mask != kAllAxes && rank < 64 && (mask >> rank) != 0) refuse();
    for (int axis = 0; axis < rank; ++axis)
      if (mask == kAllAxes || (mask >> (rank - 1 - axis) & 1)) r.push_back(axis);
    return r;
  }
  Rational number(uint64_t constant) const {
    const auto r = rules::value(rule_, uint32_t(constant), a_.numbers);
    if (!r) refuse();
    return *r;
  }

  TensorId make(const Node& n) {
    std::vector<TensorId> in = mapped(
        n.arity, [&](int i) { return value(n.arg[size_t(i)]); });
    auto rank = [&](size_t i) { return graph_.type(in[i]).rank(); };
    switch (n.form) {
    case Form::Leaf: return leaves_[n.attr];
    case Form::Const: {
      const Rational r = number(n.attr);
      if (!is_float(dtype_) && !r.is_integer()) refuse();
      return graph_.add_const(r, Type{dtype_, {}});
    }
    case Form::Pointwise:
      if (n.kind == OpKind::Pow) return graph_.add(n.kind, in, PowAttrs{number(n.attr)});
      return graph_.add(n.kind, in);
    case Form::Reduce: {
      const std::vector<int> along = axes(n.attr, rank(0));
      if (along.empty()) return in[0];
      return graph_.add(n.kind, in, ReduceAttrs{along, false});
    }
    case Form::Dot: return add_dot(graph_, in[0], in[1]);
    case Form::Transpose: {
      const int r = int(n.attr & 15), lead = rank(0) - r;
      if (lead < 0) refuse();
      std::vector<int> perm = mapped(lead, [&](int i) { return i; });
      for (int i = 0; i < r; ++i) perm.push_back(lead + int(n.attr >> (4 * i + 4) & 15));
      return build::transpose(graph_, in[0], {perm});
    }
    case Form::Unsqueeze:
      return build::unsqueeze(graph_, in[0],
                              {axes(n.attr, rank(0) + __builtin_popcountll(n.attr))});
    case Form::Squeeze: return build::squeeze(graph_, in[0], {axes(n.attr, rank(0))});
    case Form::Broadcast:
      return build::broadcast(graph_, in[0], {shape_of(concrete(rule_.shapes[n.attr], a_, {}))});
    case Form::Diagonal: {
      // Of batches there is none in a program (search/synth/lower.cpp).
      if (rank(0) != 2) refuse();
      const std::vector<int64_t> e = extents(graph_.type(in[0]).shape);
      if (e[0] != e[1]) refuse();
      const TensorId flat = build::reshape(graph_, in[0], {{Dim(e[0] * e[0])}});
      return build::slice(graph_, flat, {{0}, {e[0] * e[0]}, {e[0] + 1}});
    }
    case Form::Triangle: return graph_.add(n.kind, in, DiagonalAttrs{int64_t(n.attr)});
    case Form::Stack: {
      const Rule::Stack& s = rule_.stacks[n.attr];
      for (ValueId a : s.args) in.push_back(value(a));
      const int axis = rank(0) - int(s.axis);
      if (axis < 0) refuse();
      return build::stack(graph_, in, {axis});
    }
    case Form::Extent:
    case Form::Identity:
    case Form::Spread:
    case Form::Kept: break;
    }
    refuse();
  }

  const Rule& rule_;
  const Assignment& a_;
  DType dtype_;
  Graph graph_;
  std::vector<TensorId> leaves_;
  std::vector<std::optional<TensorId>> made_;
};

}  // namespace

Assignment draw(const Rule& rule, Sizes sizes, Rng& rng) {
  static constexpr int64_t kUnlike[] = {3, 2, 5, 4, 7, 6};
  static constexpr int64_t kMixed[] = {1, 1, 2, 3, 4, 5, 2, 3, 9, 17};
  static const Rational kNumbers[] = {2,  3, Rational::ratio(1, 2), -1, 5, Rational::ratio(3, 2),
                                      -2, 4, Rational::ratio(1, 4), 1,  7, Rational::ratio(-1, 3)};
  Assignment a;
  size_t next = rng.below(std::size(kUnlike));
  auto extent = [&]() -> int64_t {
    if (sizes == Sizes::One) return 1;
    if (sizes == Sizes::Any || sizes == Sizes::AnyBare) return rng.between(20, 120);
    if (sizes == Sizes::Unlike || sizes == Sizes::Bare) return kUnlike[next++ % std::size(kUnlike)];
    return kMixed[rng.below(std::size(kMixed))];
  };
  auto axes = [&] {
    const bool none = sizes == Sizes::One || sizes == Sizes::Bare || sizes == Sizes::AnyBare;
    const size_t count = none                     ? 0
                         : sizes == Sizes::Unlike ? 1
                         : sizes == Sizes::Any    ? 2
                                                  : rng.below(3);
    std::vector<int64_t> list(count);
    for (int64_t& n : list) n = sizes == Sizes::Any ? extent() : std::min<int64_t>(extent(), 6);
    return list;
  };
  auto patterns = mapped(rule.variables, [&](const Variable& v) { return &v.shape; });
  for (const ShapePattern& s : rule.shapes) patterns.push_back(&s);
  for (const ShapePattern* s : patterns) {
    for (const std::string& d : s->dims)
      if (d != "1" && !a.dims.count(d)) a.dims[d] = extent();
    if (s->leading && !s->leading->empty() && !a.leading.count(*s->leading))
      a.leading[*s->leading] = axes();
  }
  const std::vector<int64_t> any = axes();
  for (const Variable& v : rule.variables) {
    std::vector<int64_t> leading;
    if (v.shape.leading) {
      leading = any;
      if (sizes == Sizes::Mixed) {
        leading.erase(leading.begin(), leading.begin() + long(rng.below(leading.size() + 1)));
        for (int64_t& n : leading)
          if (rng.chance(0.2)) n = 1;
      }
    }
    a.shapes.push_back(concrete(v.shape, a, leading));
  }
  a.numbers.resize(rule.constants.size());
  for (size_t c = 0; c < rule.constants.size(); ++c)
    if (rule.constants[c].kind == Constant::Kind::Variable)
      a.numbers[c] = kNumbers[rng.below(std::size(kNumbers))];
  return a;
}

TensorId add_dot(Graph& graph, TensorId a, TensorId b) {
  const bool left = graph.type(a).rank() == 1, right = graph.type(b).rank() == 1;
  if (left) a = build::unsqueeze(graph, a, {{0}});
  if (right) b = build::unsqueeze(graph, b, {{1}});
  const TensorId r = build::matmul(graph, {a, b});
  const int rank = graph.type(r).rank();
  std::vector<int> drop;
  if (left) drop.push_back(rank - 2);
  if (right) drop.push_back(rank - 1);
  return drop.empty() ? r : build::squeeze(graph, r, {drop});
}

std::optional<Graph> build(const Rule& rule, const std::vector<ValueId>& values,
                           const Assignment& a, DType dtype) {
  try {
    Builder b(rule, a, dtype);
    for (ValueId v : values) b.graph().add_output(b.value(v));
    return without_dead_code(b.graph());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::vector<Type>> types(const Rule& rule, const Assignment& a, DType dtype) {
  try {
    Builder b(rule, a, dtype);
    return mapped(rule.nodes.size(), [&](ValueId v) { return b.graph().type(b.value(v)); });
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace tessera::rules
