// Mutations break a program in the ways optimizers do (a dropped tail, n for n-1, a stale
// accumulator …); rewrites keep its meaning. Both are tables of named, seeded program edits.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ir/graph.h"

namespace tessera {

struct ProgramEdit {
  const char* name;
  // A changed program with the same interface, or nullopt where the edit does not apply.
  std::optional<Graph> (*apply)(const Graph& g, Rng& rng);
};

// Unsound edits; now and then one leaves the meaning alone (a mask moved outside the matrix, a
// swapped operand of equal value), which the bench has to show by other means.
const std::vector<ProgramEdit>& mutations();

// Sound edits over the reals, chosen so that floats do not suffer either.
const std::vector<ProgramEdit>& rewrites();

}  // namespace tessera
