#include "search/rules/sign.h"

namespace tessera::rules {

using synth::EGraph, synth::Form, synth::Node, synth::ValueId;

namespace {

constexpr int kDepth = 5;  // operations that are looked through

Sign class_sign(const EGraph& graph, ValueId id, int depth) {
  Sign known;
  if (depth == 0) return known;
  for (const Node& n : graph[id].nodes) {
    const bool numbered = has_constant(n);
    const Rational* constant = numbered ? &graph.world().constants()[n.attr] : nullptr;
    const Sign s =
        sign_of(n, constant, [&](int i) { return class_sign(graph, n.arg[size_t(i)], depth - 1); });
    known.nonnegative |= s.nonnegative;
    known.nonzero |= s.nonzero;
    if (known.nonnegative && known.nonzero) break;
  }
  return known;
}

}  // namespace

Sign sign_of(const EGraph& graph, ValueId id) { return class_sign(graph, id, kDepth); }

Sign sign_of(const Node& n, const Rational* constant, const std::function<Sign(int)>& arg) {
  switch (n.form) {
  case Form::Const: return {!constant->negative(), !constant->is_zero()};
  case Form::Reduce: {
    Sign a = arg(0);
    if (is_sum(n.kind)) a.nonzero &= a.nonnegative;
    return a;
  }
  case Form::Dot: {
    const Sign a = arg(0), b = arg(1);
    const bool positive = a.nonnegative && b.nonnegative && a.nonzero && b.nonzero;
    return {a.nonnegative && b.nonnegative, positive};
  }
  case Form::Transpose:
  case Form::Unsqueeze:
  case Form::Squeeze:
  case Form::Broadcast:
  case Form::Diagonal: return arg(0);
  case Form::Spread:
  case Form::Triangle: return {arg(0).nonnegative, false};
  case Form::Identity: return {true, false};
  case Form::Extent: return {true, true};
  case Form::Leaf:
  case Form::Stack:
  case Form::Kept: return {};
  case Form::Pointwise: break;
  }
  if (has(n.kind, algebra::Positive) || n.kind == OpKind::Rsqrt) return {true, true};
  if (has(n.kind, algebra::NotNegative)) {
    const Sign a = arg(0);
    return {true, a.nonzero && (a.nonnegative || n.kind != OpKind::Relu)};
  }
  if (n.kind == OpKind::Neg) return {false, arg(0).nonzero};
  if (n.kind == OpKind::Pow) {
    const Sign a = arg(0);
    // Other powers than whole ones are defined where the base is not negative only.
    const bool even =
        !constant->is_integer() || Rational::mul(*constant, Rational::ratio(1, 2))->is_integer();
    return {even || a.nonnegative, a.nonzero || constant->negative()};
  }
  if (!is_extremum(n.kind) &&
      !is_one_of(n.kind, OpKind::Mul, OpKind::Div, OpKind::Add, OpKind::Where))
    return {};
  const int first = int(first_value(n.kind));
  const Sign a = arg(first), b = arg(first + 1);
  const bool neither = a.nonnegative && b.nonnegative;
  const bool positive_a = a.nonnegative && a.nonzero, positive_b = b.nonnegative && b.nonzero;
  if (n.kind == OpKind::Mul) return {neither || n.arg[0] == n.arg[1], a.nonzero && b.nonzero};
  if (n.kind == OpKind::Div) return {neither, a.nonzero};
  if (n.kind == OpKind::Add) return {neither, neither && (a.nonzero || b.nonzero)};
  if (fold_of(n.kind) == AccumKind::Max)
    return {a.nonnegative || b.nonnegative, positive_a || positive_b || (a.nonzero && b.nonzero)};
  return {neither, a.nonzero && b.nonzero};
}

}  // namespace tessera::rules
