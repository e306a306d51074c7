// The statements of a kernel in order, each with what it reads and writes of shared memory: from
// that follow where buffers lie and where the threads of a block must meet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/memory.h"

namespace tessera {

struct SharedBuffer {
  std::string name;
  std::string type;  // of its elements
  int64_t bytes = 0;
};

struct SharedAccess {
  size_t buffer = 0;
  bool write = false;
  // How elements are given to threads; two accesses with the same, not empty, mapping meet only
  // within a thread.
  std::string mapping;
  // By the asynchronous proxy: what threads wrote or copied there must be fenced before.
  bool async = false;
};

struct EmitStep {
  std::vector<std::string> lines;
  std::vector<SharedAccess> accesses;
  // A loop: `lines` is its head, this its body.
  std::vector<EmitStep> body;
  bool copies = false;  // starts asynchronous copies into what it writes
  // All threads meet before it; what it brings in goes where nothing looks before the next such
  // step. `pending`: groups of copies that are not waited for, -1: no copies.
  bool meets = false;
  int pending = -1;
  // Set by place_barriers: before the step, copies are waited for, what threads wrote becomes
  // visible to the asynchronous proxy, and all threads meet.
  bool wait = false, fence = false, sync = false;
};

// Offsets of the buffers, with memory used again where lifetimes allow. Buffers of `whole_loop`
// live as long as the loop that they are used in. `alignment`: of all, in bytes.
MemoryPlan plan_shared(const std::vector<SharedBuffer>& buffers,
                       const std::vector<bool>& whole_loop, const std::vector<EmitStep>& steps,
                       int64_t alignment);

// Marks the steps before which threads must meet: what two steps do to overlapping memory, one of
// them writing, is divided by a barrier; also from one iteration of a loop to the next.
void place_barriers(std::vector<EmitStep>& steps, const std::vector<SharedBuffer>& buffers,
                    const MemoryPlan& plan);

// The text, barriers included.
void print_steps(const std::vector<EmitStep>& steps, int indent, std::string& text);

}  // namespace tessera
