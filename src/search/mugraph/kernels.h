// Kernels: the ways to compute some values of the hypergraph in one kernel from loaded ones, by
// best-first branch and bound with an additive lower bound; tiles are chosen when one completes.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/analytical.h"
#include "search/mugraph/saturate.h"

namespace tessera::mugraph {

enum class KernelPhase : uint8_t { Invariant, Loop, Post };

struct Kernel {
  std::vector<ValueId> outputs;  // ascending
  std::vector<ValueId> loads;    // ascending; views and values other kernels store
  std::vector<uint32_t> edges;   // ascending rank of the result
  int loop = -1;                 // axis, or none
  int64_t loop_parts = 1;        // iterations
  struct GridDim {
    int axis;
    int64_t parts;
  };
  std::vector<GridDim> grid;  // at most three, by extent; empty: one block
  double seconds = 0;
  double bound = 0;        // lower bound before tiles were chosen
  double block_bytes = 0;  // estimate of what a block keeps, larger phase
  int operators = 0;       // iterators, operators, accumulators and savers
};

struct KernelOptions {
  int variants = 4;               // kept per set of loads
  int max_cuts = 3;               // loads of values that another kernel must store
  int64_t max_expansions = 6000;  // per call
  int max_graphs = 96;            // completed kernels per call
  std::optional<int> max_operators;
  bool bound_rule = true, dominance_rule = true, memory_rule = true;
};

// What a search counted, merged in a fixed order so that it does not depend on threads.
struct KernelCounters {
  int64_t expanded = 0, graphs = 0, tilings = 0;
  std::map<std::string, int64_t> pruned;
  void add(const KernelCounters& other);
};

class KernelSearch {
 public:
  KernelSearch(const Hypergraph& graph, const RegionForms& forms, std::vector<int64_t> extents,
               const Machine& machine, KernelOptions options, double resident_bytes);

  // Kernels that compute `outputs` with the given loop axis (-1: none), cheapest first, at most
  // `variants` per set of loads; nothing whose bound exceeds `limit` seconds.
  std::vector<Kernel> enumerate(const std::vector<ValueId>& outputs, int loop, double limit,
                                bool cuts, KernelCounters& counters) const;
  // Chooses the tiles of a kernel and its cost with a share of the block's memory; false where none
  // fits.
  bool price(Kernel& kernel, KernelCounters& counters, double share = 1) const {
    return choose_tiles(kernel, counters, share);
  }
  // Axes a loop can run over when computing `outputs`.
  std::vector<int> loop_axes(const std::vector<ValueId>& outputs) const;
  // Phases of the kernel's loads and results, by value.
  std::map<ValueId, KernelPhase> phases(const Kernel& kernel) const;
  // A lower bound on the seconds that any kernels need to store these values.
  double remaining(const std::vector<ValueId>& pending) const;
  const Machine& machine() const { return machine_; }

 private:
  struct State;
  bool choose_tiles(Kernel& kernel, KernelCounters& counters, double share = 1) const;
  struct Shape;
  Shape shape_of(const Kernel& kernel) const;
  double evaluate(Kernel& kernel, const Shape& shape, std::vector<int64_t>& tile) const;
  double edge_seconds(const Edge& e, const std::vector<int64_t>& tile) const;
  double bytes(ValueId v) const {
    return graph_.values[v].volume * size_in_bytes(graph_.values[v].dtype);
  }

  const Hypergraph& graph_;
  const RegionForms& forms_;
  std::vector<int64_t> extents_;
  const Machine& machine_;
  KernelOptions options_;
  double resident_;
  std::vector<double> load_, store_;  // seconds of traffic, by value
  std::vector<double> edge_work_;     // seconds of compute at full size on one core, by edge
  std::vector<double> work_;          // least compute of the last operation, by value
  std::vector<double> depth_work_;    // least compute of any chain of operations to the value
  std::vector<std::vector<ValueId>> needs_;  // views that every derivation of the value loads
  std::vector<double> remote_;  // least seconds another kernel needs to store it, by value
};

}  // namespace tessera::mugraph
