// Replays a plan on pretended memory. Deliberately shares nothing with the planner: no lifetimes,
// no dependences, only who wrote which bytes last.
#include <algorithm>

#include "plan/plan.h"

namespace tessera {
namespace {

// A stretch of one piece of memory. Caller's arrays and constants are pieces of their own.
struct Stretch {
  int piece = 0;
  int64_t begin = 0, end = 0;
  bool meets(const Stretch& o) const { return piece == o.piece && begin < o.end && o.begin < end; }
};

class Replay {
 public:
  Replay(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {
    owner_.assign(plan.slots.size(), false);
    for (size_t s = 0; s < plan.slots.size(); ++s) {
      const Place p = plan.slots[s].place;
      owner_[s] = (p == Place::Input || p == Place::Constant) && plan.slots[s].alias < 0;
    }
  }

  // From now on an input and an output are one piece of memory.
  void overwrite(size_t input, size_t output) {
    overwritten_ = int(graph_.inputs()[input].index);
    by_output_ = int(output);
  }

  std::string run() {
    for (const Slot& s : plan_.slots) {
      if (!s.used || s.alias >= 0) continue;
      const int64_t limit = s.place == Place::Arena  ? plan_.arena.bytes
                            : s.place == Place::Kept ? plan_.kept.bytes
                                                     : INT64_MAX;
      if (s.offset < 0 || s.offset > limit - s.bytes) return s.name + " leaves its memory";
    }
    std::vector<int> runs(plan_.tasks.size(), 0);
    for (const Schedule* schedule : {&plan_.once, &plan_.run}) {
      for (const std::vector<int>& phase : schedule->phases) {
        for (int t : phase) {
          if (plan_.tasks[size_t(t)].once != (schedule == &plan_.once))
            return what(t) + " runs at the wrong time";
          ++runs[size_t(t)];
        }
        if (std::string fault = run_phase(phase); !fault.empty()) return fault;
      }
    }
    for (size_t t = 0; t < runs.size(); ++t)
      if (runs[t] != 1) return what(int(t)) + " does not run exactly once";
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      int slot = int(graph_.outputs()[i].index);
      bool copied = false;
      for (const Plan::Copy& c : plan_.copies)
        copied = copied || (c.output == int(i) && c.from == graph_.outputs()[i]);
      const Slot& s = plan_.slots[size_t(plan_.root(slot))];
      const bool direct = s.place == Place::Output && s.index == int(i);
      if (!direct && !copied) return "output " + std::to_string(i) + " is not delivered";
      if (!holds(slot)) return "output " + std::to_string(i) + " is lost";
    }
    return "";
  }

 private:
  std::string what(int t) const {
    const Task& task = plan_.tasks[size_t(t)];
    std::string out = task.kind == TaskKind::Pack ? "pack" : name(graph_.op(task.op).kind);
    for (int w : task.writes) out += " " + plan_.slots[size_t(w)].name;
    return out;
  }
  Stretch stretch(int slot) const {
    const int r = plan_.root(slot);
    const Slot& s = plan_.slots[size_t(r)];
    if (s.place == Place::Arena) return {-1, s.offset, s.offset + s.bytes};
    if (s.place == Place::Kept) return {-2, s.offset, s.offset + s.bytes};
    if (overwritten_ >= 0 && s.place == Place::Output && s.index == by_output_)
      return {overwritten_, 0, s.bytes};
    return {r, 0, s.bytes};
  }
  // The slot that wrote the memory of `slot`: itself, or the tensor it is another name of.
  int writer_of(int slot) const {
    while (!writes_itself(slot) && plan_.slots[size_t(slot)].alias >= 0)
      slot = plan_.slots[size_t(slot)].alias;
    return slot;
  }
  bool writes_itself(int slot) const {
    return std::ranges::any_of(
        plan_.tasks,
        [&](const Task& t) { return std::ranges::find(t.writes, slot) != t.writes.end(); });
  }
  bool holds(int slot) const { return owner_[size_t(writer_of(slot))]; }

  std::string run_phase(const std::vector<int>& phase) {
    // Everything that is read is there before the phase begins.
    for (int id : phase) {
      const Task& t = plan_.tasks[size_t(id)];
      for (size_t i = 0; i < t.reads.size(); ++i) {
        const Slot& s = plan_.slots[size_t(t.reads[i])];
        const Layout wanted = i < t.layouts.size() ? t.layouts[i] : Layout{};
        if (!(s.layout == wanted) && !(s.layout.row_major() && wanted.row_major()))
          return what(id) + " reads " + s.name + " as " + wanted.str() + ", but it is " +
                 s.layout.str();
        if (!holds(t.reads[i])) return what(id) + " reads " + s.name + " before it is complete";
      }
      if (t.kind == TaskKind::Code) {
        const Op& op = graph_.op(t.op);
        if (t.reads.size() < op.inputs.size()) return what(id) + " lacks an operand";
        for (size_t i = 0; i < op.inputs.size(); ++i)
          if (plan_.slots[size_t(t.reads[i])].tensor != op.inputs[i])
            return what(id) + " reads another tensor than its operand";
      }
    }
    // Nobody writes what a neighbour reads or writes.
    for (int a : phase) {
      for (int w : plan_.tasks[size_t(a)].writes) {
        for (int b : phase) {
          const Task& other = plan_.tasks[size_t(b)];
          for (size_t i = 0; i < other.reads.size(); ++i) {
            const bool in_place = a == b && int(i) == other.in_place;
            if (in_place && stretch(w).begin == stretch(other.reads[i]).begin) continue;
            // The same operand once more, element by element like the one taken over.
            if (a == b && other.in_place >= 0 &&
                plan_.root(other.reads[i]) == plan_.root(other.reads[size_t(other.in_place)]))
              continue;
            if (stretch(w).meets(stretch(other.reads[i])))
              return what(a) + " overwrites what " + what(b) + " reads";
          }
          for (int v : other.writes)
            if (v != w && stretch(w).meets(stretch(v)))
              return what(a) + " and " + what(b) + " write the same memory";
        }
      }
    }
    // Whatever lay there is gone.
    for (int id : phase) {
      for (int w : plan_.tasks[size_t(id)].writes) {
        for (size_t s = 0; s < owner_.size(); ++s) {
          if (!owner_[s] || !stretch(int(s)).meets(stretch(w))) continue;
          const Place p = plan_.slots[s].place;
          const bool given_away = int(s) == overwritten_;
          if (plan_.slots[s].alias < 0 && (p == Place::Input || p == Place::Constant) &&
              !given_away)
            return what(id) + " overwrites " + plan_.slots[s].name;
          owner_[s] = false;
        }
        owner_[size_t(w)] = true;
      }
    }
    return "";
  }

  const Graph& graph_;
  const Plan& plan_;
  std::vector<bool> owner_;  // slots whose memory holds their value
  int overwritten_ = -1, by_output_ = -1;
};

}  // namespace

std::string plan_fault(const Graph& graph, const Plan& plan) { return Replay(graph, plan).run(); }

bool may_overwrite(const Graph& graph, const Plan& plan, size_t input, size_t output) {
  const TensorId from = graph.inputs()[input];
  // Weights are promised to keep their values; what is copied at the end would be copied onto
  // itself.
  if (graph.is_weight(from) ||
      graph.type(from).bytes() != graph.type(graph.outputs()[output]).bytes())
    return false;
  for (const Plan::Copy& c : plan.copies)
    if (c.output == int(output)) return false;
  Replay replay(graph, plan);
  replay.overwrite(input, output);
  return replay.run().empty();
}

}  // namespace tessera
