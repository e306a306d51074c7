// The wall time of a run, and how it ends early. `cancel` asks for the best so far: nothing new is
// begun, and what was found is still proved if that takes less than a second. `abandon`, or a spent
// budget, stops whatever is under way.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/wall_clock.h"

namespace tessera {

class Deadline {
 public:
  // Both flags may be null; they outlive this.
  Deadline(double seconds, const std::atomic<bool>* cancel, const std::atomic<bool>* abandon);
  ~Deadline();

  double seconds() const { return seconds_; }
  double spent() const { return clock_.seconds(); }
  double left() const { return seconds_ - spent(); }
  bool over() const { return left() <= 0; }
  bool cancelled() const { return is_set(cancel_) || is_set(abandon_); }
  // No more proofs: what is left is for the code of the original, where none was accepted. Proofs
  // poll `proofs()`, which is set by then.
  bool proofs_ended() const { return proofs_.load(std::memory_order_relaxed); }
  const std::atomic<bool>* proofs() const { return &proofs_; }
  // No more work of any kind: long calls poll `hard()`, which is set by then.
  bool ended() const { return hard_.load(std::memory_order_relaxed); }
  const std::atomic<bool>* hard() const { return &hard_; }

 private:
  static bool is_set(const std::atomic<bool>* flag) {
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  }
  void watch();

  const WallClock clock_;
  const double seconds_;
  const std::atomic<bool>*cancel_, *abandon_;
  std::atomic<bool> proofs_, hard_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;  // guarded by mutex_
  std::thread watcher_;
};

}  // namespace tessera
