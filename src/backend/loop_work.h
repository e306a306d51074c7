// What the body of a kernel's loop has to do, and in which order it can.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "backend/values.h"

namespace tessera {

// Values that `id` is computed from, of those that are in memory in the body of `loops` or around.
std::set<int> dependencies(const KernelValues& kernel, int id, uint8_t loops,
                           const std::function<bool(int)>& in_memory);

struct LoopWork {
  // Of the values that are `needed`, among which roots are stored or accumulated; `last`: the
  // innermost loop, -1 outside of all.
  LoopWork(const KernelValues& kernel, const std::vector<bool>& needed,
           const std::vector<std::vector<int>>& users, const std::function<bool(int)>& root,
           uint8_t loops, int last);

  // Computes what is left and enters the loops inside, once all that they take from here is there;
  // `sums`: accumulators of such a loop that begin in this body.
  void run(const std::function<bool(int)>& in_memory, const std::function<void(int)>& compute,
           const std::function<void(int loop, const std::vector<int>& sums)>& enter) &&;

  const KernelValues& kernel;
  uint8_t loops;
  std::vector<bool> left;                  // stores and accumulations, and what they need
  std::map<int, std::vector<int>> inside;  // loops directly inside this one: their roots
};

}  // namespace tessera
