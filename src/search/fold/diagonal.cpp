#include "search/fold/diagonal.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "ir/build.h"

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

bool is_diagonal_of(const NDArray& v, const NDArray& matrix) {
  bool same = v.dtype == matrix.dtype && matrix.shape == std::vector(2, v.size());
  for (size_t i = 0, n = size_t(v.size()); i < n && same; ++i)
    same = v.at(i) == matrix.at(i * n + i);
  return same;
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

struct Diagonal {
  TensorId matrix;
  TensorId vector;  // a value with the same elements in order; invalid: none
};

// Operands of products that are diagonal; empty where that takes too long to find out.
std::vector<Diagonal> diagonal_operands(const Graph& program) {
  std::vector<Diagonal> asked;
  std::vector<bool> above(program.tensors().size(), false);  // what they are made of
  std::set<int64_t> extents;
  for (const Op& op : program.ops())
    for (TensorId t : op.inputs)
      if (op.inputs.size() == 2 && is_product(op.kind) && is_square(program.type(t).shape) &&
          !is_given(program.producer(t).kind) && !above[t.index]) {
        above[t.index] = true;
        extents.insert(program.type(t).shape.back().extent);
        asked.push_back({t, {}});
      }
  if (asked.empty()) return {};
  int64_t elements = 0;
  for (size_t i = program.ops().size(); i-- > 0;) {
    const Op& op = program.ops()[i];
    if (op.num_results != 1 || !above[op.result().index]) continue;
    if (is_bilinear(op.kind) || is_opaque(op.kind) || op.body.valid()) return {};
    elements += num_elements(program.type(op.result()).shape);
    for (TensorId t : op.inputs) above[t.index] = true;
  }
  if (elements > kMostElements) return {};
  Graph g(program.name());
  std::vector<TensorId> to(program.tensors().size()), vectors;
  for (const Op& op : program.ops()) copy_op(program, op, g, to);
  for (const Diagonal& d : asked) g.add_output(to[d.matrix.index]);
  for (uint32_t t = 0; t < to.size(); ++t) {
    if (!above[t] || !extents.contains(num_elements(program.tensors()[t].type.shape))) continue;
    vectors.push_back(TensorId(t));
    g.add_output(to[t]);
  }
  try {
    g = without_dead_code(g);
    const std::vector<NDArray> values = eval(g, some_inputs(g));
    const size_t first = asked.size();
    for (size_t i = first; i-- > 0;) {
      if (!is_diagonal(values[i])) {
        asked.erase(asked.begin() + long(i));
        continue;
      }
      for (size_t k = 0; k < vectors.size(); ++k)
        if (is_diagonal_of(values[first + k], values[i])) asked[i].vector = vectors[k];
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::Cancelled) throw;
    return {};
  }
  return asked;
}

}  // namespace

std::optional<Graph> with_diagonals(const Graph& program) {
  const std::vector<Diagonal> diagonal = diagonal_operands(program);
  if (diagonal.empty()) return std::nullopt;
  Graph out(program.name());
  std::vector<TensorId> to(program.tensors().size());
  for (const Op& op : program.ops()) {
    auto d = diagonal.end();
    size_t side = 2;
    while (op.inputs.size() == 2 && is_product(op.kind) && d == diagonal.end() && side-- > 0)
      d = std::ranges::find(diagonal, op.inputs[side], &Diagonal::matrix);
    if (d == diagonal.end()) {
      copy_op(program, op, out, to);
      continue;
    }
    const TensorId other = to[op.inputs[1 - side].index];
    TensorId scale = to[d->matrix.index];
    const Shape& square = out.type(scale).shape;
    if (d->vector.valid())
      scale = build::reshape(out, to[d->vector.index],
                             {side == 0 ? Shape{square[0], 1} : Shape{square[0]}});
    else
      scale = out.add(OpKind::Sum, {scale},
                      ReduceAttrs{{int(square.size()) - (side == 0 ? 1 : 2)}, true});
    to[op.result().index] = out.add(OpKind::Mul, {scale, other});
  }
  for (TensorId t : program.outputs()) out.add_output(to[t.index]);
  return without_dead_code(out);
}

}  // namespace tessera
