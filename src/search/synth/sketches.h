// Top-down steps of a window: an operation with one known operand leaves a hole of the target,
// whose value follows and is looked up (STENSO, CGO'26, §4: sketches).
#pragma once
#include "search/synth/bank.h"

namespace tessera::synth {

// The target as an operation on two entries of at most `size` operations, on an entry and a
// constant, as a function of an entry, or as a choice between two.
void meet(Bank& bank, int size);

// The value that has to stand where an operation on it and on `base` gives `whole`: a hole.
struct Hole {
  OpKind kind;   // of the operation
  bool second;   // the hole is its second operand
  OpKind solve;  // computes the hole, of `whole` and `base`, or of `base` and `whole`
  bool reversed;
};
// Those that the grammar allows beside a base; an extent may divide even where nothing else does.
std::vector<Hole> holes_beside(const Bank& bank, uint32_t base);

// Cheap first look whether a value varies along fewer axes than it has: do neighbours along the
// last axis, or the first, agree?
bool varies_less(const World& world, const Sample& s);

}  // namespace tessera::synth
