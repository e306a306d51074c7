#include "base/interruption.h"

#include <algorithm>

namespace tessera {
namespace {

thread_local const Interruptible* current_scope = nullptr;
thread_local uint64_t calls = 0;
constexpr uint64_t kCallsPerLook = 16;  // at the clock

}  // namespace

Interruptible::Interruptible(const std::atomic<bool>* flag, double seconds)
    : flag_(flag), around_(current_scope), before_(current_scope),
      until_(std::chrono::steady_clock::now() +
             std::chrono::microseconds(int64_t(std::clamp(seconds, 0.0, 1e8) * 1e6))) {
  if (around_ != nullptr) until_ = std::min(until_, around_->until_);
  current_scope = this;
}

Interruptible::Interruptible(const Interruptible* of)
    : flag_(nullptr), around_(of), before_(current_scope),
      until_(of != nullptr ? of->until_ : std::chrono::steady_clock::time_point::max()) {
  current_scope = this;
}

Interruptible::~Interruptible() { current_scope = before_; }

const Interruptible* Interruptible::current() { return current_scope; }

bool Interruptible::flagged() const {
  for (const Interruptible* s = this; s != nullptr; s = s->around_)
    if (s->flag_ != nullptr && s->flag_->load(std::memory_order_relaxed)) return true;
  return false;
}

void interruption_point() {
  ++calls;
  if (current_scope == nullptr) return;
  const bool look = calls % kCallsPerLook == 0;
  if (look ? current_scope->ended() : current_scope->flagged()) throw Interrupted();
}

uint64_t interruption_points() { return calls; }

}  // namespace tessera
