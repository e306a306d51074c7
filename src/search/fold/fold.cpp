#include "search/fold/fold.h"

#include <algorithm>
#include <functional>
#include <set>

#include "ir/build.h"
#include "ir/weights.h"

namespace tessera {
namespace {

// Builds the new value of one tensor; `to` has the new ids of everything before it.
using Build = std::function<TensorId(Graph&, const std::vector<TensorId>& to)>;

struct Rewrite {
  OpId at;
  Build build;
  std::string rule;
};

// The program with the only result of one operator made another way.
Graph rebuilt(const Graph& g, const Rewrite& rewrite) {
  Graph out(g.name());
  std::vector<TensorId> to(g.tensors().size());
  for (size_t i = 0; i < g.ops().size(); ++i) {
    const Op& op = g.ops()[i];
    if (OpId(i) == rewrite.at) {
      to[op.result().index] = rewrite.build(out, to);
      continue;
    }
    copy_op(g, op, out, to);
  }
  for (TensorId t : g.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

// Whether a value of this shape varies along no axis but the one `back` from the end (1: the last)
// of what it is broadcast to.
bool only_along(const Shape& shape, size_t back) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (!shape[i].is_one() && shape.size() - i != back) return false;
  return true;
}

class Rules {
 public:
  explicit Rules(const Graph& g) : g_(g), fixed_(g.tensors().size(), false) {
    const std::vector<bool> once = computed_once(g);
    for (size_t i = 0; i < g.ops().size(); ++i) {
      const Op& op = g.ops()[i];
      const bool leaf = op.constant() || (op.kind == OpKind::Input && g.is_weight(op.result()));
      for (uint32_t r = 0; r < op.num_results; ++r) fixed_[op.result(r).index] = leaf || once[i];
    }
  }

  std::vector<Rewrite> all() const {
    std::vector<Rewrite> found;
    for (size_t i = 0; i < g_.ops().size(); ++i) {
      const Op& op = g_.ops()[i];
      if (op.num_results != 1 || fixed_[op.result().index]) continue;
      if (op.kind == OpKind::Matmul) {
        for (const bool left : {false, true}) {
          scaled_operand(OpId(i), left, found);
          chain(OpId(i), left, found);
        }
      }
      if (op.kind == OpKind::Mul || op.kind == OpKind::Div) scaled_result(OpId(i), found);
      if (op.kind == OpKind::Add || op.kind == OpKind::Sub) sum(OpId(i), found);
    }
    return found;
  }

 private:
  bool fixed(TensorId t) const { return fixed_[t.index]; }
  const Shape& shape(TensorId t) const { return g_.type(t).shape; }

  // (x·g) W → x (g W), or W (g·x) → (W g) x.
  void scaled_operand(OpId at, bool left, std::vector<Rewrite>& found) const {
    const Op& op = g_.op(at);
    const TensorId w = op.inputs[left ? 0 : 1], a = op.inputs[left ? 1 : 0];
    if (!fixed(w) || fixed(a)) return;
    const Op& scale = g_.producer(a);
    if (scale.kind != OpKind::Mul && scale.kind != OpKind::Div) return;
    for (size_t side = 0; side < 2; ++side) {
      if (scale.kind == OpKind::Div && side == 0) continue;  // g/x is no scaling of x
      const TensorId g = scale.inputs[side], x = scale.inputs[1 - side];
      if (!fixed(g) || !(shape(x) == shape(a)) || !only_along(shape(g), left ? 2 : 1)) continue;
      const OpKind kind = scale.kind;
      found.push_back({at,
                       [=, this](Graph& out, const std::vector<TensorId>& to) {
                         TensorId scaled = to[g.index];
                         if (const int64_t n = num_elements(shape(g)); n > 1) {
                           ShapeAttrs across;
                           across.shape = left ? Shape{1, n} : Shape{n, 1};
                           scaled = build::reshape(out, scaled, across);
                         } else if (!shape(g).empty()) {
                           scaled = build::reshape(out, scaled, {Shape{}});
                         }
                         scaled = out.add(kind, {to[w.index], scaled});
                         return left ? build::matmul(out, {scaled, to[x.index]})
                                     : build::matmul(out, {to[x.index], scaled});
                       },
                       left ? "W (g*x) = (W*g) x" : "(x*g) W = x (g*W)"});
    }
  }

  // (x A) B → x (A B), or A (B x) → (A B) x.
  void chain(OpId at, bool left, std::vector<Rewrite>& found) const {
    const Op& op = g_.op(at);
    const TensorId outer = op.inputs[left ? 0 : 1], inner_result = op.inputs[left ? 1 : 0];
    const Op& inner = g_.producer(inner_result);
    if (!fixed(outer) || inner.kind != OpKind::Matmul) return;
    const TensorId w = inner.inputs[left ? 0 : 1], x = inner.inputs[left ? 1 : 0];
    if (!fixed(w) || fixed(x) || shape(w).size() != 2 || shape(outer).size() != 2) return;
    found.push_back({at,
                     [=](Graph& out, const std::vector<TensorId>& to) {
                       if (left) {
                         const TensorId both = build::matmul(out, {to[outer.index], to[w.index]});
                         return build::matmul(out, {both, to[x.index]});
                       }
                       const TensorId both = build::matmul(out, {to[w.index], to[outer.index]});
                       return build::matmul(out, {to[x.index], both});
                     },
                     left ? "A (B x) = (A B) x" : "(x A) B = x (A B)"});
  }

  // (x W)·c → x (W·c), or (W x)·c → (c·W) x.
  void scaled_result(OpId at, std::vector<Rewrite>& found) const {
    const Op& op = g_.op(at);
    for (size_t side = 0; side < 2; ++side) {
      if (op.kind == OpKind::Div && side == 0) continue;
      const TensorId c = op.inputs[side], y = op.inputs[1 - side];
      const Op& product = g_.producer(y);
      if (!fixed(c) || product.kind != OpKind::Matmul || !(shape(y) == shape(op.result())))
        continue;
      for (const bool left : {false, true}) {
        const TensorId w = product.inputs[left ? 0 : 1], x = product.inputs[left ? 1 : 0];
        if (!fixed(w) || fixed(x) || !only_along(shape(c), left ? 2 : 1)) continue;
        if (shape(c).size() > shape(w).size()) continue;  // would give the weight more axes
        const OpKind kind = op.kind;
        found.push_back({at,
                         [=](Graph& out, const std::vector<TensorId>& to) {
                           const TensorId scaled = out.add(kind, {to[w.index], to[c.index]});
                           return left ? build::matmul(out, {scaled, to[x.index]})
                                       : build::matmul(out, {to[x.index], scaled});
                         },
                         left ? "(W x)*c = (c*W) x" : "(x W)*c = x (W*c)"});
        break;
      }
    }
  }

  // x A ± x B → x (A ± B), or A x ± B x → (A ± B) x.
  void sum(OpId at, std::vector<Rewrite>& found) const {
    const Op& op = g_.op(at);
    const Op &p = g_.producer(op.inputs[0]), &q = g_.producer(op.inputs[1]);
    if (p.kind != OpKind::Matmul || q.kind != OpKind::Matmul) return;
    for (const bool left : {false, true}) {
      const TensorId a = p.inputs[left ? 0 : 1], b = q.inputs[left ? 0 : 1];
      const TensorId x = p.inputs[left ? 1 : 0];
      if (x != q.inputs[left ? 1 : 0] || !fixed(a) || !fixed(b) || fixed(x)) continue;
      if (!(g_.type(a) == g_.type(b))) continue;
      const OpKind kind = op.kind;
      found.push_back({at,
                       [=](Graph& out, const std::vector<TensorId>& to) {
                         const TensorId both = out.add(kind, {to[a.index], to[b.index]});
                         return left ? build::matmul(out, {both, to[x.index]})
                                     : build::matmul(out, {to[x.index], both});
                       },
                       std::string(left ? "A x " : "x A ") + (kind == OpKind::Add ? "+" : "-") +
                           (left ? " B x = (A B summed) x" : " x B = x (A B summed)")});
    }
  }

  const Graph& g_;
  std::vector<bool> fixed_;
};

}  // namespace

double work_per_call(const Graph& program) {
  const std::vector<bool> once = computed_once(program);
  double work = 0;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const Op& op = program.ops()[i];
    if (once[i] || is_given(op.kind)) continue;
    if (is_reshape(op.kind)) continue;
    const double elements = double(num_elements(program.type(op.result()).shape));
    work += op.kind == OpKind::Matmul
                ? elements * double(program.type(op.inputs[0]).shape.back().extent)
                : elements;
  }
  return work;
}

std::vector<Folding> fold_weights(const Graph& program, int depth, size_t most) {
  constexpr size_t kMostPrograms = 200;
  bool any = false;
  for (TensorId t : program.inputs()) any = any || program.is_weight(t);
  for (const Tensor& t : program.tensors()) any = any && is_static(t.type.shape);
  if (!any || program.level() != Level::Kernel) return {};
  std::vector<Folding> reached = {{program, ""}};
  std::set<uint64_t> known = {structural_hash(program)};
  size_t from = 0;
  for (int step = 0; step < depth; ++step) {
    const size_t end = reached.size();
    for (; from < end; ++from) {
      const Graph g = reached[from].graph;  // `reached` grows
      const Rules rules(g);                 // what it finds refers to it
      for (const Rewrite& r : rules.all()) {
        if (reached.size() >= kMostPrograms) break;
        Graph next = rebuilt(g, r);
        if (!known.insert(structural_hash(next)).second) continue;
        // Types must not have changed on the way (mixed element types promote differently).
        bool same = true;
        for (size_t i = 0; i < g.outputs().size(); ++i)
          same = same && next.type(next.outputs()[i]) == g.type(g.outputs()[i]);
        if (same) reached.push_back({std::move(next), reached[from].derivation + r.rule + "\n"});
      }
    }
  }
  const double before = work_per_call(program);
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 1; i < reached.size(); ++i) {
    const double work = work_per_call(reached[i].graph);
    if (work < before) order.emplace_back(work, i);
  }
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Folding> out;
  for (const auto& [work, i] : order) {
    if (out.size() >= most) break;
    out.push_back(std::move(reached[i]));
  }
  return out;
}

}  // namespace tessera
