// Programs of an e-graph as expressions that a person reads, in NumPy's words.
#pragma once
#include <map>
#include <string>

#include "search/synth/egraph.h"

namespace tessera::synth {

// What a choice makes of a class, down to the classes that `names` has names for (inputs, leaves).
// Values used twice are written twice.
std::string expression(const EGraph& graph, const Choice& choice, ValueId value,
                       const std::map<ValueId, std::string>& names);

}  // namespace tessera::synth
