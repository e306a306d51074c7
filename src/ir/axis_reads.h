// Which element of its operand every element of a result is, for operators that move along each
// axis by itself: the one place that says so for transposes, slices and the like.
#pragma once
#include <optional>
#include <vector>

#include "ir/op.h"

namespace tessera {

// Of one axis of the operand.
struct AxisRead {
  int axis = -1;  // of the result; -1: the axis is left out, and its one position is read
  int64_t start = 0, step = 1;
  bool wraps = false;  // counts again from 0 behind the operand's end

  // The position that is read by the result's position i.
  int64_t operator()(int64_t i, int64_t extent) const {
    if (axis < 0) return 0;
    return wraps ? i % extent : start + i * step;
  }
};
// One entry per axis of the operand; nothing for all other operators. Result axes that no entry
// names have one element.
std::optional<std::vector<AxisRead>> axis_reads(OpKind kind, const Attrs& attrs, int rank,
                                                int result_rank);

}  // namespace tessera
