// Random inputs for which every value of a program is defined.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "search/synth/spec.h"
#include "search/synth/world.h"

namespace tessera::synth {

enum class Inputs : uint8_t {
  Random,  // redrawn element by element until roots, logarithms and quotients are defined
  Zeros,   // half of the real numbers are 0
  AllZero,
  Equal,    // all are the same
  Large,    // they are up to some thousand
  Signs,    // of both signs and all sizes, wherever the program is defined
  Shifted,  // they differ little from a thousand
};

// Values that are evaluated again and again until all are defined.
inline constexpr int64_t kPatience = 120'000;

// The samples of all values of a program; nothing where they do not become defined, which is asked
// of random ones only, or not before `stopped`.
std::optional<std::vector<Sample>> evaluate(World& world, const Spec& spec, SampleStore& store,
                                            Inputs kind = Inputs::Random, uint64_t key = 0,
                                            int64_t patience = kPatience,
                                            const std::function<bool()>& stopped = {});

}  // namespace tessera::synth
