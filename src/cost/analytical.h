// The analytical model: seconds of a kernel graph from its arithmetic, its traffic per memory
// level, its iterations, blocks and launches, by the model of the target's machine.
#pragma once
#include <functional>

#include "cost/cost_model.h"
#include "cost/machine.h"

namespace tessera {

class AnalyticalModel : public CostModel {
 public:
  explicit AnalyticalModel(Target target) : machine_(Machine::of(std::move(target))) {}
  Cost cost(const Graph& graph) const override;
  // What each kernel of the graph costs and does, in order; views cost nothing and are left out.
  struct KernelCost {
    OpId op;
    double seconds = 0;
    std::optional<LibraryCall> call;  // a library's, where that is cheaper
    KernelWork work;                  // of a kernel of one's own
    // In one launch with an earlier kernel, which is then left out.
    std::optional<KernelJoin> join;
    KernelWork first_work;  // of that
  };
  // A call stands where the last of its operators stood, for all of them. `accepts`: whether a call
  // can be had.
  using Accepts = std::function<bool(const LibraryCall&)>;
  std::vector<KernelCost> kernels(const Graph& graph, const Accepts& accepts = {}) const;
  const Machine& machine() const { return *machine_; }

 private:
  // Of an operator: by a kernel of one's own, and as `call` has it where that is cheaper.
  KernelCost own_cost(const Graph& graph, OpId id, double resident) const;
  KernelCost kernel_cost(const Graph& graph, OpId id, double resident,
                         const Accepts& accepts) const;
  // Finds, among kernels that are not calls, those that are better in one launch.
  void join_kernels(const Graph& graph, std::vector<KernelCost>& costs) const;
  // Slices that all who use them read in place cost nothing.
  void read_in_place(const Graph& graph, std::vector<KernelCost>& costs) const;
  KernelWork block_work(const Graph& graph, const Op& kernel, double resident) const;
  double block_op(const Graph& block, const Op& op) const;
  std::unique_ptr<const Machine> machine_;
};

}  // namespace tessera
