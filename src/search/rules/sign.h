// What is known of the sign of all values that an expression can have, from its operations alone:
// conditions of rules are taken to hold only where this says so.
#pragma once
#include <functional>

#include "search/synth/egraph.h"

namespace tessera::rules {

struct Sign {
  bool nonnegative = false, nonzero = false;
};

// Of a class, by any of the ways to compute it.
Sign sign_of(const synth::EGraph& graph, synth::ValueId id);
// Of an operation, by the signs of its operands; `constant` is that of Const and pow.
Sign sign_of(const synth::Node& node, const Rational* constant,
             const std::function<Sign(int)>& operand);

}  // namespace tessera::rules
