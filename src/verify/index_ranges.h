// In which range the indices of gathers lie, whatever integers a program is given: interval
// arithmetic over its integer tensors. So inputs of which indices are computed can be drawn as
// widely as the program is defined, and not as zeros alone.
#pragma once
#include <vector>

#include "verify/inputs.h"

namespace tessera {

// Whether every index that the program gathers at is in range, wherever in `ranges` (one for each
// input; those of floats are ignored) the inputs lie. False too where that is not known.
bool indices_in_range(const Graph& program, const std::vector<IntRange>& ranges);

// Widens the ranges of the inputs that indices depend on, all at the same pace, as far as `most`
// (one for each input) and the program's indices allow; as they are where nothing is known of them.
void widen_index_ranges(const Graph& program, std::vector<IntRange>& ranges,
                        const std::vector<IntRange>& most);

}  // namespace tessera
