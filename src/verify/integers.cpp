#include "verify/integers.h"

#include <algorithm>

#include "base/rng.h"
#include "eval/eval.h"
#include "ir/build.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

IntegerTest compared(const Graph& spec, const Graph& candidate, const std::vector<NDArray>& inputs,
                     const char* field) {
  IntegerTest result;
  const EvalOptions native{Precision::Native, nullptr, {}};
  const std::vector<NDArray> s = eval(spec, inputs, native), c = eval(candidate, inputs, native);
  FieldDraw d;
  d.field = field;
  for (size_t k = 0; k < s.size(); k++) {
    d.elements += int64_t(s[k].ints.size());
    for (size_t i = 0; i < s[k].ints.size() && !result.counterexample; i++) {
      if (s[k].ints[i] == c[k].ints[i]) continue;
      Counterexample x;
      x.kind = Difference::Value;
      x.what = "the programs compute different integers";
      x.inputs = concrete(spec, inputs);
      x.output = int(k);
      x.position = position_of(s[k].shape, int64_t(i));
      x.spec = double(s[k].ints[i]);
      x.candidate = double(c[k].ints[i]);
      result.counterexample = std::move(x);
    }
  }
  result.draws.push_back(d);
  return result;
}

// Families alternate: uniform over the whole range, small, and edges.
IntegerTest run(const Graph& spec, const Graph& candidate, uint64_t seed) {
  const char* families[] = {"normal", "ties", "zeros", "large"};
  const std::vector<IntRange> ranges = integer_ranges(
      spec, candidate, seed % 4 == 1 ? IntRange{-3, 3} : IntRange{INT64_MIN, INT64_MAX});
  IntegerTest result =
      compared(spec, candidate, make_inputs(spec, families[seed % 4], seed, ranges), "exact");
  result.draws[0].seed = seed;
  return result;
}

// The same program over vectors of so many elements; nothing if it does more than compute element
// by element.
std::optional<Graph> at_all_values(const Graph& g, int64_t values) {
  Graph out(g.name());
  std::vector<TensorId> map(g.tensors().size());
  const Shape all{Dim(values)};
  for (const Op& op : g.ops()) {
    if (is_input(op.kind)) {
      map[op.result().index] = out.add_input(Type{g.type(op.result()).dtype, all});
    } else if (op.constant()) {
      ConstAttrs a = g.attrs<ConstAttrs>(op);
      a.type.shape = {};
      map[op.result().index] = out.add(op.kind, {}, a);
    } else if (op.kind == OpKind::Broadcast) {
      map[op.result().index] = map[op.inputs[0].index];
    } else if (has(op.kind, algebra::Pointwise)) {
      copy_op(g, op, out, map);
    } else {
      return std::nullopt;
    }
  }
  for (TensorId t : g.outputs()) {
    TensorId y = map[t.index];
    if (out.type(y).shape != all) y = build::broadcast(out, y, {all});
    out.add_output(y);
  }
  return out;
}

}  // namespace

bool is_integer_program(const Graph& g) {
  return std::ranges::none_of(
             g.tensors(), [](const Tensor& t) { return is_float(t.type.dtype); }) &&
         std::ranges::all_of(g.bodies(), is_integer_program);
}

std::optional<IntegerTest> exhaust(const Graph& spec, const Graph& candidate) {
  constexpr int kMostBits = 16;
  int bits = 0;
  for (TensorId t : spec.inputs()) {
    const DType dtype = spec.type(t).dtype;
    bits += dtype == DType::Bool ? 1 : 8 * size_in_bytes(dtype);
    if (bits > kMostBits) return std::nullopt;
  }
  const int64_t values = int64_t{1} << bits;
  const auto a = at_all_values(spec, values), b = at_all_values(candidate, values);
  if (!a || !b) return std::nullopt;
  std::vector<NDArray> inputs;
  int low = 0;
  for (TensorId t : a->inputs()) {
    const DType dtype = a->type(t).dtype;
    const int mine = dtype == DType::Bool ? 1 : 8 * size_in_bytes(dtype);
    NDArray x = NDArray::zeros(dtype, {values});
    for (int64_t i = 0; i < values; i++)
      x.ints[size_t(i)] = wrap_to(dtype, (i >> low) & ((int64_t{1} << mine) - 1));
    low += mine;
    inputs.push_back(std::move(x));
  }
  return compared(*a, *b, inputs, "all");
}

IntegerTest test_integers(const Graph& spec, const Graph& candidate, uint64_t seed, int draws,
                          const VerifyOptions& options) {
  IntegerTest all;
  for (int i = 0; i < draws; i++) {
    if (options.cancel != nullptr && options.cancel->load()) {
      all.cancelled = true;
      return all;
    }
    const uint64_t s = (Rng(seed).split(uint64_t(i))() & ~uint64_t(3)) | uint64_t(i % 4);
    IntegerTest one = run(spec, candidate, s);
    all.draws.push_back(one.draws[0]);
    if (one.counterexample) {
      all.counterexample = std::move(one.counterexample);
      return all;
    }
  }
  return all;
}

IntegerTest replay_integers(const Graph& spec, const Graph& candidate, const FieldDraw& draw) {
  return run(spec, candidate, draw.seed);
}

}  // namespace tessera
