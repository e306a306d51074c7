// Ends long work wherever it is: what may take long calls interruption_point(), which throws once
// the time of a scope around it is up. Interrupted is no Error, so that code which takes an error
// for a refusal lets it pass; who opened the scope catches it and goes on with what there is.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

struct Interrupted {};

// A scope of this thread, from construction to destruction.
class Interruptible {
 public:
  // Ends when the flag (may be null; it outlives this) is set, or after so many seconds.
  explicit Interruptible(const std::atomic<bool>* flag, double seconds = 1e8);
  // Work for the scope of another thread, which outlives this; null for none.
  explicit Interruptible(const Interruptible* of);
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible();

  static const Interruptible* current();
  // Whether its time is up, or that of a scope around it.
  bool ended() const { return flagged() || std::chrono::steady_clock::now() >= until_; }
  bool flagged() const;

 private:
  const std::atomic<bool>* const flag_;
  const Interruptible *const around_, *const before_;
  std::chrono::steady_clock::time_point until_;
};

// Throws Interrupted where the scope of this thread has ended; some nanoseconds.
void interruption_point();
// How many this thread has passed: a measure of work.
uint64_t interruption_points();

}  // namespace tessera
