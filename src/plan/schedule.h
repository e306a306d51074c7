// The order of tasks as phases: tasks of one phase run side by side, a barrier divides phases
// (Mirage, OSDI'25, §6, operator scheduling). The number of barriers is the least possible.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// A task with what it waits for and what it keeps alive.
struct ScheduleTask {
  std::vector<int> after;  // tasks whose results it reads; all come earlier in the list
};

// Memory that is written by task `writer` and last needed by any of `readers`.
struct ScheduleBuffer {
  int writer = 0;
  std::vector<int> readers;
  int64_t bytes = 0;
};

struct Schedule {
  std::vector<std::vector<int>> phases;  // ascending within a phase
  int barriers() const { return phases.empty() ? 0 : int(phases.size()) - 1; }
  int least_barriers = 0;  // length of the longest chain: no order needs fewer
  int64_t live_bytes = 0;  // most bytes alive during a phase
  bool serial = false;     // one task at a time: side by side would keep too much alive
};

// Phases by depth; tasks that could run in several phases are put where least is kept alive. Where
// that is still more than `most_live_bytes` and a serial order keeps less, the serial order.
Schedule schedule_by_depth(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers, int64_t most_live_bytes);

// One task per phase, as listed.
Schedule schedule_serially(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers);

// Least live bytes over all serial orders: exact up to 16 tasks, otherwise the order as listed.
Schedule schedule_frugally(const std::vector<ScheduleTask>& tasks,
                           const std::vector<ScheduleBuffer>& buffers);

}  // namespace tessera
