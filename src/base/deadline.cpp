#include "base/deadline.h"

#include <algorithm>

namespace tessera {
namespace {

// What a proof that is nearly done may take beyond the budget.
constexpr double kGrace = 0.04;
constexpr double kPollSeconds = 0.02;

}  // namespace

Deadline::Deadline(double seconds, const std::atomic<bool>* cancel,
                   const std::atomic<bool>* abandon)
    : seconds_(seconds), cancel_(cancel), abandon_(abandon),
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
    const double until = seconds_ * (1 + kGrace) - spent();
    if (until <= 0 || is_set(abandon_)) {
      hard_.store(true, std::memory_order_relaxed);
      return;
    }
    const double wait = abandon_ != nullptr ? std::min(until, kPollSeconds) : until;
    // Long budgets would overflow the clock.
    wake_.wait_for(lock, std::chrono::duration<double>(std::min(wait, 3600.0)));
  }
}

}  // namespace tessera
