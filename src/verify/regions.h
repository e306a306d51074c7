// Proofs of programs that are the same but for some regions: a rewrite of one convolution in a net.
// Each region is tested alone, over free inputs in place of what both programs compute before it;
// what comes after proved values is the same again. Equality for all values of the free inputs
// implies equality for those that the programs compute there, so nothing else is ever evaluated.
// Where a region is not equal over free inputs (the rewrite holds in its context only) it grows,
// towards the inputs and towards the outputs, up to the whole.
#pragma once
#include <optional>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "verify/composition.h"
#include "verify/funnel.h"

namespace tessera {

// Fills in the certificate (`binding` is its index there) if the programs are proved equal; else
// says nothing about them, leaves it as it was, and `where` names the first value that could not be
// proved over what was tried (empty: there was nothing to try). Static shapes, the same interface.
bool prove_regions(const Graph& spec, const Graph& candidate, const VerifyOptions& options,
                   Rng seeds, ThreadPool* pool, int binding, Certificate& certificate,
                   std::string* where = nullptr);

// The programs of a region on the tiles it names (all, where it names none); nothing if they have
// no such tiles or too few of them.
std::optional<PartPrograms> region_programs(const ProofPart& region, const Graph& spec,
                                            const Graph& candidate);

// Whether an element may be infinite or no number although all inputs are numbers, as far as its
// definition tells; overflow of a product or sum is not meant. What is made of weights alone is
// taken for finite, and `weights` says so.
bool may_be_infinite(const Graph& g, TensorId t, bool& weights);

}  // namespace tessera
