// Discrete logarithms in the subgroup of squares of the 31-bit field: what log means in a world.
#pragma once
#include <cstdint>
#include <optional>

#include "eval/field.h"

namespace tessera::synth {

// e with ω^e = x, below q, for x in Montgomery form; nothing for 0 and non-squares. By index
// calculus over small primes, whose logarithms are found at first use by baby and giant steps
// (Shanks; 2 MB, for all of the process). `chain` must always be the same one.
std::optional<uint32_t> discrete_log(const ChainTables<uint32_t>& chain, uint32_t x);

}  // namespace tessera::synth
