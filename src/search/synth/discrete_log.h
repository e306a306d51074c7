// Discrete logarithms in the subgroup of squares of the 31-bit field: what log means in a world.
#pragma once
#include <cstdint>
#include <optional>

#include "eval/field.h"

namespace tessera::synth {

// e with ω^e = x, below q, for x in Montgomery form; nothing for 0 and non-squares. Baby steps and
// giant steps (Shanks): 2^20 baby steps are tabulated at first use (16 MB, for all of the process),
// and a logarithm takes at most 2^10 giant ones. `chain` must always be the same one.
std::optional<uint32_t> discrete_log(const ChainTables<uint32_t>& chain, uint32_t x);

}  // namespace tessera::synth
