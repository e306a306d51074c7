// Single elements of tensors in a prime field, found lazily: only what an element depends on (its
// cone) is evaluated. Inputs are random, the same for all programs with the same inputs (PET §5.1,
// Theorem 2: two different multi-linear programs agree with probability at most inputs / p).
#pragma once
#include <unordered_map>

#include "eval/field.h"
#include "ir/window.h"
#include "search/mutate/linear.h"

namespace tessera::mutants {

// Inputs that are zero but at a few places of one axis, by input; −1: dense. Sums over that axis
// are short then, and a difference is still a difference.
using ThinAxes = std::vector<int>;
// The axes of convolutions' weights and of matrices that are summed over.
ThinAxes thin_axes(const Graph& graph);

class Cone {
 public:
  // Of a graph whose operators have forms; it may grow and be rolled back, see forget(). The prime
  // is that of FieldModel(FieldSize::Bits61, seed).
  Cone(const Graph& graph, uint64_t seed, ThinAxes thin = {});

  uint64_t at(TensorId t, const Index& index);
  // Tensors from number `tensors` on are gone, or others now.
  void forget(size_t tensors);

 private:
  struct Node {
    Form form = Form::Input;
    std::vector<int64_t> shape;
    std::vector<WindowAxis> axes;
    uint64_t number = 0;  // of an input: its hash key; of a constant, mean: its value
    int thin = -1;        // of an input: the axis along which only `places` are not zero
    std::vector<int64_t> places;
    std::unordered_map<int64_t, uint64_t> memo;
  };
  void extend(size_t tensors);
  uint64_t compute(TensorId t, const Index& index);
  uint64_t reduction(const Op& op, const Index& index);
  uint64_t product(const Node& n, const Op& op, const Index& index);
  uint64_t convolution(const Node& n, const Op& op, const Index& index);
  uint64_t pooling(const Node& n, const Op& op, const Index& index);
  // Places of an axis of n elements where a tensor may be other than zero.
  std::vector<int64_t> support(TensorId t, size_t axis, int64_t n) const;
  // An element of a broadcast operand, for a place in a tensor of rank `rank`.
  uint64_t operand(TensorId t, size_t rank, const Index& index);

  const Graph& graph_;
  const uint64_t seed_;
  const ThinAxes thin_;
  const FieldModel model_;
  const ChainTables<uint64_t>& chain_;
  const Modulus<uint64_t>& field_;
  std::vector<Node> nodes_;
};

}  // namespace tessera::mutants
