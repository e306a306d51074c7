#include "search/engine.h"

#include "base/check.h"

namespace tessera {

const char* name(StopReason reason) {
  switch (reason) {
  case StopReason::Exhausted: return "exhausted";
  case StopReason::StepBudget: return "step budget";
  case StopReason::TimeBudget: return "time budget";
  case StopReason::Cancelled: return "cancelled";
  case StopReason::Unsupported: return "unsupported";
  }
  unreachable("StopReason");
}

void SearchReport::add_counts(const SearchReport& more) {
  values += more.values;
  edges += more.edges;
  graphs += more.graphs;
  tilings += more.tilings;
  for (const auto& [rule, n] : more.pruned) pruned[rule] += n;
}

StopReason ended(const Context& context, const Budget& budget, double seconds, int64_t steps) {
  return context.cancelled()         ? StopReason::Cancelled
         : seconds >= budget.seconds ? StopReason::TimeBudget
         : steps >= budget.steps     ? StopReason::StepBudget
                                     : StopReason::Exhausted;
}

}  // namespace tessera
