// How likely one field draw is to miss a difference between two programs, from the degrees of both.
// The derivation is in docs/verifier.md.
#pragma once
#include <cstdint>
#include <string>

#include "verify/characters.h"
#include "verify/degrees.h"

namespace tessera {

struct DrawBound {
  double log2_miss = 0;         // of one draw
  uint64_t exponent_bound = 0;  // exponents are drawn below this; 0: uniformly
  bool branches = true;  // false: integers were sampled, and may not have met what they decide
  std::string text;      // the figures that went in
  std::string basis;     // "proved", or what is taken for granted
};
// Of a chain of primes of 61 bits, drawn at random.
DrawBound draw_bound(const Degrees& spec, const Degrees& candidate, const Characters& characters);

}  // namespace tessera
