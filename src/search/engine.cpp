#include "search/engine.h"

#include "base/names.h"

namespace tessera {

const char* name(StopReason reason) {
  return name_of<StopReason::Unsupported>(
      reason, {"exhausted", "step budget", "time budget", "cancelled", "unsupported"});
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
