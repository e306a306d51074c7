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
      const int64_t x = plan_.offsets[a.buffer], y = plan_.offsets[d.buffer];
      return x < y + buffers_[d.buffer].bytes && y < x + buffers_[a.buffer].bytes;
    });
  }
  void add(const SharedAccess& a) {
    const bool known = std::any_of(done_.begin(), done_.end(), [&](const SharedAccess& d) {
      return d.buffer == a.buffer && d.write == a.write && d.mapping == a.mapping;
    });
    if (!known) done_.push_back(a);
  }
  void sync() { done_.clear(); }

  bool copying(size_t buffer) const { return copying_.count(buffer) != 0; }
  void copy(size_t buffer) { copying_[buffer] = true; }
  void wait() { copying_.clear(); }

 private:
  const std::vector<SharedBuffer>& buffers_;
  const MemoryPlan& plan_;
  std::vector<SharedAccess> done_;
  std::map<size_t, bool> copying_;
};

void place(std::vector<EmitStep>& steps, Hazards& hazards) {
  for (EmitStep& step : steps) {
    // What it brings in goes to a stage that is not read before the next such step.
    if (step.meets) {
      hazards.wait();
      hazards.sync();
      continue;
    }
    for (const SharedAccess& a : step.accesses) {
      if (hazards.copying(a.buffer)) step.wait = step.sync = true;
      step.sync = step.sync || hazards.meets(a);
    }
    if (step.wait) hazards.wait();
    if (step.sync) hazards.sync();
    for (const SharedAccess& a : step.accesses) {
      hazards.add(a);
      if (step.copies && a.write) hazards.copy(a.buffer);
    }
    if (step.body.empty()) continue;
    place(step.body, hazards);  // the second time after an iteration
    place(step.body, hazards);
  }
}

}  // namespace

MemoryPlan plan_shared(const std::vector<SharedBuffer>& buffers,
                       const std::vector<bool>& whole_loop, const std::vector<EmitStep>& steps) {
  std::vector<Lifetime> life(buffers.size());
  int clock = 0;
  lifetimes(steps, whole_loop, clock, life);
  std::vector<MemoryRequest> requests;
  for (size_t b = 0; b < buffers.size(); ++b)
    requests.push_back({buffers[b].name, buffers[b].bytes, std::max(0, life[b].birth),
                        std::max(0, life[b].death)});
  MemoryPlanOptions options;
  options.alignment = 128;
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
    if (step.wait) line(indent, "ts::wait_copies<0>();");
    if (step.sync) line(indent, "ts::sync();");
    for (const std::string& s : step.lines) line(indent, s);
    if (step.body.empty()) continue;
    print_steps(step.body, indent + 1, text);
    line(indent, "}");
  }
}

}  // namespace tessera
