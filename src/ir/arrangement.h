// Chains of reshapes and transposes as one map: the elements of a tensor in another order, under
// another shape. Two chains that do the same are the same Arrangement, and a Arrangement has an
// inverse.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

class Arrangement {
 public:
  // Of a tensor as it is. Static shapes only.
  explicit Arrangement(const Shape& shape);

  // Followed by an operator: reshape, unsqueeze, squeeze or transpose. Nothing for all others, and
  // where extents of the two shapes have no common factors to be told by.
  std::optional<Arrangement> then(const Graph& graph, const Op& op) const;
  std::optional<Arrangement> then(const Arrangement& next) const;  // `next` takes what this gives
  Arrangement inverse() const;

  const Shape& source() const { return source_; }
  const Shape& shape() const { return shape_; }
  bool keeps_order() const { return factors_.size() <= 1; }  // a reshape, which costs nothing
  bool is_identity() const { return keeps_order() && source_ == shape_; }
  // The axis of the result that is axis `axis` of the source, all of it and nothing else.
  std::optional<size_t> axis_of(size_t axis) const;
  TensorId build(Graph& graph, TensorId x) const;
  std::string str() const;  // the same for the same map
  friend bool operator==(const Arrangement&, const Arrangement&) = default;

 private:
  struct Factor {
    int64_t stride = 1, extent = 1;  // of the source's elements in row-major order
    friend bool operator==(const Factor&, const Factor&) = default;
  };
  std::optional<Arrangement> reshaped(const Shape& to) const;
  std::optional<Arrangement> transposed(const std::vector<int>& perm) const;
  void merge();

  Shape source_, shape_;
  std::vector<Factor> factors_;  // outermost first; neighbours that are one are merged
};

}  // namespace tessera
