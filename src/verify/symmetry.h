// Axes along which programs do the same at every position: rows of a matmul, batches, the tiles of
// a kernel's grid. Restricting such an axis to a few tiles gives a smaller program that computes
// the corresponding elements, and every element left out is the same function of other input
// elements.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "eval/ndarray.h"
#include "ir/graph.h"

namespace tessera {

// Axes of the tensors and grids of some programs that must be restricted together, since elements
// at equal positions meet. Positions come in `tiles` groups of equal size; permuting the groups
// permutes what the programs compute and changes nothing else. The positions inside of a group can
// form a class in turn.
struct AxisClass {
  int64_t tiles = 1;
  int64_t most_axes = 1;  // of one tensor: elements at up to so many different tiles depend on each
                          // other, so this many tiles show everything
};

// Which of a class's tiles are kept, ascending.
using KeptTiles = std::vector<std::vector<int64_t>>;

std::vector<int64_t> numbers_of(const KeptTiles& kept);

// By axis of an input or output: nothing, or its positions that are kept.
using KeptPositions = std::vector<std::optional<std::vector<int64_t>>>;

// By axis: nothing, or for every position that of the restricted tensor whose tile is repeated
// there.
using Repeats = std::vector<std::optional<std::vector<int64_t>>>;

// Axes that are folded (summed over, contracted, looped over by accumulators): kept whole, or
// restricted like others. The latter gives smaller instances of the same programs, not some of
// their elements.
enum class Folds { Whole, Restricted };

class Symmetry {
 public:
  // Kernel graphs with static shapes, all with the same inputs and outputs.
  explicit Symmetry(std::vector<const Graph*> programs, Folds folds = Folds::Whole);

  // Only those that can be restricted: of more than one tile.
  const std::vector<AxisClass>& classes() const { return classes_; }

  // Of each class as few tiles as bring the cost (work and input elements of the most expensive
  // program) below `budget`, chosen at random but with the first and the last; never fewer than
  // `least` and AxisClass::most_axes. Nothing when all tiles are kept.
  std::optional<KeptTiles> choose(double budget, int64_t least, Rng rng) const;

  // So many tiles of each class, the first ones; nothing if the numbers do not fit.
  std::optional<KeptTiles> first(const std::vector<int64_t>& numbers) const;

  // Program `index` on the kept tiles only; nothing if its types could not be inferred again.
  std::optional<Graph> restrict(size_t index, const KeptTiles& kept) const;
  // The same of both of two programs.
  std::optional<std::pair<Graph, Graph>> restrict_both(const KeptTiles& kept) const;
  // Whether so many tiles of each class show everything.
  bool are_enough(const std::vector<int64_t>& numbers) const;
  std::vector<KeptPositions> input_positions(const KeptTiles& kept) const;
  std::vector<KeptPositions> output_positions(const KeptTiles& kept) const;

  // A whole program whose inputs repeat the tiles of restricted inputs computes the tiles of the
  // restricted outputs in the same places: each tile is kept in its own place, others get any one.
  struct Spread {
    std::vector<Repeats> inputs, outputs;
  };
  Spread spread(const KeptTiles& kept, Rng rng) const;

 private:
  class Builder;
  // The axes of a graph's tensors, and its bodies'.
  struct Scope {
    const Graph* graph = nullptr;
    std::vector<int> first;        // by tensor: node of its axis 0
    std::vector<int> grid, loops;  // block graphs: nodes of grid dimensions and loops
    std::vector<Scope> inner;      // by BodyId
  };
  int64_t kept_extent(int node, int64_t extent, const KeptTiles& kept) const;
  std::vector<int64_t> positions(int node, int64_t extent, const KeptTiles& to,
                                 const KeptTiles* kept) const;
  void count_axes(const Scope& scope, const std::vector<int>& class_of);
  Repeats repeats_of(TensorId t, const KeptTiles& kept, const KeptTiles& to) const;
  KeptPositions positions_of(const Scope& scope, TensorId t, const KeptTiles& kept) const;

  std::vector<Scope> scopes_;
  std::vector<std::vector<int>> levels_;  // by level and node: index into classes_, or -1
  std::vector<AxisClass> classes_;
};

// The elements of an array at some positions of its axes.
NDArray select(const NDArray& array, const KeptPositions& positions);

// What an evaluation costs: multiply-adds, and making the inputs.
double evaluation_cost(const Graph& g);

}  // namespace tessera
