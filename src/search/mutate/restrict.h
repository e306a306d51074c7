// A part of a program's outputs, computed from the parts of its inputs that it needs: what a
// correction kernel computes (PET §5.2, step 3).
#pragma once
#include "search/mutate/linear.h"

namespace tessera::mutants {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};
using Region = std::vector<Range>;  // by axis

// What windows read of an axis for a range of the result, and the zeros they see on both sides.
struct Reads {
  Range range;
  int64_t low = 0, high = 0;
};
Reads reads(const WindowAxis& axis, const Range& out);

// Appends to `graph`, whose tensors `inputs` are those of `original`, what computes `region` of
// output number `output`; slices are taken as early as possible. Nothing where some operator there
// would see padding only.
std::optional<TensorId> compute_region(Graph& graph, const std::vector<TensorId>& inputs,
                                       const Graph& original, size_t output, const Region& region);

// The part of a tensor.
TensorId slice_of(Graph& graph, TensorId x, const Region& region);
Region all_of(const Graph& graph, TensorId x);

}  // namespace tessera::mutants
