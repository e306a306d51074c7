// Boxes of an output: parts on which a program's index maps are affine and its sums run over the
// same terms, so that a few elements tell about all of them (PET §5.1–5.2).
//
// Theorem 1 of the paper (m+1 elements of a box of m axes) holds for one index map per program.
// Sums of several need more: x[3v] + x[v+1] and x[2v] + x[2v+1] agree at v = 0 and 1, not at 2.
// What holds: give the inputs elements x[u] = z^u with an indeterminate z for each axis of each
// input; then an element of a box is a sum of terms c·λ^v with one λ per distinct slope of an index
// map, so a difference of two programs that is zero at as many consecutive places along each axis
// as both have distinct slopes there (a grid) is zero everywhere (Vandermonde).
#pragma once
#include <set>
#include <utility>
#include <vector>

#include "search/mutate/cone.h"

namespace tessera::mutants {

// Places start, start + step, …: `count` of them.
struct Piece {
  int64_t start = 0, step = 1, count = 1;
  int64_t at(int64_t i) const { return start + i * step; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// How the position in each axis of each input moves by one step of a piece: (input · kMaxRank +
// axis, elements), ascending, zeros left out.
using Slope = std::vector<std::pair<int, int64_t>>;
using Slopes = std::set<Slope>;

// A partition of an axis. The boxes of a tensor are the products of its axes' pieces; `slopes` of a
// piece are those of every box over it.
struct AxisPieces {
  int64_t extent = 1;
  std::vector<Piece> pieces;
  std::vector<Slopes> slopes;
};
using Boxes = std::vector<AxisPieces>;  // by axis

// The boxes of every output, by propagation of pieces from the inputs through each operator;
// nothing where there are more than `most` pieces along an axis, or slopes.
std::optional<std::vector<Boxes>> output_boxes(const Graph& graph, size_t most = 512);

// Where two programs agree.
struct Agreement {
  struct Output {
    std::vector<std::vector<Piece>> axes;
    std::vector<bool> equal;  // by box, row-major over the pieces of the axes
  };
  std::vector<Output> outputs;
  int64_t boxes = 0, points = 0;  // tested
  double share = 0;               // of the elements of all outputs
  bool whole() const;
};
// Tests every pair of overlapping boxes at the grid of points above; nothing where there would be
// too many. The programs have the same inputs and outputs.
std::optional<Agreement> agreement(const Graph& original, const Graph& mutant, uint64_t seed,
                                   int64_t most_points = 20'000);

}  // namespace tessera::mutants
