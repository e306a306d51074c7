#include "backend/loop_work.h"

#include <algorithm>

#include "base/check.h"

namespace tessera {

std::set<int> dependencies(const KernelValues& kernel, int id, uint8_t loops,
                           const std::function<bool(int)>& in_memory) {
  std::set<int> seen, found;
  std::vector<int> todo{id};
  while (!todo.empty()) {
    const int at = todo.back();
    todo.pop_back();
    for (int input : kernel.values[size_t(at)].inputs) {
      if (!seen.insert(input).second) continue;
      if ((kernel.values[size_t(input)].phase.varies & ~loops) == 0 && in_memory(input))
        found.insert(input);
      else
        todo.push_back(input);
    }
  }
  return found;
}

LoopWork::LoopWork(const KernelValues& kernel, const std::vector<bool>& needed,
                   const std::vector<std::vector<int>>& users, const std::function<bool(int)>& root,
                   uint8_t loops, int last)
    : kernel(kernel), loops(loops), left(needed.size()) {
  for (size_t i = needed.size(); i-- > 0;) {
    if (!needed[i]) continue;
    const Value& v = kernel.values[i];
    const bool is_root = root(int(i)), at_home = v.phase.varies == loops;
    if (at_home || (is_root && update_loops(v) == loops)) {
      left[i] = true;
    } else if (!is_root && last >= 0 && (v.phase.varies & ~loops) == 0 &&
               (v.phase.varies >> last & 1) != 0) {
      // Varies with fewer loops than this nest has: computed again if something here needs it.
      left[i] = std::ranges::any_of(users[i], [&](int user) {
        return left[size_t(user)] || (needed[size_t(user)] &&
                                      (update_loops(kernel.values[size_t(user)]) & loops) == loops);
      });
    }
  }
  for (size_t i = 0; i < needed.size(); ++i) {
    if (!needed[i] || !root(int(i))) continue;
    for (int l = last + 1; l < int(kernel.loops.size()); ++l)
      if (continues(update_loops(kernel.values[i]), loops, l)) inside[l].push_back(int(i));
  }
}

void LoopWork::run(const std::function<bool(int)>& in_memory,
                   const std::function<void(int)>& compute,
                   const std::function<void(int, const std::vector<int>&)>& enter) && {
  // Through values inside loops down to those of this body.
  const auto ready = [&](int id, const std::vector<int>& siblings) {
    return std::ranges::all_of(dependencies(kernel, id, loops, in_memory), [&](int d) {
      return !left[size_t(d)] || std::ranges::find(siblings, d) != siblings.end();
    });
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < left.size(); ++i) {
      const Value& v = kernel.values[i];
      const bool folded_inside = is_accumulator(v.kind) && update_loops(v) != loops;
      if (!left[i] || folded_inside || !ready(int(i), {})) continue;
      left[i] = false;
      progress = true;
      compute(int(i));
    }
    const auto next = std::ranges::find_if(inside, [&](const auto& nest) {
      return std::ranges::all_of(nest.second, [&](int r) { return ready(r, nest.second); });
    });
    if (next == inside.end()) continue;
    auto [loop, sums] = *next;
    inside.erase(next);
    std::erase_if(sums, [&](int r) {
      const Value& v = kernel.values[size_t(r)];
      return !is_accumulator(v.kind) || v.phase.varies != loops;
    });
    enter(loop, sums);
    for (int sum : sums) left[size_t(sum)] = false;
    progress = true;
  }
  for (size_t i = 0; i < left.size(); ++i)
    CHECK(!left[i]) << "value " << i << " (" << name(kernel.values[i].kind)
                    << ") cannot be scheduled";
  CHECK(inside.empty()) << "a loop cannot be scheduled";
}

}  // namespace tessera
