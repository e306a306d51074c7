#include "backend/cuda/steps.h"

#include <algorithm>
#include <map>

namespace tessera {
namespace {

struct Lifetime {
  int birth = -1, death = -1;
};

// Numbers the steps and notes first and last use of each buffer. What was born before a loop and is
// used in it stays until its end.
void lifetimes(const std::vector<EmitStep>& steps, const std::vector<bool>& whole_loop, int& clock,
               std::vector<Lifetime>& life) {
  for (const EmitStep& step : steps) {
    ++clock;
    for (const SharedAccess& a : step.accesses) {
      Lifetime& l = life[a.buffer];
      if (l.birth < 0) l.birth = clock;
      l.death = clock;
    }
    if (step.body.empty()) continue;
    const int begin = clock;
    std::vector<Lifetime> inside(life.size());
    lifetimes(step.body, whole_loop, clock, inside);
    const int end = ++clock;
    for (size_t b = 0; b < life.size(); ++b) {
      if (inside[b].birth < 0) continue;
      const bool outside = life[b].birth >= 0;
      if (!outside) life[b].birth = whole_loop[b] ? begin : inside[b].birth;
      life[b].death = outside || whole_loop[b] ? end : inside[b].death;
    }
  }
}

// What has been done to shared memory since all threads met.
class Hazards {
 public:
  Hazards(const std::vector<SharedBuffer>& buffers, const MemoryPlan& plan)
      : buffers_(buffers), plan_(plan) {}

  bool meets(const SharedAccess& a) const {
    return std::any_of(done_.begin(), done_.end(), [&](const SharedAccess& d) {
      if (!a.write && !d.write) return false;
      if (a.buffer == d.buffer && !a.mapping.empty() && a.mapping == d.mapping) return false;
      return overlap(a.buffer, d.buffer);
    });
  }
  void add(const SharedAccess& a) {
    const bool known = std::any_of(done_.begin(), done_.end(), [&](const SharedAccess& d) {
      return d.buffer == a.buffer && d.write == a.write && d.mapping == a.mapping;
    });
    if (!known) done_.push_back(a);
  }
  void sync() { done_.clear(); }

  bool copying() const { return !copying_.empty(); }
  bool copying(size_t buffer) const { return copying_.count(buffer) != 0; }
  void copy(size_t buffer) { copying_[buffer] = true; }
  void wait() { copying_.clear(); }

  // What threads wrote and the asynchronous proxy may not see yet, with the first barrier since.
  void write_unfenced(size_t buffer) { unfenced_[buffer] = nullptr; }
  // All threads meet before `step`. Copies under way are not fenced by a fence there.
  void fence_at(EmitStep& step) {
    for (auto it = unfenced_.begin(); it != unfenced_.end();) {
      const bool done = !copying(it->first);
      if (done && it->second == nullptr) it->second = &step;
      it = done && step.fence ? unfenced_.erase(it) : std::next(it);
    }
  }
  // The proxy accesses something: what it may meet is fenced before the barrier that came after, or
  // false where none did.
  bool fence_before(const SharedAccess& a) {
    bool good = true;
    for (auto it = unfenced_.begin(); it != unfenced_.end();) {
      if (!overlap(it->first, a.buffer) || it->second == nullptr) {
        good = good && !overlap(it->first, a.buffer);
        ++it;
        continue;
      }
      it->second->fence = true;
      it = unfenced_.erase(it);
    }
    return good;
  }

 private:
  bool overlap(size_t a, size_t b) const {
    const int64_t x = plan_.offsets[a], y = plan_.offsets[b];
    return x < y + buffers_[b].bytes && y < x + buffers_[a].bytes;
  }
  const std::vector<SharedBuffer>& buffers_;
  const MemoryPlan& plan_;
  std::vector<SharedAccess> done_;
  std::map<size_t, bool> copying_;
  std::map<size_t, EmitStep*> unfenced_;
};

void place(std::vector<EmitStep>& steps, Hazards& hazards) {
  for (EmitStep& step : steps) {
    if (step.meets) {
      if (step.pending < 0 && hazards.copying()) step.pending = 0;
      if (step.pending >= 0) hazards.wait();
      for (const SharedAccess& a : step.accesses)
        if (!a.async) hazards.write_unfenced(a.buffer);
      step.sync = true;
      hazards.sync();
      hazards.fence_at(step);
      for (const SharedAccess& a : step.accesses)
        if (a.async) hazards.fence_before(a);
      continue;
    }
    for (const SharedAccess& a : step.accesses) {
      if (hazards.copying(a.buffer)) step.wait = step.sync = true;
      step.sync = step.sync || hazards.meets(a) || (a.async && !hazards.fence_before(a));
    }
    if (step.wait) hazards.wait();
    if (step.sync) {
      hazards.sync();
      hazards.fence_at(step);
    }
    for (const SharedAccess& a : step.accesses)
      if (a.async) hazards.fence_before(a);
    for (const SharedAccess& a : step.accesses) {
      hazards.add(a);
      if (a.write && !a.async) hazards.write_unfenced(a.buffer);
      if (step.copies && a.write && !a.async) hazards.copy(a.buffer);
    }
    if (step.body.empty()) continue;
    place(step.body, hazards);  // the second time after an iteration
    place(step.body, hazards);
  }
}

}  // namespace

MemoryPlan plan_shared(const std::vector<SharedBuffer>& buffers,
                       const std::vector<bool>& whole_loop, const std::vector<EmitStep>& steps,
                       int64_t alignment) {
  std::vector<Lifetime> life(buffers.size());
  int clock = 0;
  lifetimes(steps, whole_loop, clock, life);
  std::vector<MemoryRequest> requests;
  for (size_t b = 0; b < buffers.size(); ++b)
    requests.push_back({buffers[b].name, buffers[b].bytes, std::max(0, life[b].birth),
                        std::max(0, life[b].death)});
  MemoryPlanOptions options;
  options.alignment = alignment;
  return plan_memory(requests, options);
}

void place_barriers(std::vector<EmitStep>& steps, const std::vector<SharedBuffer>& buffers,
                    const MemoryPlan& plan) {
  Hazards hazards(buffers, plan);
  place(steps, hazards);
}

void print_steps(const std::vector<EmitStep>& steps, int indent, std::string& text) {
  const auto line = [&](int by, const std::string& s) {
    text += std::string(size_t(2 * by), ' ') + s + "\n";
  };
  for (const EmitStep& step : steps) {
    if (step.wait || step.pending >= 0)
      line(indent, "ts::wait_copies<" + std::to_string(std::max(0, step.pending)) + ">();");
    if (step.fence) line(indent, "ts::fence_async();");
    if (step.sync) line(indent, "ts::sync();");
    for (const std::string& s : step.lines) line(indent, s);
    if (step.body.empty()) continue;
    print_steps(step.body, indent + 1, text);
    line(indent, "}");
  }
}

}  // namespace tessera
