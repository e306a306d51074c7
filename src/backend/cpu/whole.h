// Kernels whose blocks and loops do nothing but cut arrays into pieces: what they compute, on whole
// arrays, so that code can cut them as suits the machine.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "backend/values.h"

namespace tessera {

// Elements of the results are expressions of elements of the operands and of sums of such
// expressions. All values have the same axes: `kept`, those of the results, then those summed over,
// with extent 1 where a value does not vary; axes that lie one after the other in all arrays are
// merged into one.
struct WholeKernel {
  KernelValues values;          // operands (Iter), constants, pointwise operators, and sums
  std::vector<int64_t> kept;    // extents
  std::vector<int64_t> summed;  // empty: no sums
  std::vector<int> sums;        // values of kind Sum; their operands do not contain sums
  std::vector<std::pair<int, int>> results;  // value, and the argument that it is saved in
};

// Null where blocks do more than that, where axes do not lie as this can use (the innermost axis is
// to be contiguous in every operand that varies with it), or where costly operators would be
// computed more often than in the blocks.
std::optional<WholeKernel> whole_kernel(const KernelValues& kernel);

}  // namespace tessera
