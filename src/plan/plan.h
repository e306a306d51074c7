// The plan of a kernel graph: in which order its operators run, which of them need no code, and
// where intermediate tensors lie in the arena. A value that prints as text.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/layout.h"
#include "plan/memory.h"

namespace tessera {

enum class Place {
  Input,     // the caller's array
  Output,    // the caller's result array
  Arena,     // an intermediate, at an offset
  Constant,  // filled once when the module is loaded
};

struct TensorPlan {
  Place place = Place::Arena;
  int index = -1;      // of the input or output
  int64_t offset = 0;  // in the arena
  int alias = -1;      // tensor whose memory this one shares (reshape and the like), or -1
  Layout layout;
};

struct Plan {
  std::vector<OpId> order;          // operators that need code, in order of execution
  std::vector<TensorPlan> tensors;  // one per tensor of the graph
  int64_t arena_bytes = 0;
  int64_t arena_lower_bound = 0;
  int64_t peak_live_bytes = 0;  // of intermediates, in this order
  // Two outputs of the graph are one tensor, or an output is an input: copied at the end.
  struct Copy {
    TensorId from;
    int output;
  };
  std::vector<Copy> copies;

  std::string str(const Graph& graph) const;
};

// Plans a kernel graph with static shapes.
Plan plan_kernel_graph(const Graph& graph);

// An order of the operators (dead ones left out) that keeps few bytes alive: exact for small
// graphs, otherwise the better of the given order and a greedy one.
std::vector<OpId> schedule(const Graph& graph);

// Most bytes of intermediates alive at once in `order`.
int64_t peak_live_bytes(const Graph& graph, const std::vector<OpId>& order);

}  // namespace tessera
