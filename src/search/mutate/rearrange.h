// Reshapes and transposes as one operator (PET §4.2: "reshape & transpose"): zeros added, factors
// of axes moved to other axes, the rest cut off.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/mutate/linear.h"

namespace tessera::mutants {

// Axis `from` is split into factor × rest (or rest × factor, when `inner_from`); the factor becomes
// the outer (or inner) part of axis `to`.
struct Move {
  int from = 0;
  bool inner_from = false;
  int64_t factor = 2;
  int to = 0;
  bool inner_to = false;
  friend bool operator==(const Move&, const Move&) = default;
};

// Axis `from` is cut into `count` tiles of `length` elements, `step` apart, so that they may
// overlap; they become the outer part of axis `to`.
struct Tiles {
  int from = 0, to = 0;
  int64_t count = 2, length = 1, step = 1;
  friend bool operator==(const Tiles&, const Tiles&) = default;
};

struct Rearrangement {
  std::vector<int64_t> low, high;  // zeros added, by axis; empty: none
  std::vector<Tiles> tiles;        // then cut, one after another
  std::vector<Move> moves;         // then moved, one after another
  std::vector<int> perm;           // then transposed; empty: not
  std::vector<int64_t> keep;       // then cut to so many first elements by axis; empty: not
  int insert = -1;                 // an axis of one element that comes in before all else; -1: none
  int drop = -1;                   // an axis of one element that is left out in the end; -1: none
  friend bool operator==(const Rearrangement&, const Rearrangement&) = default;

  // Nothing where factors do not divide, or zeros or tiles do not fit.
  std::optional<std::vector<int64_t>> shape(std::vector<int64_t> of) const;
  // Appends it to a graph; its shape() must exist.
  TensorId build(Graph& graph, TensorId x) const;
  // Which element of an operand of this shape becomes the result's element `at`; nothing if it is a
  // zero that was added.
  std::optional<Index> source(const std::vector<int64_t>& shape, Index at) const;
  std::string str() const;
};

// All of at most two moves by these factors, axes that a factor does not divide being padded to
// multiples, and all exchanges of two axes; `lows`: zeros that may be added before each axis
// (besides none); `accepts`: of the results' shapes. Each map once.
std::vector<Rearrangement>
rearrangements(const std::vector<int64_t>& shape, const std::vector<int64_t>& factors,
               const std::vector<std::vector<int64_t>>& lows,
               const std::function<bool(const std::vector<int64_t>&)>& accepts);

}  // namespace tessera::mutants
