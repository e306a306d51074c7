// Whole programs from the plans of their regions: choices are lowered, validated, priced and
// offered in order of cost.
#pragma once
#include <map>
#include <vector>

#include "search/mugraph/region.h"
#include "search/mugraph/solve.h"

namespace tessera::mugraph {

// Offers candidates: the best plan of every region, then one region at a time with its next ones.
// `results`: by index of the step. True where some candidate's kernels needed more memory than a
// block has.
bool offer_programs(Run& run, const std::vector<Step>& steps,
                    const std::map<size_t, RegionResult>& results, CandidateSink& sink);

}  // namespace tessera::mugraph
