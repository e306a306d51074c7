#include "base/deadline.h"

#include <algorithm>

namespace tessera {
namespace {

// What a proof that is nearly done may take beyond the budget.
constexpr double kGrace = 0.04;
// When proofs end, of the budget.
constexpr double kProofs = 0.85;
constexpr double kPollSeconds = 0.02;

}  // namespace

Deadline::Deadline(double seconds, const std::atomic<bool>* cancel,
                   const std::atomic<bool>* abandon)
    : seconds_(seconds), cancel_(cancel), abandon_(abandon), proofs_(seconds <= 0),
      hard_(seconds <= 0),  // the watcher may start late
      watcher_([this] { watch(); }) {}

Deadline::~Deadline() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  watcher_.join();
}

void Deadline::watch() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    const bool abandoned = is_set(abandon_);
    if (abandoned || spent() >= kProofs * seconds_) proofs_.store(true, std::memory_order_relaxed);
    const double until = (proofs_ended() ? 1 + kGrace : kProofs) * seconds_ - spent();
    if (abandoned || (proofs_ended() && until <= 0)) {
      hard_.store(true, std::memory_order_relaxed);
      return;
    }
    const double wait = std::max(0.0, abandon_ != nullptr ? std::min(until, kPollSeconds) : until);
    // Long budgets would overflow the clock.
    wake_.wait_for(lock, std::chrono::duration<double>(std::min(wait, 3600.0)));
  }
}

}  // namespace tessera
