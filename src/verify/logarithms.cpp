#include "verify/logarithms.h"

#include <algorithm>
#include <map>
#include <vector>

namespace tessera {
namespace {

// Meromorphic in every operand, so that two such programs that agree for positive inputs agree.
bool analytic(const Graph& g, bool in_kernel) {
  return std::ranges::all_of(
      g.ops(),
      [&](const Op& op) {
        for (uint32_t r = 0; r < op.num_results; ++r)
          if (!is_float(g.type(op.result(r)).dtype)) return false;
        if (op.body.valid()) return analytic(g.body(op), true);
        if (op.kind == OpKind::Pow) return g.attrs<PowAttrs>(op).exponent.is_integer();
        if (op.kind == OpKind::Accum) return !decides(op);
        // Inside kernels logarithms cannot be replaced.
        return has(op.kind, algebra::Analytic) || (op.kind == OpKind::Log && !in_kernel);
      });
}

bool moves_one(const Op& op) { return only_moves(op.kind) && op.inputs.size() == 1; }

// The input whose values a tensor holds, or whose squares (then `square`), moved about or not.
struct Base {
  size_t input = SIZE_MAX;
  bool square = false;
};
Base base_of(const Graph& g, TensorId t) {
  Base b;
  while (moves_one(g.producer(t))) t = g.producer(t).inputs[0];
  if (g.producer(t).kind == OpKind::Sqr) {
    b.square = true;
    t = g.producer(t).inputs[0];
    if (!is_input(g.producer(t).kind)) return {};
  }
  const auto at = std::ranges::find(g.inputs(), t);
  if (at != g.inputs().end()) b.input = size_t(at - g.inputs().begin());
  return b;
}

class LogarithmRewriter {
 public:
  LogarithmRewriter(const Graph& g, const std::map<size_t, bool>& logged) : g_(g), out_(g.name()) {
    to_.resize(g.tensors().size());
    for (size_t k = 0; k < g.inputs().size(); ++k) {
      const TensorId t = g.inputs()[k], in = out_.add_input(g.type(t), g.tensor(t).name);
      to_[t.index] = in;
      const auto found = logged.find(k);
      if (found == logged.end()) continue;
      if (found->second) {
        square_[t] = in;  // all that is computed from x
        continue;
      }
      log_[t] = in;
      to_[t.index] = out_.add(OpKind::Exp, {in});
    }
  }

  Graph run() {
    for (const Op& op : g_.ops()) {
      if (is_input(op.kind)) continue;
      if (op.kind == OpKind::Log) {
        if (const auto w = log_of(op.inputs[0])) {
          to_[op.result().index] = *w;
          continue;
        }
      }
      if (op.kind == OpKind::Sqr && square_.count(op.inputs[0])) {
        log_[op.result()] = square_.at(op.inputs[0]);
        to_[op.result().index] = out_.add(OpKind::Exp, {square_.at(op.inputs[0])});
        continue;
      }
      copy_op(g_, op, out_, to_);
    }
    for (TensorId t : g_.outputs()) out_.add_output(to_[t.index]);
    return std::move(out_);
  }

 private:
  // The logarithm of a variable moved about, or of an exponential. Not of products or squares:
  // those are positive for negative factors too, of which the variables know nothing.
  std::optional<TensorId> log_of(TensorId t) {
    if (const auto known = log_.find(t); known != log_.end()) return known->second;
    const Op& op = g_.producer(t);
    std::optional<TensorId> r;
    if (op.kind == OpKind::Exp) {
      r = to_[op.inputs[0].index];
    } else if (moves_one(op)) {
      if (const auto x = log_of(op.inputs[0])) r = out_.add(op.kind, {*x}, op.attrs);
    }
    if (r) log_[t] = *r;
    return r;
  }

  const Graph& g_;
  Graph out_;
  std::vector<TensorId> to_;
  std::map<TensorId, TensorId> log_;     // logarithms, of values of g_
  std::map<TensorId, TensorId> square_;  // of inputs: the logarithm of their square
};

// Whether nothing but its square is made of an input.
bool only_squared(const Graph& g, size_t input) {
  const TensorId t = g.inputs()[input];
  for (TensorId o : g.outputs())
    if (o == t) return false;
  return std::ranges::all_of(g.ops(), [&](const Op& op) {
    return op.kind == OpKind::Sqr || std::ranges::find(op.inputs, t) == op.inputs.end();
  });
}

}  // namespace

std::optional<Logged> with_logarithms_as_inputs(const Graph& spec, const Graph& candidate) {
  std::map<size_t, bool> logged;  // inputs, and whether it is their square
  bool any = false;
  for (const Op& op : spec.ops()) {
    if (op.kind != OpKind::Log) continue;
    any = true;
    const Base b = base_of(spec, op.inputs[0]);
    if (b.input == SIZE_MAX) continue;
    const auto [at, fresh] = logged.emplace(b.input, b.square);
    at->second = at->second && b.square;
  }
  // A square is positive for either sign of its root: only where the root itself plays no part.
  std::erase_if(logged, [&](const auto& entry) {
    return entry.second &&
           !(only_squared(spec, entry.first) && only_squared(candidate, entry.first));
  });
  if (!any || !analytic(spec, false) || !analytic(candidate, false)) return std::nullopt;
  return Logged{LogarithmRewriter(spec, logged).run(), LogarithmRewriter(candidate, logged).run()};
}

}  // namespace tessera
