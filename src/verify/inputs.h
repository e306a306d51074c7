// Concrete inputs for comparing programs: families of ordinary and adversarial numbers, integers in
// the range a program can take, and conversion to what verdicts print.
#pragma once
#include <compare>
#include <string>
#include <vector>

#include "base/rng.h"
#include "eval/ndarray.h"
#include "ir/graph.h"
#include "verify/verdict.h"

namespace tessera {

// Inclusive range of an integer or bool input.
struct IntRange {
  int64_t low = 0, high = 0;
  // Numbers that are drawn more often, also outside of the range, for floats too: where a program
  // compares with constants, few others tell.
  std::vector<double> points = {};
  friend auto operator<=>(const IntRange&, const IntRange&) = default;
};
// Ranges for all inputs: indices of gathers stay inside what they select from (in both programs)
// but for constants at which the original is defined all the same; other integers take `free`
// (clipped to their dtype), bools 0 and 1.
std::vector<IntRange> integer_ranges(const Graph& spec, const Graph& candidate, IntRange free);

// Whether all indices of the program are in range at these inputs.
bool is_defined_at(const Graph& graph, const std::vector<NDArray>& inputs);

// Uniform in a range.
int64_t draw_integer(Rng& rng, const IntRange& range);

// Constants of two programs that may change course at them, their sums, differences, products and
// quotients: no random number meets `x == 1000`. None for programs without comparisons.
std::vector<double> turning_points(const Graph& spec, const Graph& candidate);

// Families, most telling first. "mixed" gives every row of the first input a family of its own.
const std::vector<std::string>& input_families();

// One set of inputs of a family for a graph with static shapes, rounded to the inputs' dtypes.
std::vector<NDArray> make_inputs(const Graph& graph, const std::string& family, uint64_t seed,
                                 const std::vector<IntRange>& ranges);

std::vector<ConcreteTensor> concrete(const Graph& graph, const std::vector<NDArray>& inputs);
std::vector<int64_t> position_of(const std::vector<int64_t>& shape, int64_t index);

}  // namespace tessera
