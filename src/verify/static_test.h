// Compares two programs without symbols: the field, whole or in parts, equal operands of
// comparisons, integers, real numbers. What verify/funnel.h runs for every binding.
#pragma once
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "verify/funnel.h"
#include "verify/reference.h"
#include "verify/symmetry.h"

namespace tessera {

// Of one pair; fills in the certificate. Nothing means: no objection. Where the pair are
// representatives of larger programs, `whole` are those: their error bound is taken.
struct WholePrograms {
  const Graph* spec = nullptr;
  const Graph* candidate = nullptr;
  // A region of larger programs over free inputs (verify/regions.h): only whether it is equal
  // matters, since a difference may be of the cuts' making.
  bool region = false;
};
std::optional<Verdict> test_static(Reference& reference, const Graph& candidate,
                                   const VerifyOptions& options, Rng seeds, int binding,
                                   Certificate& certificate, WholePrograms whole = {});
// Of programs that are equal over the real numbers and have the same poles: decisions made by
// rounding, range and precision.
std::optional<Verdict> test_rounding(Reference& reference, const Graph& candidate,
                                     const VerifyOptions& options, Rng seeds,
                                     Certificate& certificate);
// What is to be said where an index was out of range: of the rewrite alone, which then lacks a
// guard, or of both.
Verdict out_of_range(const Graph& spec, const Graph& candidate, Rng seeds, const Error& error);
inline constexpr const char* kNeverDefined =  // whatever the rewrite
    "some output elements of the original were undefined in every draw";

// Inputs of whole programs from those of representatives: zeros elsewhere, on which the elements
// that are shown do not depend. Kept as they are where whole inputs would be too large to show.
void expand(Counterexample& c, const Graph& whole, const std::vector<KeptPositions>& inputs,
            const std::vector<KeptPositions>& outputs);

}  // namespace tessera
