#include "verify/integers.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

// Families alternate: uniform over the whole range, small, and edges.
IntegerTest run(const Graph& spec, const Graph& candidate, uint64_t seed) {
  IntegerTest result;
  const char* families[] = {"normal", "ties", "zeros", "large"};
  const std::vector<IntRange> ranges = integer_ranges(
      spec, candidate, seed % 4 == 1 ? IntRange{-3, 3} : IntRange{INT64_MIN, INT64_MAX});
  const std::vector<NDArray> inputs = make_inputs(spec, families[seed % 4], seed, ranges);
  const std::vector<NDArray> s = eval(spec, inputs), c = eval(candidate, inputs);
  FieldDraw d;
  d.field = "exact";
  d.seed = seed;
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

}  // namespace

bool is_integer_program(const Graph& g) {
  return std::none_of(g.tensors().begin(), g.tensors().end(),
                      [](const Tensor& t) { return is_float(t.type.dtype); }) &&
         std::all_of(g.bodies().begin(), g.bodies().end(), is_integer_program);
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
