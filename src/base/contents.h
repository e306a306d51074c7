// Whether memory still holds what it held: a keyed fingerprint of byte ranges. What was changed
// passes for unchanged with a probability below 2^-60 (keys are drawn once per process).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

using Fingerprint = std::array<uint64_t, 2>;

// Of at most 1 MB, at any address: NH (Black et al., UMAC, 1999) over blocks of 4 KB with two
// independent keys, each joined by a polynomial over 2^61 - 1.
Fingerprint fingerprint(std::span<const std::byte> bytes);

}  // namespace tessera
