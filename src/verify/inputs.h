// Concrete inputs for comparing programs: families of ordinary and adversarial numbers, integers in
// the range a program can take, and conversion to what verdicts print.
#pragma once
#include <compare>
#include <set>
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
  // Some of these points are outside because the original is defined there as long as the others
  // are not: make_inputs and draw_integers draw again where it is not defined.
  bool together = false;
  friend auto operator<=>(const IntRange&, const IntRange&) = default;
};
// What an integer dtype holds.
IntRange range_of(DType dtype);
// Ranges for all inputs. Of what the original gathers at, and of what it computes that from: as
// wide as all of its indices stay in range (verify/index_ranges.h), and constants at which it is
// defined all the same. Where it is not known to be, indices of both programs stay inside what they
// select from, and what they are computed from is 0. Other integers take `free` (clipped to their
// dtype), bools 0 and 1.
std::vector<IntRange> integer_ranges(const Graph& spec, const Graph& candidate, IntRange free);

// Whether all indices of the program are in range at these inputs.
bool is_defined_at(const Graph& graph, const std::vector<NDArray>& inputs);

// Uniform in a range.
int64_t draw_integer(Rng& rng, const IntRange& range);
// The same for all integer and bool inputs of a graph; those of floats are empty, or 0.
std::vector<NDArray> draw_integers(const Graph& graph, uint64_t seed,
                                   const std::vector<IntRange>& ranges);

// Whether some operator of a program takes another course where its operand passes some number:
// comparisons, floors and casts; of `integers` also the greater and the smaller one.
bool turns(const Graph& graph, bool integers);
// The constants of a program up to 1e15.
void constants_of(const Graph& graph, std::set<double>& values);
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
