// Small helpers of the evaluation tests: one-operator graphs, random arrays, parsing.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/counter_rng.h"
#include "eval/eval.h"
#include "ir/text.h"

namespace tessera::eval_test {

inline Type type_of(const NDArray& a) { return {a.dtype, Shape(a.shape.begin(), a.shape.end())}; }

inline NDArray random_array(DType dtype, std::vector<int64_t> shape, uint64_t seed, double low = -2,
                            double high = 2) {
  NDArray a = NDArray::zeros(dtype, std::move(shape));
  const CounterRng rng{derive_key(seed, 77)};
  for (size_t i = 0; i < a.reals.size(); ++i)
    a.reals[i] = round_to(dtype, low + (high - low) * rng.unit(i));
  for (size_t i = 0; i < a.ints.size(); ++i) {
    a.ints[i] = wrap_to(dtype, int64_t(std::floor(low + (high - low) * rng.unit(i))));
  }
  return a;
}

inline Graph one_op(OpKind kind, const std::vector<NDArray>& inputs, Attrs attrs = NoAttrs{}) {
  Graph g;
  std::vector<TensorId> in;
  for (const NDArray& a : inputs) in.push_back(g.add_input(type_of(a)));
  g.add_output(g.add(kind, in, std::move(attrs)));
  return g;
}

inline std::vector<NDArray> random_inputs(const Graph& g, uint64_t seed, double low = -2,
                                          double high = 2) {
  std::vector<NDArray> in;
  for (TensorId t : g.inputs()) {
    in.push_back(
        random_array(g.type(t).dtype, extents(g.type(t).shape), seed + in.size(), low, high));
  }
  return in;
}

// Both programs on the same field inputs, made defined for the first; true when all outputs agree.
inline ::testing::AssertionResult field_equal(const Graph& a, const Graph& b, FieldSize size,
                                              uint64_t seed, Components outputs = 1) {
  FieldModel model(size, seed);
  std::vector<Components> need = needed_components(a, outputs),
                          more = needed_components(b, outputs);
  for (size_t i = 0; i < need.size(); ++i) need[i] |= more.at(i);
  std::vector<FieldArray> in = draw_inputs(a, model, need);
  FieldOptions options;
  options.outputs = outputs;
  RedrawReport redraw = redraw_inputs(a, model, in, 200, options);
  if (!redraw.ok()) {
    return ::testing::AssertionFailure()
           << "redraw: " << redraw.unsupported << " left " << redraw.still_undefined;
  }
  FieldResult x = eval_field(a, model, in, options), y = eval_field(b, model, in, options);
  if (!x.ok() || !y.ok()) return ::testing::AssertionFailure() << x.unsupported << y.unsupported;
  for (size_t i = 0; i < x.outputs.size(); ++i) {
    FieldComparison c = compare(x.outputs[i], y.outputs[i]);
    if (!c.equal() || c.compared == 0) {
      return ::testing::AssertionFailure()
             << "output " << i << ": " << c.different << " of " << c.compared << " differ, "
             << c.undefined << " undefined, " << c.skipped << " skipped";
    }
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult field_equal(const std::string& a, const std::string& b,
                                              FieldSize size, uint64_t seed,
                                              Components outputs = 1) {
  return field_equal(parse(a), parse(b), size, seed, outputs);
}

}  // namespace tessera::eval_test
