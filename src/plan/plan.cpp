#include "plan/plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/interruption.h"
#include "ir/weights.h"

namespace tessera {
namespace {

std::string name_of(const Graph& graph, size_t tensor) {
  const std::string& name = graph.tensors()[tensor].name;
  return name.empty() ? "t" + std::to_string(tensor) : name;
}

}  // namespace

void disable_plan(PlanOptions& options, const std::string& name) {
  if (name == "plan:layout")
    options.layout = false;
  else if (name == "plan:schedule")
    options.schedule = false;
  else if (name == "plan:memory")
    options.memory = false;
  else if (name == "plan:weights")
    options.weights = false;
  else if (name == "plan:images")
    options.images = false;
  else if (name == "plan:transforms")
    options.transforms = Transforms::None;
  else if (name == "plan:large-transforms")
    options.transforms = std::min(options.transforms, Transforms::Small);
  else if (name == "plan:rare-transforms")
    options.transforms = std::min(options.transforms, Transforms::Common);
  else if (name == "plan:fuse")
    options.fuse = false;
  else
    throw Error(ErrorKind::Usage, "unknown decision '" + name +
                                      "' to disable; there are plan:layout, plan:schedule, "
                                      "plan:memory, plan:weights, plan:images, plan:transforms, "
                                      "plan:large-transforms, plan:rare-transforms and plan:fuse");
}

int Plan::root(int s) const {
  while (slots[size_t(s)].alias >= 0) s = slots[size_t(s)].alias;
  return s;
}

std::vector<size_t> Plan::weights(const Graph& graph) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    bool read = false;
    for (const Task& task : tasks)
      for (int s : task.reads)
        read = read || (task.once && root(s) == int(graph.inputs()[i].index));
    if (read) found.push_back(i);
  }
  return found;
}

PlanBuilder::PlanBuilder(const Graph& graph, const PlanOptions& options)
    : graph_(graph), options_(options), once_(graph.ops().size(), false) {
  CHECK(graph.level() == Level::Kernel);
  const std::vector<bool> live = live_ops(graph);
  if (options.weights) once_ = computed_once(graph);
  plan_.slots.resize(graph.tensors().size());
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    Slot& s = plan_.slots[i];
    s.name = name_of(graph, i);
    s.tensor = TensorId(i);
    s.bytes = graph.tensors()[i].type.bytes();
  }
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    Slot& s = plan_.slots[graph.inputs()[i].index];
    s.place = Place::Input;
    s.index = int(i);
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const TensorId t = graph.outputs()[i];
    Slot& s = plan_.slots[t.index];
    if (s.place != Place::Arena) {
      plan_.copies.push_back({t, int(i)});
    } else {
      s.place = Place::Output;
      s.index = int(i);
    }
  }
  // What the caller gets under another name is made in the caller's array.
  for (size_t i = graph.ops().size(); i-- > 0;) {
    const Op& op = graph.ops()[i];
    // What is kept for all calls is copied.
    if (!is_reshape(op.kind) || once_[graph.tensor(op.inputs[0]).producer.index]) continue;
    Slot &to = plan_.slots[op.result().index], &from = plan_.slots[op.inputs[0].index];
    const OpKind maker = graph.producer(op.inputs[0]).kind;
    if (to.place != Place::Output || from.place != Place::Arena || maker == OpKind::Const) continue;
    from.place = Place::Output;
    from.index = to.index;
    to.alias = int(op.inputs[0].index);
  }
  for (size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (!live[i] || is_input(op.kind)) continue;
    Slot& s = plan_.slots[op.result().index];
    if (op.constant() && s.place == Place::Arena) {
      s.place = Place::Constant;
      continue;
    }
    // Same elements in the same order: no code, the same memory. Inputs and constants are copied to
    // the caller's array.
    if (is_reshape(op.kind) && (s.alias >= 0 || s.place == Place::Arena)) {
      s.alias = int(op.inputs[0].index);
      continue;
    }
    ops_.push_back(OpId(i));
    if (!once_[i]) continue;
    for (uint32_t r = 0; r < op.num_results; ++r)
      plan_.slots[op.result(r).index].place = Place::Kept;
  }
}

bool PlanBuilder::constant(TensorId t) const {
  return plan_.slots[t.index].place == Place::Constant ||
         (options_.weights && graph_.is_weight(t)) || once_[graph_.tensor(t).producer.index];
}

TensorId PlanBuilder::holder(TensorId t) const {
  return plan_.slots[size_t(plan_.root(slot(t)))].tensor;
}

int PlanBuilder::slot(TensorId t, const Layout& layout) {
  interruption_point();
  if (layout.row_major()) return slot(t);
  for (size_t i = graph_.tensors().size(); i < plan_.slots.size(); ++i) {
    const Slot& s = plan_.slots[i];
    if (s.tensor == t && s.layout == layout) return int(i);
  }
  const Type& type = graph_.type(t);
  check_layout(layout, type.shape.size());
  const int id = int(plan_.slots.size());
  Slot s;
  s.name = name_of(graph_, t.index) + "." + std::to_string(id);
  s.tensor = t;
  s.layout = layout;
  if (layout.view()) {
    const std::optional<SliceView> view = slice_view(graph_, t);
    CHECK(view && view->layout == layout) << "a view that no slice explains";
    s.bytes = type.bytes();
    s.alias = slot(view->whole);
    plan_.slots.push_back(s);
    return id;
  }
  s.bytes = layout_elements(layout, extents(type.shape)) * size_in_bytes(type.dtype);
  s.place = constant(t) ? Place::Kept : Place::Arena;
  plan_.slots.push_back(s);
  Task pack;
  pack.kind = TaskKind::Pack;
  pack.reads = {slot(t)};
  pack.writes = {id};
  pack.once = constant(t);
  plan_.tasks.push_back(pack);
  return id;
}

int PlanBuilder::workspace(const std::string& name, int64_t bytes) {
  Slot s;
  s.name = name;
  s.bytes = bytes;
  plan_.slots.push_back(s);
  return int(plan_.slots.size()) - 1;
}

void PlanBuilder::look(TensorId t, TensorId memory) {
  Slot& s = plan_.slots[t.index];
  CHECK(s.place == Place::Arena || s.place == Place::Kept) << s.name << " is a caller's array";
  s.alias = slot(memory);
}

void PlanBuilder::add(Task task) {
  for (int w : task.writes)
    if (task.once && plan_.slots[size_t(w)].place == Place::Arena)
      plan_.slots[size_t(w)].place = Place::Kept;
  plan_.tasks.push_back(std::move(task));
}

namespace {

// The tasks of one part of the plan (once, or run) as the scheduler sees them.
struct PlanPart {
  std::vector<int> ids;  // positions in the plan's tasks
  std::vector<ScheduleTask> tasks;
  std::vector<ScheduleBuffer> buffers;
};

PlanPart plan_part(const Plan& plan, bool once) {
  PlanPart part;
  std::map<int, size_t> buffer_of;  // by root slot
  for (size_t i = 0; i < plan.tasks.size(); ++i) {
    const Task& t = plan.tasks[i];
    if (t.once != once) continue;
    const int id = int(part.ids.size());
    ScheduleTask s;
    for (int r : t.reads) {
      const auto it = buffer_of.find(plan.root(r));
      if (it == buffer_of.end()) continue;
      s.after.push_back(part.buffers[it->second].writer);
      part.buffers[it->second].readers.push_back(id);
    }
    std::ranges::sort(s.after);
    s.after.erase(std::unique(s.after.begin(), s.after.end()), s.after.end());
    for (int w : t.writes) {
      const Slot& slot = plan.slots[size_t(w)];
      buffer_of[w] = part.buffers.size();
      const bool ours = slot.place == (once ? Place::Kept : Place::Arena);
      part.buffers.push_back({id, {}, ours ? slot.bytes : 0});
    }
    part.ids.push_back(int(i));
    part.tasks.push_back(std::move(s));
  }
  return part;
}

Schedule schedule_part(const Plan& plan, bool once, const PlanOptions& options) {
  const PlanPart part = plan_part(plan, once);
  Schedule s = options.schedule
                   ? schedule_by_depth(part.tasks, part.buffers, options.most_live_bytes)
                   : schedule_serially(part.tasks, part.buffers);
  for (std::vector<int>& phase : s.phases)
    for (int& t : phase) t = part.ids[size_t(t)];
  return s;
}

}  // namespace

// An element-by-element result may lie where an operand lay whose last use this is.
void PlanBuilder::take_over(const std::vector<int>& phase_of) {
  for (size_t i = 0; i < plan_.tasks.size(); ++i) {
    const Task& t = plan_.tasks[i];
    if (t.once || t.in_place < 0 || t.writes.size() != 1) continue;
    CHECK(size_t(t.in_place) >= t.layouts.size() || t.layouts[size_t(t.in_place)].row_major());
    const int from = plan_.root(t.reads[size_t(t.in_place)]);
    Slot& to = plan_.slots[size_t(t.writes[0])];
    const Slot& source = plan_.slots[size_t(from)];
    if (to.place != Place::Arena || source.place != Place::Arena || to.bytes != source.bytes)
      continue;
    bool last = true;
    for (size_t j = 0; j < plan_.tasks.size(); ++j) {
      if (j == i || plan_.tasks[j].once) continue;
      for (int r : plan_.tasks[j].reads)
        last = last && (plan_.root(r) != from || phase_of[j] < phase_of[i]);
    }
    for (const Plan::Copy& c : plan_.copies) last = last && plan_.root(slot(c.from)) != from;
    // Everything that reads the same operand twice through this task still sees one element each.
    if (!last) continue;
    to.alias = from;
    ++plan_.in_place;
  }
}

MemoryPlan PlanBuilder::place(Place place, bool once, const Schedule& schedule) {
  std::vector<int> phase_of(plan_.tasks.size(), -1);
  for (size_t p = 0; p < schedule.phases.size(); ++p)
    for (int t : schedule.phases[p]) phase_of[size_t(t)] = int(p);
  std::vector<MemoryRequest> requests;
  std::vector<int> request_of(plan_.slots.size(), -1);
  const int end = int(schedule.phases.size());
  for (size_t i = 0; i < plan_.tasks.size(); ++i) {
    const Task& t = plan_.tasks[i];
    if (t.once != once) continue;
    for (int w : t.writes) {
      const int s = plan_.root(w);
      if (plan_.slots[size_t(s)].place != place) continue;
      int& r = request_of[size_t(s)];
      if (r >= 0) continue;  // taken over
      r = int(requests.size());
      requests.push_back(
          {plan_.slots[size_t(s)].name, plan_.slots[size_t(s)].bytes, phase_of[i], phase_of[i]});
    }
  }
  for (size_t i = 0; i < plan_.tasks.size(); ++i) {
    const Task& t = plan_.tasks[i];
    for (const std::vector<int>* list : {&t.reads, &t.writes}) {
      for (int s : *list) {
        const int r = request_of[size_t(plan_.root(s))];
        if (r < 0) continue;
        // What a later call reads is kept for ever.
        int& death = requests[size_t(r)].death;
        death = std::max(death, t.once == once ? phase_of[i] : end);
      }
    }
  }
  for (const Plan::Copy& c : plan_.copies) {
    const int r = request_of[size_t(plan_.root(slot(c.from)))];
    if (r >= 0) requests[size_t(r)].death = end;
  }
  if (!options_.memory)
    for (MemoryRequest& r : requests) r.birth = 0, r.death = end;
  const MemoryPlan memory = plan_memory(requests);
  for (size_t s = 0; s < plan_.slots.size(); ++s)
    if (request_of[s] >= 0) plan_.slots[s].offset = memory.offsets[size_t(request_of[s])];
  return memory;
}

Plan PlanBuilder::finish() {
  // Tasks in an order in which whatever is read was written before: packing follows the producer.
  std::vector<Task> sorted;
  std::vector<bool> done(plan_.tasks.size(), false), written(plan_.slots.size(), true);
  for (const Task& t : plan_.tasks)
    for (int w : t.writes) written[size_t(w)] = false;
  while (sorted.size() < plan_.tasks.size()) {
    const size_t before = sorted.size();
    for (size_t i = 0; i < plan_.tasks.size(); ++i) {
      const Task& t = plan_.tasks[i];
      if (done[i] ||
          !std::ranges::all_of(t.reads, [&](int r) { return written[size_t(plan_.root(r))]; }))
        continue;
      for (int w : t.writes) written[size_t(w)] = true;
      done[i] = true;
      sorted.push_back(t);
    }
    CHECK(sorted.size() > before) << "tasks wait for each other";
  }
  plan_.tasks = std::move(sorted);
  plan_.once = schedule_part(plan_, true, options_);
  plan_.run = schedule_part(plan_, false, options_);
  std::vector<int> phase_of(plan_.tasks.size(), 0);
  for (size_t p = 0; p < plan_.run.phases.size(); ++p)
    for (int t : plan_.run.phases[p]) phase_of[size_t(t)] = int(p);
  if (options_.memory) take_over(phase_of);
  plan_.kept = place(Place::Kept, true, plan_.once);
  plan_.arena = place(Place::Arena, false, plan_.run);
  for (const Task& t : plan_.tasks) {
    for (int s : t.reads) plan_.slots[size_t(s)].used = true;
    for (int s : t.writes) plan_.slots[size_t(s)].used = true;
  }
  const std::string fault = plan_fault(graph_, plan_);
  CHECK(fault.empty()) << fault << "\n" << plan_.str(graph_);
  return std::move(plan_);
}

int in_place_kernel(const Graph& graph, const Op& op) {
  const Graph& block = graph.body(op);
  if (op.num_results != 1 || !block.loops().empty()) return -1;
  const Op& save = block.producer(block.outputs()[0]);
  if (!is_store(save.kind)) return -1;
  const SaveAttrs& saved = block.attrs<SaveAttrs>(save);
  std::vector<bool> fits(op.inputs.size(), true);
  for (const Op& inner : block.ops()) {
    if (is_load(inner.kind)) {
      const auto at = std::ranges::find(block.inputs(), inner.inputs[0]);
      const size_t i = size_t(at - block.inputs().begin());
      fits[i] = fits[i] && block.attrs<IterAttrs>(inner).imap == saved.omap &&
                graph.type(op.inputs[i]) == graph.type(op.result());
    } else if (!is_given(inner.kind) && !is_store(inner.kind) &&
               !has(inner.kind, algebra::Pointwise)) {
      return -1;
    }
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    bool all = true;  // also where it is an operand twice
    for (size_t j = 0; j < op.inputs.size(); ++j)
      all = all && (op.inputs[j] != op.inputs[i] || fits[j]);
    if (all) return int(i);
  }
  return -1;
}

int in_place_operand(const Graph& graph, const Op& op) {
  if (!has(op.kind, algebra::Pointwise) || op.num_results != 1) return -1;
  const Type& type = graph.type(op.result());
  int found = -1;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Type& x = graph.type(op.inputs[i]);
    if (x == type && found < 0) found = int(i);
  }
  if (found < 0) return -1;
  // The same memory read by another, broadcast operand would be read after it was written.
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (op.inputs[i] == op.inputs[size_t(found)] && !(graph.type(op.inputs[i]) == type)) return -1;
  return found;
}

std::string Plan::str(const Graph& graph) const {
  const auto slot_name = [&](int s) { return slots[size_t(s)].name; };
  std::string out = "plan " + graph.name() + "\n";
  for (const bool is_once : {true, false}) {
    const Schedule& s = is_once ? once : run;
    if (is_once && s.phases.empty()) continue;
    out += std::string(is_once ? "once per set of weights" : "each call") + ": " +
           std::to_string(s.phases.size()) + " phases, " + std::to_string(s.barriers()) +
           " barriers (at least " + std::to_string(s.least_barriers) + ")" +
           (s.serial ? ", one task at a time" : "") + "\n";
    for (size_t p = 0; p < s.phases.size(); ++p) {
      for (int i : s.phases[p]) {
        const Task& t = tasks[size_t(i)];
        out += "  phase " + std::to_string(p) + ": ";
        out += t.kind == TaskKind::Pack ? "pack" : name(graph.op(t.op).kind);
        for (int r : t.reads) out += " " + slot_name(r);
        out += " ->";
        for (int w : t.writes) out += " " + slot_name(w);
        out += "\n";
      }
    }
  }
  for (const Slot& s : slots) {
    if (!s.used && s.tensor.valid() && s.place != Place::Input && s.place != Place::Output &&
        s.alias < 0)
      continue;
    out += s.tensor.valid() ? "  tensor " + s.name + " " + graph.type(s.tensor).str()
                            : "  workspace " + s.name + " " + std::to_string(s.bytes) + " bytes";
    out += " ";
    if (!s.layout.row_major()) out += s.layout.str() + " ";
    if (s.alias >= 0) {
      out += "is " + slot_name(s.alias) + "\n";
      continue;
    }
    switch (s.place) {
    case Place::Input: out += "input " + std::to_string(s.index); break;
    case Place::Output: out += "output " + std::to_string(s.index); break;
    case Place::Arena: out += "arena " + std::to_string(s.offset); break;
    case Place::Constant: out += "constant"; break;
    case Place::Kept: out += "kept " + std::to_string(s.offset); break;
    }
    out += "\n";
  }
  for (const Copy& c : copies) {
    out +=
        "  copy " + name_of(graph, c.from.index) + " -> output " + std::to_string(c.output) + "\n";
  }
  out += "  arena " + arena.summary() + ", " + std::to_string(in_place) + " in place\n";
  if (kept.bytes > 0) out += "  kept " + kept.summary() + "\n";
  return out;
}

}  // namespace tessera
