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

}  // namespace tessera
