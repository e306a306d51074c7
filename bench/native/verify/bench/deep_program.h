// Seeded random programs of three to six layers, each with functions that the field sees through at
// most twice (exponentials) or not at all (known by name): stacked attention, gates, norms.
#pragma once
#include <cstdint>

#include "ir/graph.h"

namespace tessera {

// Valid, static and tame. The same seed gives the same program.
Graph deep_program(uint64_t seed);

}  // namespace tessera
