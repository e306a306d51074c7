// Programs of static slices said in other ways: parts that together are the whole (sums over them,
// matrix products, what is concatenated), and slices taken before instead of after what is done to
// every element. Synthesis takes slices as values of their own, so what they have to do with each
// other is decided here.
#pragma once
#include <vector>

#include "search/synth/reroll.h"

namespace tessera::synth {

// At most two other forms of the program, none where it has no slices that say more than one thing.
// The first only leaves work out, the second may do some twice for slices that overlap. They are
// proposals, as every rewrite is; `simply`: ones that are proved more often, as no decision of
// whole values (a mask, say) is taken of parts.
std::vector<Retold> reslice(const Graph& program, bool simply = false);

// The part of that which takes parts together; nothing where there are none.
std::optional<Graph> with_parts_merged(const Graph& program);

}  // namespace tessera::synth
