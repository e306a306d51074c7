#include "ir/special.h"

#include <algorithm>

#include "ir/walk.h"

namespace tessera {
namespace {

const Op& origin(const Graph& g, TensorId t) {
  const Op* op = &g.producer(t);
  while (arranges(op->kind)) op = &g.producer(op->inputs[0]);
  return *op;
}

// √((1 − t)(1 + t)) beside t, in either order: sines and cosines, of which neither is -0.
bool on_unit_circle(const Graph& g, TensorId root, TensorId t) {
  const Op& r = g.producer(root);
  if (r.kind != OpKind::Sqrt || g.producer(r.inputs[0]).kind != OpKind::Mul) return false;
  const Op& p = g.producer(r.inputs[0]);
  const Op &a = g.producer(p.inputs[0]), &b = g.producer(p.inputs[1]);
  if (a.kind != OpKind::Sub || b.kind != OpKind::Add) return false;
  const Rational* one = origin(g, a.inputs[0]).constant();
  return a.inputs == b.inputs && a.inputs[1] == t && one && *one == Rational(1);
}

bool asks(const Graph& g, const Op& op) {
  if (op.kind == OpKind::Atan2) {
    const Rational* c = origin(g, op.inputs[1]).constant();
    return !(c && !c->is_zero() && !c->negative()) &&
           !on_unit_circle(g, op.inputs[0], op.inputs[1]) &&
           !on_unit_circle(g, op.inputs[1], op.inputs[0]);
  }
  if (!is_comparison(op.kind)) return false;
  const Outcomes holds = outcomes(op.kind);  // for a number; for none x < x is no other
  if (op.inputs[0] == op.inputs[1]) return holds.equal || holds.less == holds.greater;
  return std::ranges::any_of(op.inputs, [&](TensorId t) {
    const Rational* c = origin(g, t).constant();
    return c && !c->finite();
  });
}

}  // namespace

bool asks_for_nan(const Graph& graph) { return any_op(graph, asks); }

}  // namespace tessera
