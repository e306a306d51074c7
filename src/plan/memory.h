// Offsets for buffers in one arena, such that buffers alive at the same time never overlap. Small
// problems are solved exactly; larger ones by the best of several greedy orders.
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
  bool optimal = false;          // proved: by meeting the bound, or by exhausting the search
  std::string str(const std::vector<MemoryRequest>& requests) const;
};

struct MemoryPlanOptions {
  int64_t alignment = 64;
  int exact_buffers = 12;         // exact search up to this many buffers
  int64_t exact_steps = 200'000;  // ... and this many nodes; deterministic, unlike a time limit
};

MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests,
                       const MemoryPlanOptions& options = {});

// Aborts unless `plan` keeps every pair of simultaneously live buffers apart.
void check_memory_plan(const std::vector<MemoryRequest>& requests, const MemoryPlan& plan);

}  // namespace tessera
