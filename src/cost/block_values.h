// Which values of a block that are computed element by element get memory of their own, and a
// barrier with it: all others are computed where they are read. The generator of CUDA decides by
// this, and the model counts barriers by it.
#pragma once
#include "ir/op.h"

namespace tessera {

// Rough operations per element, to decide what is worth computing once.
int element_work(OpKind kind);

// `work`: of one element, what is computed on the way included. `repeated`: several read it, or one
// does more than once; `in_loop`: it would be computed in a loop that it does not vary with.
inline bool kept_in_memory(int work, bool repeated, bool in_loop) {
  return (repeated && work >= 4) || (in_loop && work >= 1);
}

}  // namespace tessera
