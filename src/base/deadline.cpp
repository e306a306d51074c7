#include "base/deadline.h"

#include <algorithm>

namespace tessera {
namespace {

// What a proof that is nearly done may take beyond the budget.
constexpr double kGrace = 0.04;
// When proofs end, of the budget.
constexpr double kProofs = 0.85;
constexpr double kPollSeconds = 0.02;
// Seconds after Ctrl-C: who presses it waits for no more than what is nearly done.
constexpr double kProofsAfterCancel = 0.7, kEndAfterCancel = 0.85;

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
  double proofs_at = kProofs * seconds_, hard_at = (1 + kGrace) * seconds_;
  bool told = false;
  while (!done_) {
    if (!told && is_set(cancel_)) {
      told = true;
      proofs_at = std::min(proofs_at, spent() + kProofsAfterCancel);
      hard_at = std::min(hard_at, spent() + kEndAfterCancel);
    }
    const bool abandoned = is_set(abandon_);
    if (abandoned || spent() >= proofs_at) proofs_.store(true, std::memory_order_relaxed);
    if (abandoned || spent() >= hard_at) {
      hard_.store(true, std::memory_order_relaxed);
      return;
    }
    double wait = std::max(0.0, (proofs_ended() ? hard_at : proofs_at) - spent());
    if (cancel_ != nullptr || abandon_ != nullptr) wait = std::min(wait, kPollSeconds);
    // Long budgets would overflow the clock.
    wake_.wait_for(lock, std::chrono::duration<double>(std::min(wait, 3600.0)));
  }
}

}  // namespace tessera
