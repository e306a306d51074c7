// Offsets for buffers in one arena, such that buffers alive at the same time never overlap (dynamic
// storage allocation; Mirage, OSDI'25, §6). The gap to a lower bound is told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// A buffer that is needed during the closed interval [birth, death] of some clock.
struct MemoryRequest {
  std::string name;
  int64_t bytes = 0;
  int birth = 0;
  int death = 0;
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per request, multiples of the alignment
  int64_t bytes = 0;             // size of the arena
  int64_t lower_bound = 0;       // most bytes alive at one time: no plan can be smaller
  bool optimal() const { return bytes == lower_bound; }
  // "1024 bytes, optimal" or "1024 bytes, at least 960".
  std::string summary() const;
};

// Four greedy orders are tried. Searching all on top found less for 2 of 366 programs, by 0.1 %.
MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests, int64_t alignment = 64);

// Aborts unless `plan` keeps every pair of simultaneously live buffers apart.
void check_memory_plan(const std::vector<MemoryRequest>& requests, const MemoryPlan& plan);

}  // namespace tessera
