#include "backend/cuda/steps.h"

#include <algorithm>
#include <map>
#include <set>

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

  // What threads wrote and the asynchronous proxy may not see yet.
  void write_unfenced(size_t buffer) { unfenced_.insert(buffer); }
  bool unfenced(const SharedAccess& a) const {
    return std::any_of(unfenced_.begin(), unfenced_.end(),
                       [&](size_t b) { return overlap(b, a.buffer); });
  }
  // Whether the proxy will look where something is not fenced; nothing is left afterwards but
  // copies under way.
  bool fence(const std::set<size_t>& seen_by_proxy) {
    bool any = false;
    for (auto it = unfenced_.begin(); it != unfenced_.end();) {
      if (copying(*it)) {
        ++it;
        continue;
      }
      any = any || std::any_of(seen_by_proxy.begin(), seen_by_proxy.end(),
                               [&](size_t b) { return overlap(b, *it); });
      it = unfenced_.erase(it);
    }
    return any;
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
  std::set<size_t> unfenced_;
};

void place(std::vector<EmitStep>& steps, const std::set<size_t>& proxy, Hazards& hazards) {
  for (EmitStep& step : steps) {
    if (step.meets) {
      if (step.pending < 0 && hazards.copying()) step.pending = 0;
      if (step.pending >= 0) hazards.wait();
      for (const SharedAccess& a : step.accesses)
        if (!a.async) hazards.write_unfenced(a.buffer);
      step.sync = true;
      step.fence = hazards.fence(proxy) || step.fence;
      hazards.sync();
      continue;
    }
    for (const SharedAccess& a : step.accesses) {
      if (hazards.copying(a.buffer)) step.wait = step.sync = true;
      step.sync = step.sync || hazards.meets(a) || (a.async && hazards.unfenced(a));
    }
    if (step.wait) hazards.wait();
    if (step.sync) {
      hazards.sync();
      step.fence = hazards.fence(proxy) || step.fence;
    }
    for (const SharedAccess& a : step.accesses) {
      hazards.add(a);
      if (a.write && !a.async) hazards.write_unfenced(a.buffer);
      if (step.copies && a.write && !a.async) hazards.copy(a.buffer);
    }
    if (step.body.empty()) continue;
    place(step.body, proxy, hazards);  // the second time after an iteration
    place(step.body, proxy, hazards);
  }
}

// Buffers that the asynchronous proxy reads or writes.
void seen_by_proxy(const std::vector<EmitStep>& steps, std::set<size_t>& found) {
  for (const EmitStep& step : steps) {
    for (const SharedAccess& a : step.accesses)
      if (a.async) found.insert(a.buffer);
    seen_by_proxy(step.body, found);
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
  std::set<size_t> proxy;
  seen_by_proxy(steps, proxy);
  place(steps, proxy, hazards);
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
