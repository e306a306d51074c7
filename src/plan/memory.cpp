#include "plan/memory.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/interruption.h"

namespace tessera {
namespace {

bool overlap_in_time(const MemoryRequest& a, const MemoryRequest& b) {
  return a.birth <= b.death && b.birth <= a.death;
}

class MemoryPlanner {
 public:
  MemoryPlanner(const std::vector<MemoryRequest>& requests, int64_t alignment)
      : requests_(requests) {
    for (const MemoryRequest& r : requests) {
      CHECK(r.bytes >= 0 && r.birth <= r.death) << "request " << r.name;
      sizes_.push_back((r.bytes + alignment - 1) / alignment * alignment);
    }
  }

  MemoryPlan run() {
    MemoryPlan plan;
    plan.lower_bound = lower_bound();
    const auto size = [&](size_t a) { return sizes_[a]; };
    const auto life = [&](size_t a) {  // of what is never freed, death is the largest number
      return int64_t(requests_[a].death) - requests_[a].birth;
    };
    // Greedy orders: largest first, longest first, area, by birth.
    greedy([&](size_t a, size_t b) { return size(a) > size(b); });
    greedy([&](size_t a, size_t b) { return life(a) > life(b); });
    greedy([&](size_t a, size_t b) {
      return double(size(a)) * double(life(a) + 1) > double(size(b)) * double(life(b) + 1);
    });
    greedy([&](size_t a, size_t b) { return requests_[a].birth < requests_[b].birth; });
    plan.offsets = best_;
    plan.bytes = requests_.empty() ? 0 : best_bytes_;
    return plan;
  }

 private:
  int64_t lower_bound() const {
    int64_t most = 0;
    for (const MemoryRequest& at : requests_) {  // the maximum is reached at some birth
      int64_t live = 0;
      for (size_t i = 0; i < requests_.size(); ++i) {
        interruption_point();
        if (requests_[i].birth <= at.birth && at.birth <= requests_[i].death) live += sizes_[i];
      }
      most = std::max(most, live);
    }
    return most;
  }

  // Lowest offset at which request i fits beside those already placed.
  int64_t lowest(size_t i, const std::vector<int64_t>& offsets) const {
    interruption_point();
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t j = 0; j < offsets.size(); ++j)
      if (offsets[j] >= 0 && j != i && overlap_in_time(requests_[i], requests_[j]))
        taken.emplace_back(offsets[j], offsets[j] + sizes_[j]);
    std::ranges::sort(taken);
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (at + sizes_[i] <= begin) break;
      at = std::max(at, end);
    }
    return at;
  }

  template <class Less> void greedy(Less less) {
    std::vector<size_t> order(requests_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, less);
    std::vector<int64_t> offsets(requests_.size(), -1);
    int64_t bytes = 0;
    for (size_t i : order) {
      offsets[i] = lowest(i, offsets);
      bytes = std::max(bytes, offsets[i] + sizes_[i]);
    }
    if (bytes < best_bytes_) best_bytes_ = bytes, best_ = offsets;
  }

  const std::vector<MemoryRequest>& requests_;
  std::vector<int64_t> sizes_, best_;
  int64_t best_bytes_ = INT64_MAX;
};

}  // namespace

MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests, int64_t alignment) {
  MemoryPlan plan = MemoryPlanner(requests, alignment).run();
  check_memory_plan(requests, plan);
  return plan;
}

void check_memory_plan(const std::vector<MemoryRequest>& requests, const MemoryPlan& plan) {
  CHECK(plan.offsets.size() == requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t end = plan.offsets[i] + requests[i].bytes;
    CHECK(plan.offsets[i] >= 0 && end <= plan.bytes) << requests[i].name << " leaves the arena";
    for (size_t j = 0; j < i; ++j) {
      if (!overlap_in_time(requests[i], requests[j])) continue;
      CHECK(end <= plan.offsets[j] || plan.offsets[j] + requests[j].bytes <= plan.offsets[i])
          << requests[i].name << " overlaps " << requests[j].name;
    }
  }
}

std::string MemoryPlan::summary() const {
  return std::to_string(bytes) + " bytes, " +
         (optimal() ? "optimal" : "at least " + std::to_string(lower_bound));
}

}  // namespace tessera
