// Sums that feed a variance are taken of differences to a centre near the mean. E[x²] - E[x]² in
// one pass loses (mean/deviation)² units in the last place; of x - c it is as accurate as two
// passes.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "ir/graph.h"
#include "search/mugraph/plans.h"

namespace tessera::mugraph {

// What a shift of one loaded tensor does to the values of a hypergraph. Nothing here knows a
// variance, a norm or a covariance by name: a value does not change when x is replaced by x - c, or
// it changes by a multiple of c, and the normal form tells.
class Moments {
 public:
  Moments(const Hypergraph& values, const Region& region, const RegionForms& forms,
          const NormalForms& nf);

  // One centre: the mean of the first elements of `tensor` along `over`, kept with extent 1.
  struct Centre {
    TensorId tensor;        // of the program
    TensorId centre;        // the name by which the new region's view knows it
    std::vector<int> over;  // dimensions of the tensor
  };
  // The plan with shifted sums: new values beside the old ones, in a hypergraph of their own.
  struct Centred {
    Region region;
    Hypergraph values;
    std::unique_ptr<NormalForms> nf;
    Plan plan;  // tiles as they were: to be priced again
    std::vector<Centre> centres;
    int added = 0;  // operators of a kernel that the old plan does not have
  };
  // Nothing where in the plan no squares of sums are subtracted. Centres are named from tensor
  // `first` on.
  std::optional<Centred> centred(const Plan& plan, uint32_t first) const;

 private:
  // x - c with c constant along `over`; edges, ascending, that it saves from losing all digits, and
  // those that it makes more accurate.
  struct Shift {
    ValueId x;
    AxisMask over;
    std::vector<uint32_t> saves, helps;
  };
  class Algebra;
  class Writer;
  const Hypergraph& values_;
  const Region& region_;
  const RegionForms& forms_;
  const NormalForms& nf_;
  std::vector<Shift> shifts_;
};

// Appends the centre of x: the mean of its first elements (64, or as many as there are). If c is
// the mean of a fraction f of n elements, E[(x - c)²] is at most variance·(1 + 1/f) whatever they
// are, since the variance is at least f times the squared distance of that mean from the mean of
// all: at most n/64 times as many units in the last place are lost as in two passes.
TensorId add_centre(Graph& graph, TensorId x, const std::vector<int>& over);

}  // namespace tessera::mugraph
