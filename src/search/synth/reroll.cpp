#include "search/synth/reroll.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "ir/build.h"
#include "search/synth/slice_graph.h"

namespace tessera::synth {
namespace {

constexpr size_t kLeastTerms = 4;  // of a sum that is taken for a loop

// What a list of tensors is: one tensor for all of them, or all of them along a new first axis.
struct Lifted {
  TensorId tensor;  // of the new graph
  bool along = false;
};

class Reroller {
 public:
  explicit Reroller(const Graph& g) : g_(g), out_(g.name()), uses_(use_counts(g)) {}

  std::optional<Retold> run() {
    to_.resize(g_.tensors().size());
    for (size_t i = 0; i < g_.ops().size(); ++i) {
      const Op& op = g_.ops()[i];
      if (op.num_results != 1 || !rolled(op)) copy_op(g_, op, out_, to_);
    }
    if (loops_ == 0) return std::nullopt;
    for (TensorId t : g_.outputs()) out_.add_output(to_[t.index]);
    return Retold{without_dead_code(out_), derivation_};
  }

 private:
  // Tries to compute an operator's result without the loop.
  bool rolled(const Op& op) {
    const bool stack = op.kind == OpKind::Stack, concat = op.kind == OpKind::Concat;
    const bool fold = is_extremum(op.kind) || op.kind == OpKind::Add || op.kind == OpKind::Mul;
    std::vector<TensorId> terms = op.inputs;
    if (fold) {
      if (op.kind == OpKind::Mul || !outermost(op)) return false;  // there is no product over axes
      terms.clear();
      terms_of(op.result(), op.kind, terms);
      if (terms.size() < kLeastTerms) return false;
    } else if (!stack && !concat) {
      return false;
    }
    if (terms.size() < 2) return false;
    for (TensorId t : terms)
      if (!(g_.type(t) == g_.type(terms[0]))) return false;
    const Graph::Mark mark = out_.mark();
    memo_.clear();
    try {
      const std::optional<Lifted> all = lift(terms);
      if (all && all->along) {
        to_[op.result().index] = finish(op, all->tensor);
        ++loops_;
        derivation_ += std::string("a loop of ") + std::to_string(terms.size()) + " rounds under " +
                       name(op.kind) + " runs over a whole axis at once\n";
        return true;
      }
    } catch (const Error&) {  // shapes that do not fit as expected: left as it was
    }
    out_.rollback(mark);
    return false;
  }

  bool outermost(const Op& op) {
    // The last of its chain: no single user of the same kind goes on with it.
    if (users_.empty()) {
      users_.resize(g_.tensors().size());
      for (size_t i = 0; i < g_.ops().size(); ++i)
        for (TensorId t : g_.ops()[i].inputs) users_[t.index].push_back(OpId(i));
    }
    const auto& users = users_[op.result().index];
    return !(users.size() == 1 && uses_[op.result().index] == 1 && g_.op(users[0]).kind == op.kind);
  }
  void terms_of(TensorId t, OpKind kind, std::vector<TensorId>& terms) {
    std::vector<TensorId> open{t};
    while (!open.empty()) {  // right operands wait, so that terms come out from left to right
      const TensorId x = open.back();
      open.pop_back();
      const Op& op = g_.producer(x);
      if (op.kind == kind && (x == t || uses_[x.index] == 1)) {
        open.push_back(op.inputs[1]);
        open.push_back(op.inputs[0]);
      } else {
        terms.push_back(x);
      }
    }
  }

  TensorId finish(const Op& op, TensorId all) {
    const int rank = int(out_.type(all).shape.size());
    auto moved = [&](int axis) {  // the first axis to there
      std::vector<int> perm;
      for (int i = 1; i < rank; ++i) perm.push_back(i);
      perm.insert(perm.begin() + axis, 0);
      return axis == 0 ? all : build::transpose(out_, all, {perm});
    };
    if (op.kind == OpKind::Stack) return moved(g_.attrs<AxisAttrs>(op).axis);
    if (op.kind == OpKind::Concat)
      return build::reshape(out_, moved(g_.attrs<AxisAttrs>(op).axis),
                            {g_.type(op.result()).shape});
    const OpKind reduce = reduction_by(fold_of(op.kind).value_or(AccumKind::Min));
    return out_.add(reduce, {all}, ReduceAttrs{{0}, false});
  }

  // --- the same operator on all, one operand after the other ------------------------------------

  std::optional<Lifted> lift(const std::vector<TensorId>& ts) {
    const auto same = [&](auto f) { return std::ranges::all_of(ts, f); };
    if (same([&](TensorId t) { return t == ts[0]; })) return Lifted{to_[ts[0].index], false};
    if (const auto known = memo_.find(ts); known != memo_.end()) return known->second;
    std::optional<Lifted>& result = memo_[ts];
    const Op& first = g_.producer(ts[0]);
    if (first.num_results != 1 || !same([&](TensorId t) {
          const Op& op = g_.producer(t);
          return op.kind == first.kind && op.inputs.size() == first.inputs.size() &&
                 g_.type(t) == g_.type(ts[0]);
        }))
      return std::nullopt;
    if (first.kind == OpKind::Slice) {
      if (auto rows = slices(ts)) return result = rows;
    }
    if (!same([&](TensorId t) { return g_.producer(t).attrs == first.attrs; })) return std::nullopt;
    if (first.constant()) return result = Lifted{to_[ts[0].index], false};
    std::vector<Lifted> args;
    bool along = false;
    for (size_t i = 0; i < first.inputs.size(); ++i) {
      auto column = mapped(ts, [&](TensorId t) { return g_.producer(t).inputs[i]; });
      const std::optional<Lifted> arg = lift(column);
      if (!arg) return std::nullopt;
      args.push_back(*arg);
      along = along || arg->along;
    }
    if (first.inputs.empty()) return std::nullopt;
    if (!along) return memo_[ts] = Lifted{to_[ts[0].index], false};  // the same thing, said often
    const std::optional<TensorId> made = apply(first, args, int64_t(ts.size()));
    if (!made) return std::nullopt;
    return memo_[ts] = Lifted{*made, true};
  }

  // x[0:1], x[1:2], … along one axis: all of x, that axis in front.
  std::optional<Lifted> slices(const std::vector<TensorId>& ts) {
    const Op& first = g_.producer(ts[0]);
    const auto& a = g_.attrs<SliceAttrs>(first);
    const auto& b = g_.attrs<SliceAttrs>(g_.producer(ts[1]));
    int axis = -1;
    for (size_t i = 0; i < a.starts.size(); ++i) {
      if (a.starts[i] == b.starts[i]) continue;
      if (axis >= 0) return std::nullopt;
      axis = int(i);
    }
    if (axis < 0) return std::nullopt;
    const size_t at = size_t(axis);
    const int64_t step = b.starts[at] - a.starts[at];
    if (step <= 0 || a.stops[at] != a.starts[at] + 1) return std::nullopt;
    SliceAttrs expected = a;
    for (TensorId t : ts) {
      const Op& op = g_.producer(t);
      if (op.inputs[0] != first.inputs[0] || !(g_.attrs<SliceAttrs>(op) == expected))
        return std::nullopt;
      expected.starts[at] += step;
      expected.stops[at] += step;
    }
    SliceAttrs all = a;
    all.stops[at] = a.starts[at] + step * int64_t(ts.size() - 1) + 1;
    all.steps[at] = step;
    TensorId x = to_[first.inputs[0].index];
    const std::vector<int64_t> from = extents(out_.type(x).shape);
    if (!(all == whole(out_.type(x).shape))) x = build::slice(out_, x, all);
    if (axis != 0) {
      std::vector<int> perm{axis};
      for (int i = 0; i < int(from.size()); ++i)
        if (i != axis) perm.push_back(i);
      x = build::transpose(out_, x, {perm});
    }
    return Lifted{build::unsqueeze(out_, x, {{axis + 1}}), true};
  }

  std::optional<TensorId> apply(const Op& op, const std::vector<Lifted>& args, int64_t n) {
    std::vector<TensorId> in = mapped(args, &Lifted::tensor);
    const auto shifted = [](std::vector<int> axes) {
      for (int& axis : axes) ++axis;
      return axes;
    };
    const auto longer = [&](const Shape& shape) {
      Shape r{Dim(n)};
      r.insert(r.end(), shape.begin(), shape.end());
      return ShapeAttrs{r};
    };
    if (has(op.kind, algebra::Pointwise) || op.kind == OpKind::Matmul) {
      // Operands that run along have the new axis in front of the axes that broadcast.
      int rank = 0;
      for (TensorId t : op.inputs) rank = std::max(rank, g_.type(t).rank());
      for (size_t i = 0; i < in.size(); ++i) {
        std::vector<int> axes;
        for (int missing = rank - g_.type(op.inputs[i]).rank(); missing > 0; --missing)
          axes.push_back(int(axes.size()) + 1);
        if (args[i].along && !axes.empty()) in[i] = build::unsqueeze(out_, in[i], {axes});
      }
      return out_.add(op.kind, in, op.attrs);
    }
    if (const auto* a = std::get_if<ReduceAttrs>(&op.attrs))
      return out_.add(op.kind, in, ReduceAttrs{shifted(a->axes), a->keepdims});
    if (const auto* a = std::get_if<AxesAttrs>(&op.attrs))
      return out_.add(op.kind, in, AxesAttrs{shifted(a->axes)});
    if (const auto* a = std::get_if<PermAttrs>(&op.attrs)) {
      std::vector<int> perm = shifted(a->perm);
      perm.insert(perm.begin(), 0);
      return out_.add(op.kind, in, PermAttrs{perm});
    }
    if (op.kind == OpKind::Reshape)
      return out_.add(op.kind, in, longer(g_.attrs<ShapeAttrs>(op).shape));
    if (op.kind == OpKind::Slice) {
      SliceAttrs a = g_.attrs<SliceAttrs>(op);
      a.starts.insert(a.starts.begin(), 0);
      a.stops.insert(a.stops.begin(), n);
      a.steps.insert(a.steps.begin(), 1);
      return out_.add(op.kind, in, a);
    }
    if (is_scan(op.kind)) return out_.add(op.kind, in, AxisAttrs{g_.attrs<AxisAttrs>(op).axis + 1});
    if (is_triangle(op.kind)) return out_.add(op.kind, in, op.attrs);
    if (op.kind == OpKind::Stack || op.kind == OpKind::Concat) {
      for (size_t i = 0; i < in.size(); ++i)
        if (!args[i].along)
          in[i] = build::broadcast(out_, in[i], longer(g_.type(op.inputs[i]).shape));
      return out_.add(op.kind, in, AxisAttrs{g_.attrs<AxisAttrs>(op).axis + 1});
    }
    return std::nullopt;
  }

  const Graph& g_;
  Graph out_;
  std::vector<int> uses_;
  std::vector<std::vector<OpId>> users_;
  std::vector<TensorId> to_;  // new tensors of old ones
  std::map<std::vector<TensorId>, std::optional<Lifted>> memo_;
  std::string derivation_;
  int loops_ = 0;
};

}  // namespace

std::optional<Retold> reroll(const Graph& program) {
  for (const Tensor& t : program.tensors())
    if (!is_static(t.type.shape)) return std::nullopt;
  return Reroller(program).run();
}

}  // namespace tessera::synth
