// Operators that nobody looks into, taken for any functions of their operands.
#pragma once
#include <optional>

#include "ir/graph.h"

namespace tessera {

// Among a certificate's notes, where that was done.
inline constexpr const char* kAnyFunctions =
    "operators that are not looked into are taken for any functions, the same in both programs; "
    "what they are given is equal but for rounding, at which those that return floats are taken "
    "not to jump";

// Both programs with what such operators return as further inputs, and with what they are given
// as further results, also rounded down where an operator returns whole numbers: programs of which
// these are equal are equal, whatever the operators compute. Functions may look at what is infinite
// or none, so operands have to be undefined at the same inputs; they may return it, too.
struct AnyFunctions {
  Graph spec, candidate;
  size_t inputs = 0, outputs = 0;  // of the programs themselves, before the further ones

  // The programs of what the operators are given alone.
  Graph operands(const Graph& g) const;
  // Whether all that follows from what they return is computed by the same operators.
  bool follow_alike() const;
};
bool calls_any_functions(const Graph& g);
// Nothing where there are none, or where one program has others than the other has.
std::optional<AnyFunctions> with_any_functions(const Graph& spec, const Graph& candidate);

}  // namespace tessera
