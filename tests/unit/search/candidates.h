// What the search by muGraphs offers for a program, on this machine and with the usual budget.
#pragma once

#include <utility>
#include <vector>

#include "search/mugraph/mugraph.h"

namespace tessera {

inline std::vector<Candidate> candidates(const Graph& g, MugraphOptions options = {}) {
  const Target target = default_cpu_target();
  Context context;
  context.target = &target;
  CollectingSink sink;
  Mugraph(options).run({g}, context, Budget{}, sink);
  return std::move(sink.candidates);
}

}  // namespace tessera
