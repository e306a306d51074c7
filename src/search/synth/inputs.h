// Random inputs for which every value of a program is defined.
#pragma once
#include <optional>
#include <vector>

#include "search/synth/spec.h"
#include "search/synth/world.h"

namespace tessera::synth {

// The samples of all values of a program, inputs redrawn element by element until roots, logarithms
// and quotients are defined; nothing where that does not come about.
std::optional<std::vector<Sample>> evaluate(World& world, const Spec& spec, SampleStore& store);

}  // namespace tessera::synth
