// Kernels: the ways to compute some values of the hypergraph in one kernel from loaded ones, by
// best-first branch and bound with an additive lower bound; tiles are chosen when one completes.
#pragma once
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/analytical.h"
#include "search/mugraph/saturate.h"

namespace tessera::mugraph {

enum class KernelPhase : uint8_t { Invariant, Loop, Post };

// A kernel may pass over its loop axis several times, one loop after another: what a pass has
// reduced is there for the next.
inline constexpr int kMaxPasses = 3;

// When a kernel computes a value: the passes in which it does, one bit each (values inside the loop
// may be wanted in several; reductions over it end in one), none outside the loop.
struct Placed {
  KernelPhase phase = KernelPhase::Invariant;
  uint8_t passes = 0;
};

struct Kernel {
  std::vector<ValueId> outputs;  // ascending
  std::vector<ValueId> loads;    // ascending; views and values other kernels store
  std::vector<uint32_t> edges;   // ascending rank of the result
  int loop = -1;                 // axis, or none
  int64_t loop_parts = 1;        // iterations of each pass
  int passes = 1;
  // Values with an axis of `varies` change with the loop; reductions over `folds` accumulate.
  AxisMask varies = 0, folds = 0;
  // A second loop inside the first, over the axis `nested` (0: none): values that have it change
  // with that loop, and reductions over it accumulate there.
  AxisMask nested = 0;
  int64_t nested_parts = 1;
  // Axes of parts over which the grid runs, one block or row of blocks per part: the kernel stores
  // partial results.
  AxisMask parts = 0;
  struct GridDim {
    AxisMask
        axes;  // each tensor has at most one of them; outputs of one kernel may differ in which
    int64_t parts;
  };
  std::vector<GridDim> grid;  // at most three, by extent; empty: one block
  double seconds = 0;
  double bound = 0;        // lower bound before tiles were chosen
  double block_bytes = 0;  // estimate of what a block keeps, larger phase
  int operators = 0;       // iterators, operators, accumulators and savers
};

struct KernelOptions {
  int max_cuts = 3;               // loads of values that another kernel must store
  int64_t max_expansions = 6000;  // per call
  int max_graphs = 96;            // completed kernels per call
  double memory_share = 1;        // of a block's memory that tiles may use
  int max_passes = kMaxPasses;    // over a loop axis
  bool nests = true;              // a second loop where tiles of one do not fit
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
  // `parts`: how many parts a split axis has, by the axis of its parts.
  KernelSearch(const Hypergraph& graph, const Region& region, const RegionForms& forms,
               const std::map<int, int64_t>& parts, const Machine& machine, KernelOptions options,
               double resident_bytes);

  enum class Cuts : uint8_t { None, Any, Given };
  struct Request {
    std::vector<ValueId> outputs;  // ascending
    int loop = -1;                 // axis, or none
    int passes = 1;                // more than one: only kernels that take more than one
    double limit = 0;              // seconds; nothing whose bound exceeds it
    Cuts cuts = Cuts::None;        // whether values that other kernels store may be loaded
    std::vector<ValueId> loads;    // Given: these and no others
    int variants = 1;              // at most so many per set of loads
  };
  // Kernels that compute the outputs, cheapest first.
  std::vector<Kernel> enumerate(const Request& request, KernelCounters& counters) const;
  // Chooses the tiles of a kernel and its cost with a share of the block's memory; false where none
  // fits. With `like`, a kernel that differs only inside, whose tiles are tried first: nothing more
  // happens where they cost more than `limit` seconds.
  bool choose_tiles(Kernel& kernel, KernelCounters& counters, double share = 1,
                    const Kernel* like = nullptr, double limit = 0) const;
  // The kernel with a second loop inside its own, over the axis for which that is cheapest; nothing
  // where tiles do not fit even so, or no axis can be looped over there.
  std::optional<Kernel> nest(const Kernel& kernel, KernelCounters& counters) const;
  // Cuts `second`, the next kernel after `first`, so that it can be done in one launch with that:
  // its seconds are then those that it adds. False where that is not faster.
  bool join(Kernel& second, const Kernel& first, KernelCounters& counters) const;
  // Whether a second loop might help: tiles take much of a block's memory.
  bool is_tight(const Kernel& kernel) const;
  // Elements along an axis, or inside one part of it where it is split.
  int64_t extent(int axis) const { return extents_[size_t(axis)]; }
  // Axes a loop can run over when computing `outputs`.
  std::vector<int> loop_axes(const std::vector<ValueId>& outputs) const;
  // Passes over a loop axis from which computing `outputs` may gain, at least 1.
  int passes(const std::vector<ValueId>& outputs, int loop) const;
  // Phases of the kernel's loads and results, by value: everything as early as possible.
  std::map<ValueId, Placed> phases(const Kernel& kernel) const;
  static int passes_of(const std::map<ValueId, Placed>& placed);
  // A lower bound on the seconds that any kernels need to store these values.
  double remaining(const std::vector<ValueId>& pending) const;
  const Machine& machine() const { return machine_; }

 private:
  struct State;
  class Enumeration;
  class Tiling;
  // What `evaluate` needs of a kernel, apart from tile sizes.
  struct Shape {
    struct Moved {
      AxisMask axes;
      double element, bytes, resident;
      Placed at;
      bool load, view;
      AxisMask inner;  // of the innermost dimension, where it is known
      bool nested;
    };
    struct Step {
      const Edge* edge;
      AxisMask out;
      DType dtype;
      bool in_loop = false, over_loop = false, post = false, in_place = false;
      double runs = 1;  // passes in which it is computed
      bool nested = false, over_nested = false;
    };
    std::vector<Moved> moved;
    std::vector<Step> steps;
    double library = INFINITY;  // seconds of the call that does the same, if there is one
  };
  bool choose_tiles(Kernel& kernel, const Shape& shape, KernelCounters& counters, double share,
                    const Kernel* like, double limit) const;
  Shape shape_of(const Kernel& kernel) const;
  bool can_nest(const Kernel& kernel, int axis) const;
  // Sets what the loop means for a kernel with its outputs; false where they do not go together.
  bool set_loop(Kernel& kernel, int loop) const;
  double edge_floor(uint32_t edge) const;
  KernelWork work_of(Kernel& kernel, const Shape& shape, std::vector<int64_t>& tile) const;
  double edge_seconds(const Edge& e, const std::vector<int64_t>& tile) const;
  // Of a product's rows and columns, one axis each form the matrix, the last; others are batches.
  std::pair<AxisMask, AxisMask> matrix_axes(const Edge& e) const;
  double library_seconds(const Kernel& kernel) const;
  double bytes(ValueId v) const { return bytes_[v]; }
  // Axes of parts that the value has without the axes themselves.
  AxisMask partial_axes(ValueId v) const {
    AxisMask m = 0;
    for (const Split& s : splits_) {
      const AxisMask a = graph_.values[v].axes;
      if ((a & s.parts) && !(a & s.inside)) m |= s.parts;
    }
    return m;
  }
  // By value: whether the outputs can be computed from it, or it is one of them.
  std::vector<char> derive(const std::vector<ValueId>& outputs) const;
  std::vector<AxisMask> grid_axes(const Kernel& kernel) const;
  int64_t length(AxisMask axes) const;

  struct Split {
    AxisMask inside, parts;
    int64_t extent;  // of the whole axis
  };
  const Hypergraph& graph_;
  const Region& region_;
  const RegionForms& forms_;
  std::vector<int64_t> extents_;  // by axis; of one part where the axis is split
  std::vector<Split> splits_;
  std::vector<char> only_sums_;  // by value: partial results that only reductions compute
  std::vector<double> bytes_;    // of the whole tensor, by value
  const Machine& machine_;
  KernelOptions options_;
  double resident_;
  std::vector<double> load_, store_;  // seconds of traffic, by value
  std::vector<double> edge_work_;     // seconds of compute at full size on one core, by edge
  std::vector<double> work_;          // least compute of the last operation, by value
  std::vector<double> depth_work_;    // least compute of any chain of operations to the value
  std::vector<std::vector<ValueId>> needs_;  // views that every derivation of the value loads
  // Least seconds of any kernel that contains the operation, its best tiles included; and of any
  // kernels that compute the value.
  std::vector<double> edge_floor_, floor_;
  std::vector<double> remote_;  // least seconds another kernel needs to store it, by value
};

}  // namespace tessera::mugraph
