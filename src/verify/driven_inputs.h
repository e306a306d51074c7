// Inputs at which values are what chance hardly ever makes them, found by moving along lines.
#pragma once
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "eval/ndarray.h"
#include "ir/graph.h"

namespace tessera {

// Reached at inputs at which an element of the value is below the number, or only if it is equal.
struct Threshold {
  TensorId value;
  double least = 0;
  bool only_least = false;
};

class Thresholds {
 public:
  // `pool` may be null. Programs without operators for the values are cut off.
  Thresholds(Graph graph, std::vector<Threshold> targets, const std::vector<TensorId>& others,
             ThreadPool* pool);

  size_t count() const { return targets_.size(); }
  const Threshold& operator[](size_t k) const { return targets_[k]; }
  bool reached(size_t k) const { return met_[k] > 0; }
  size_t least_reached() const;
  // In f64; the k-th of targets and others, none where an index is out of range.
  std::vector<double> values(size_t k, const std::vector<NDArray>& inputs) const;
  // Whether the k-th target is reached at these inputs, which counts.
  bool look(size_t k, const std::vector<NDArray>& inputs);
  // Moves the inputs until an element of the k-th target reaches it, within `work` multiply-adds.
  bool reach(size_t k, std::vector<NDArray>& inputs, Rng rng, double& work);

 private:
  std::vector<Graph> values_;  // of targets and others, each alone
  std::vector<double> costs_;  // of an evaluation of these
  std::vector<Threshold> targets_;
  std::vector<int> met_;
  ThreadPool* pool_;
};

// Inputs at which a decision about floats of either program falls as it does at none of its
// ordinary inputs: `where(x * y + z > 1000, …)`; and whole numbers at which what it compares is
// equal. Decisions inside kernels are not looked at.
std::vector<std::vector<NDArray>> rare_sides(const Graph& spec, const Graph& candidate,
                                             uint64_t seed, double work, ThreadPool* pool);

}  // namespace tessera
