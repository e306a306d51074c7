// The analytical model: seconds of a kernel from its arithmetic, its traffic per memory level, its
// iterations, blocks and launches. Search builds the same KernelWork without building a graph.
//
// A kernel costs launch + max(C, M) + 0.15·min(C, M): C is compute on the busiest core, M the
// traffic; the small term keeps hidden work from looking free, so bounds stay additive.
#pragma once
#include "cost/cost_model.h"
#include "cost/target.h"

namespace tessera {

// One kernel. Compute is that of one block over all its iterations; traffic is that of all blocks.
struct KernelWork {
  double blocks = 1, iterations = 1;
  double block_compute = 0;   // seconds on one core
  double core_traffic = 0;    // seconds on one core to move one block's tiles to and from it
  double shared_traffic = 0;  // seconds on the shared levels, all blocks together
};

class Machine {
 public:
  explicit Machine(Target target);
  const Target& target() const { return target_; }

  // Seconds on one core, operands in its private memory.
  double matmul(DType, double batch, double m, double n, double k) const;
  double pointwise(OpKind, DType, double elements) const;
  double reduce(DType, double elements) const;
  double move(DType, double elements) const;

  // Traffic of one tensor of `tensor_bytes`, of which blocks together read or write `moved` bytes
  // (at least the tensor once). `resident`: bytes that compete with it for the caches.
  void add_traffic(KernelWork&, double tensor_bytes, double moved, double resident) const;
  // Traffic of `moved` bytes that blocks read once more in a later pass, after each has read
  // `block_bytes`: from where those of all cores fit.
  void add_reread(KernelWork&, double moved, double block_bytes) const;
  // Bytes moved per byte used when rows of `tile` of `extent` elements are read: whole lines move,
  // and short pieces of what streams from memory take longer.
  double line_waste(double tile, double extent, double element_bytes, double tensor_bytes) const;
  // Seconds to read or write a tensor once.
  double first_pass(double tensor_bytes, double resident) const;
  double seconds(const KernelWork&) const;
  // A lower bound on `seconds` from compute of the whole kernel (all cores busy) and traffic.
  double bound(double compute, double shared_traffic) const;

 private:
  // Of the smallest shared level that holds so many bytes.
  double shared_bandwidth(double bytes) const;

  Target target_;
  std::vector<double> weight_;                       // by operator
  std::array<double, kNumDTypes> simple_{}, fma_{};  // rates by element type
  double core_bandwidth_ = 0;
  int64_t core_capacity_ = 0;
};

class AnalyticalModel : public CostModel {
 public:
  explicit AnalyticalModel(Target target) : machine_(std::move(target)) {}
  std::string name() const override { return "analytical:" + machine_.target().name; }
  Cost cost(const Graph& graph,
            double limit = std::numeric_limits<double>::infinity()) const override;
  const Machine& machine() const { return machine_; }

 private:
  double kernel_seconds(const Graph& graph, const Op& op, double resident) const;
  double block_op(const Graph& block, const Op& op) const;
  Machine machine_;
};

}  // namespace tessera
