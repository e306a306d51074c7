// What parts of programs cost on this machine: measured where they have been, modelled elsewhere.
// Measurements are kept in the cache, per processor and number of threads.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/analytical.h"
#include "driver/session.h"

namespace tessera {

// As a cost model: the sum over operators. What depends on weights alone costs nothing (it is
// computed once), nor does what the back end computes together with the convolution before it.
class KernelCosts : public CostModel {
 public:
  explicit KernelCosts(Session& session) : s_(session), model_(session.target) {}
  Cost cost(const Graph& graph) const override;
  // Seconds by operator.
  std::vector<double> by_operator(const Graph& graph) const;
  // Seconds to copy a tensor in another order.
  double copy_seconds(const Type& type) const;
  // Times programs in turns (the least of several runs) as they would be among others, for up to
  // `seconds`; nothing for what does not compile, or for all where this machine does not run them.
  // What was timed before is not timed again.
  std::vector<std::optional<double>> measured(const std::vector<Graph>& programs, double seconds);

 private:
  Session& s_;
  AnalyticalModel model_;
  mutable std::map<std::string, std::optional<double>> convolutions_;  // known ones, by signature
};

}  // namespace tessera
