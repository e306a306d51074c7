// Programs of an e-graph as expressions that a person reads, in NumPy's words.
#pragma once
#include <map>
#include <string>

#include "search/synth/egraph.h"

namespace tessera::synth {

// Binding strengths of what an expression ends up as.
enum Strength { Weak, Sum, Product, Sign, Power, Atom };
struct Text {
  std::string text;
  Strength strength;
};
inline std::string wrap(const Text& t, Strength least) {
  return t.strength < least ? "(" + t.text + ")" : t.text;
}
inline Text binary(const std::string& op, Strength strength, const Text& a, const Text& b) {
  return {wrap(a, strength) + op + wrap(b, Strength(strength + 1)), strength};
}

// What a choice makes of a class, down to the classes that `names` has names for (inputs, leaves).
// Values used twice are written twice.
std::string expression(const EGraph& graph, const Choice& choice, ValueId value,
                       const std::map<ValueId, std::string>& names);

}  // namespace tessera::synth
