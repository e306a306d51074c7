// The plan of a kernel graph: which memory there is, which tasks read and write it, which tasks may
// run side by side, and what is done once for all calls. A value that prints as text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/window.h"
#include "plan/layout.h"
#include "plan/memory.h"
#include "plan/schedule.h"

namespace tessera {

// Each decision can be switched off, to see what it is worth.
struct PlanOptions {
  bool layout = true;     // off: every array row-major
  bool schedule = true;   // off: one task at a time, as the program lists them
  bool memory = true;     // off: no two buffers share memory
  bool weights = true;    // off: weights are treated like any other input
  bool compared = false;  // what is kept of weights is compared with them in every call
  bool images = true;     // off: images lie as the program says, and convolutions are direct
  bool fuse = true;       // off: one kernel for each operator (plan/fuse.h)
  // Of transforms, errors are relative to the largest result of an image, not to each.
  Transforms transforms = Transforms::All;
  bool libraries = true;  // off: no library computes a convolution, however fast it was measured
  // By signature of a convolution (backend/cpu/conv_costs.h): the algorithm that is fastest here;
  // "" for those that are not listed. Empty: as the generator estimates.
  std::map<std::string, std::string> algorithms;
  // Live bytes beyond which side by side is not worth it: what the caches hold.
  int64_t most_live_bytes = int64_t{16} << 20;
};

// Switches off "plan:layout", "plan:schedule", "plan:memory", "plan:weights", "plan:images",
// "plan:transforms", "plan:large-transforms" (keeps Transforms::Small), "plan:rare-transforms"
// (keeps Transforms::Common) or "plan:fuse"; throws Error(Usage) at any other name.
void disable_plan(PlanOptions& options, const std::string& name);

enum class Place {
  Input,     // the caller's array
  Output,    // the caller's result array
  Arena,     // an intermediate, at an offset
  Constant,  // filled once when the module is loaded
  Kept,      // made once per set of weights, at an offset
};

// Memory that tasks read and write. The first slots are the graph's tensors, one each; then come
// copies of tensors in another layout, and workspaces.
struct Slot {
  std::string name;
  TensorId tensor;  // invalid for a workspace
  Place place = Place::Arena;
  int index = -1;      // of the input or output
  int64_t offset = 0;  // in the arena or the kept memory
  int alias = -1;      // slot whose memory this one shares (reshape and the like), or -1
  int64_t bytes = 0;
  Layout layout;
  bool used = false;
};

enum class TaskKind {
  Code,   // generated code of an operator
  Stage,  // a part of that, which reads what it needs of the operator's operands
  Pack,   // a copy into another layout
};

struct Task {
  TaskKind kind = TaskKind::Code;
  OpId op;                      // of Code and Stage
  int code = -1;                // of both: the generator's own number for the function
  std::vector<int> reads;       // slots, one per operand
  std::vector<Layout> layouts;  // in which they are read; missing ones are row-major
  std::vector<int> writes;      // slots
  // Operand whose memory the only result may take over: element by element, the same type. -1: none
  int in_place = -1;
  bool once = false;  // depends on weights and constants alone
};

struct Plan {
  std::vector<Slot> slots;
  std::vector<Task> tasks;
  // Tasks by phase; those of one phase may run side by side, phases are divided by barriers.
  Schedule once, run;
  MemoryPlan arena, kept;
  int in_place = 0;  // results that took over an operand's memory
  // Two outputs of the graph are one tensor, or an output is an input: copied at the end.
  struct Copy {
    TensorId from;
    int output;
  };
  std::vector<Copy> copies;

  // The slot whose memory slot `s` lives in.
  int root(int s) const;
  // The inputs that tasks read which run once per set of weights, by number.
  std::vector<size_t> weights(const Graph& graph) const;
  std::string str(const Graph& graph) const;
};

// Builds a plan in the order in which code generation learns things: first what needs code, then
// which layouts and workspaces it takes, then the tasks.
class PlanBuilder {
 public:
  // A kernel graph with static shapes.
  PlanBuilder(const Graph& graph, const PlanOptions& options);

  // Operators that need code, operands before users.
  const std::vector<OpId>& ops() const { return ops_; }
  // Whether the operator (or the tensor's producer) runs once per set of weights.
  bool once(OpId op) const { return once_[op.index]; }
  bool constant(TensorId t) const;
  const PlanOptions& options() const { return options_; }

  // The tensor whose memory `t` shares: itself, unless it is a renaming.
  TensorId holder(TensorId t) const;
  int slot(TensorId t) const { return int(t.index); }
  // The slot of `t` in `layout`: a copy, made by a task of its own, unless it is row-major or a
  // view (slice_view), which is the memory of the whole.
  int slot(TensorId t, const Layout& layout);
  int workspace(const std::string& name, int64_t bytes);
  // `t` is what code sees when it looks at `memory` in another order: nobody makes it.
  void look(TensorId t, TensorId memory);
  void add(Task task);

  // Schedules, places and checks everything.
  Plan finish();

 private:
  void take_over(const std::vector<int>& phase_of);
  MemoryPlan place(Place place, bool once, const Schedule& schedule);

  const Graph& graph_;
  PlanOptions options_;
  Plan plan_;
  std::vector<OpId> ops_;
  std::vector<bool> once_;  // by operator
};

// Operand of an element-by-element operator whose memory the result may take over, or -1.
int in_place_operand(const Graph& graph, const Op& op);

// The same of a kernel of element-by-element operators alone, each of whose blocks reads of the
// operand what it writes, an element for the last time before that is written.
int in_place_kernel(const Graph& graph, const Op& op);

// Replays the plan on pretended memory, knowing nothing of how it was made: every task must find
// what it reads complete, in its layout and untouched, and no two tasks of a phase may meet. Empty
// if all is well, else the first fault.
std::string plan_fault(const Graph& graph, const Plan& plan);

// Whether a caller may hand over the memory of an input for an output: the replay finds nothing
// wrong although both are one. The two begin at the same address and have as many bytes.
bool may_overwrite(const Graph& graph, const Plan& plan, size_t input, size_t output);

}  // namespace tessera
