#include "search/fold/diagonal.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "eval/eval.h"

namespace tessera {
namespace {

// Elements that may be evaluated to find out.
constexpr int64_t kMostElements = 1 << 22;
// Smaller products are not worth it.
constexpr int64_t kLeastExtent = 8;

bool is_square(const Shape& s) {
  const size_t n = s.size();
  return n >= 2 && s[n - 1] == s[n - 2] && s[n - 1].extent >= kLeastExtent;
}

bool is_diagonal(const NDArray& x) {
  const size_t n = size_t(x.shape.back());
  for (size_t i = 0; i < size_t(x.size()); ++i)
    if (x.at(i) != 0 && i / n % n != i % n) return false;
  return true;
}

// Floats that differ, and indices that are in range.
std::vector<NDArray> some_inputs(const Graph& g) {
  std::vector<NDArray> inputs;
  Rng rng(1);
  for (TensorId t : g.inputs()) {
    inputs.push_back(NDArray::zeros(g.type(t).dtype, extents(g.type(t).shape)));
    for (double& x : inputs.back().reals) x = round_to(g.type(t).dtype, 0.5 + rng.unit());
  }
  return inputs;
}

// Operands of products that are diagonal; empty where that takes too long to find out.
std::vector<TensorId> diagonal_operands(const Graph& program) {
  std::vector<TensorId> asked;
  for (const Op& op : program.ops())
    for (TensorId t : op.inputs)
      if (op.kind == OpKind::Matmul && is_square(program.type(t).shape) &&
          !is_given(program.producer(t).kind) && std::ranges::find(asked, t) == asked.end())
        asked.push_back(t);
  if (asked.empty()) return {};
  Graph g(program.name());
  std::vector<TensorId> to(program.tensors().size());
  for (const Op& op : program.ops()) copy_op(program, op, g, to);
  for (TensorId t : asked) g.add_output(to[t.index]);
  g = without_dead_code(g);
  int64_t elements = 0;
  for (const Op& op : g.ops()) {
    if (is_bilinear(op.kind) || is_opaque(op.kind) || op.body.valid()) return {};
    for (uint32_t r = 0; r < op.num_results; ++r)
      elements += num_elements(g.type(op.result(r)).shape);
  }
  if (elements > kMostElements) return {};
  try {
    const std::vector<NDArray> values = eval(g, some_inputs(g));
    for (size_t i = values.size(); i-- > 0;)
      if (!is_diagonal(values[i])) asked.erase(asked.begin() + long(i));
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::Cancelled) throw;
    return {};
  }
  return asked;
}

}  // namespace

std::optional<Graph> with_diagonals(const Graph& program) {
  const std::vector<TensorId> diagonal = diagonal_operands(program);
  if (diagonal.empty()) return std::nullopt;
  Graph out(program.name());
  std::vector<TensorId> to(program.tensors().size());
  for (const Op& op : program.ops()) {
    const auto is = [&](size_t k) {
      return op.kind == OpKind::Matmul &&
             std::ranges::find(diagonal, op.inputs[k]) != diagonal.end();
    };
    if (!is(0) && !is(1)) {
      copy_op(program, op, out, to);
      continue;
    }
    const size_t k = is(0) ? 0 : 1;
    const TensorId d = to[op.inputs[k].index], other = to[op.inputs[1 - k].index];
    const int axis = out.type(d).rank() - (k == 0 ? 1 : 2);
    const TensorId scale = out.add(OpKind::Sum, {d}, ReduceAttrs{{axis}, true});
    to[op.result().index] =
        out.add(OpKind::Mul, k == 0 ? std::vector{scale, other} : std::vector{other, scale});
  }
  for (TensorId t : program.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

}  // namespace tessera
