#include "plan/schedule.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/interruption.h"

namespace tessera {
namespace {

constexpr int64_t kMostAssignments = 20'000;  // tried exhaustively; beyond that, by improvement
// Buffers and phases that comparisons look at; the phases of long programs stay as they are then.
constexpr int64_t kMostLooks = 20'000'000;

// Most bytes alive during a phase, and the sum over phases to break ties.
struct Live {
  int64_t peak = 0, sum = 0;
  friend auto operator<=>(const Live&, const Live&) = default;
};

Live live(const std::vector<int>& phase, int phases, const std::vector<ScheduleBuffer>& buffers) {
  interruption_point();
  std::vector<int64_t> bytes(size_t(phases) + 1, 0);  // that begin or end to live
  for (const ScheduleBuffer& b : buffers) {
    const int from = phase[size_t(b.writer)];
    int to = most_of(from, b.readers, [&](int r) { return phase[size_t(r)]; });
    bytes[size_t(from)] += b.bytes;
    bytes[size_t(to) + 1] -= b.bytes;
  }
  Live out;
  int64_t now = 0;
  for (int64_t change : bytes) {
    now += change;
    out.peak = std::max(out.peak, now), out.sum += now;
  }
  return out;
}

int longest_chain(const std::vector<ScheduleTask>& tasks, std::vector<int>& depth) {
  int most = 0;
  depth.assign(tasks.size(), 0);
  for (size_t i = 0; i < tasks.size(); ++i) {
    for (int a : tasks[i].after) {
      CHECK(a >= 0 && a < int(i)) << "tasks are not in order";
      depth[i] = std::max(depth[i], depth[size_t(a)] + 1);
    }
    most = std::max(most, depth[i] + 1);
  }
  return most;
}

Schedule make(const std::vector<int>& phase, int phases,
              const std::vector<ScheduleBuffer>& buffers) {
  Schedule s;
  s.phases.resize(size_t(phases));
  for (size_t i = 0; i < phase.size(); ++i) s.phases[size_t(phase[i])].push_back(int(i));
  s.live_bytes = live(phase, phases, buffers).peak;
  return s;
}

int64_t looks(int phases, const std::vector<ScheduleBuffer>& buffers) {
  return 1 + phases + int64_t(buffers.size());
}

// All ways to give tasks phases between their predecessors and successors.
class Assignments {
 public:
  Assignments(const std::vector<ScheduleTask>& tasks, const std::vector<ScheduleBuffer>& buffers,
              const std::vector<int>& latest, int phases)
      : tasks_(tasks), buffers_(buffers), latest_(latest), phases_(phases),
        most_(std::min(kMostAssignments, kMostLooks / looks(phases, buffers))) {}

  void run(std::vector<int>& best) {
    best_ = best;
    best_live_ = live(best, phases_, buffers_);
    phase_ = best;
    branch(0);
    best = best_;
  }

 private:
  void branch(size_t i) {
    interruption_point();
    if (i == tasks_.size()) {
      ++tried_;
      const Live l = live(phase_, phases_, buffers_);
      if (l < best_live_) best_live_ = l, best_ = phase_;
      return;
    }
    int first = most_of(0, tasks_[i].after, [&](int a) { return phase_[size_t(a)] + 1; });
    for (int p = first; p <= latest_[i] && tried_ <= most_; ++p) {
      phase_[i] = p;
      branch(i + 1);
    }
  }

  const std::vector<ScheduleTask>& tasks_;
  const std::vector<ScheduleBuffer>& buffers_;
  const std::vector<int>& latest_;
  int phases_;
  const int64_t most_;
  std::vector<int> phase_, best_;
  Live best_live_;
  int64_t tried_ = 0;
};

// Moves single tasks while that helps.
void improve(const std::vector<ScheduleTask>& tasks, const std::vector<ScheduleBuffer>& buffers,
             const std::vector<std::vector<int>>& before, int phases, std::vector<int>& phase) {
  Live best = live(phase, phases, buffers);
  int64_t left = kMostLooks;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < tasks.size(); ++i) {
      int first = 0, last = phases - 1;
      for (int a : tasks[i].after) first = std::max(first, phase[size_t(a)] + 1);
      for (int b : before[i]) last = std::min(last, phase[size_t(b)] - 1);
      const int was = phase[i];
      int at = was;
      left -= (last - first + 1) * looks(phases, buffers);
      if (left < 0) return;
      for (int p = first; p <= last; ++p) {
        phase[i] = p;
        if (const Live l = live(phase, phases, buffers); l < best) best = l, at = p;
      }
      phase[i] = at;
      again = again || at != was;
    }
  }
}

}  // namespace

Schedule schedule_serially(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers) {
  std::vector<int> phase(tasks.size()), depth;
  for (size_t i = 0; i < tasks.size(); ++i) phase[i] = int(i);
  Schedule s = make(phase, int(tasks.size()), buffers);
  s.least_barriers = std::max(0, longest_chain(tasks, depth) - 1);
  s.serial = true;
  return s;
}

Schedule schedule_frugally(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers) {
  constexpr size_t kExact = 16;
  const size_t n = tasks.size();
  Schedule listed = schedule_serially(tasks, buffers);
  if (n < 3 || n > kExact) return listed;
  // Least peak over all orders, by dynamic programming over the set of tasks already run.
  std::vector<uint32_t> needs(n, 0);
  for (size_t i = 0; i < n; ++i)
    for (int a : tasks[i].after) needs[i] |= 1u << a;
  std::vector<uint32_t> readers(buffers.size(), 0);
  std::vector<int64_t> own(n, 0);
  for (size_t b = 0; b < buffers.size(); ++b) {
    own[size_t(buffers[b].writer)] += buffers[b].bytes;
    for (int r : buffers[b].readers) readers[b] |= 1u << r;
  }
  const auto alive = [&](uint32_t set) {
    int64_t sum = 0;
    for (size_t b = 0; b < buffers.size(); ++b)
      if ((set >> buffers[b].writer & 1) != 0 && (readers[b] & ~set) != 0) sum += buffers[b].bytes;
    return sum;
  };
  const uint32_t all = (1u << n) - 1;
  std::vector<int64_t> best(all + size_t{1}, INT64_MAX);
  std::vector<int8_t> choice(all + size_t{1}, -1);
  best[0] = 0;
  for (uint32_t set = 0; set < all; ++set) {
    if (best[set] == INT64_MAX) continue;
    const int64_t before = alive(set);
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) != 0 || (needs[i] & ~set) != 0) continue;
      const uint32_t next = set | 1u << i;
      const int64_t peak = std::max(best[set], before + own[i]);
      // On a tie the task that comes later in the list runs last.
      if (peak < best[next] || (peak == best[next] && int(i) > choice[next])) {
        best[next] = peak;
        choice[next] = int8_t(i);
      }
    }
  }
  std::vector<int> phase(n);
  uint32_t set = all;
  for (size_t k = n; k-- > 0;) {
    const size_t i = size_t(choice[set]);
    phase[i] = int(k);
    set &= ~(1u << i);
  }
  Schedule s = make(phase, int(n), buffers);
  s.least_barriers = listed.least_barriers;
  s.serial = true;
  return s;
}

Schedule schedule_by_depth(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers, int64_t most_live_bytes) {
  std::vector<int> phase;
  const int phases = longest_chain(tasks, phase);
  std::vector<std::vector<int>> before(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i)
    for (int a : tasks[i].after) before[size_t(a)].push_back(int(i));
  std::vector<int> latest(tasks.size(), phases - 1);
  for (size_t i = tasks.size(); i-- > 0;)
    for (int b : before[i]) latest[i] = std::min(latest[i], latest[size_t(b)] - 1);
  improve(tasks, buffers, before, phases, phase);
  Assignments(tasks, buffers, latest, phases).run(phase);
  Schedule s = make(phase, phases, buffers);
  s.least_barriers = std::max(0, phases - 1);
  if (s.live_bytes > most_live_bytes) {
    Schedule serial = schedule_frugally(tasks, buffers);
    if (serial.live_bytes < s.live_bytes) return serial;
  }
  return s;
}

}  // namespace tessera
