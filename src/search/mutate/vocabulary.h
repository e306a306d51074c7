// What the search for mutants builds programs of: the operators and attributes of the original, and
// the sizes that they suggest. Internal to search/mutate.
#pragma once
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "search/mutate/generate.h"

namespace tessera::mutants {

using Dims = std::vector<int64_t>;

double count(const Dims& extents);  // elements

struct Vocabulary {
  bool convolves = false, multiplies = false;  // conv, matmul
  std::vector<ConvAttrs> convs;
  // Weights of parallel convolutions with windows of several sizes, in the order of the outputs, as
  // one bundle of the largest.
  std::optional<Step> fit;
  std::vector<Step> own;     // other operators, as they are; operands are to be filled in
  bool elementwise = false;  // of two operands
  std::vector<int64_t> factors;
  std::set<int64_t> groups = {1};                // that convolutions may have
  std::set<std::pair<int64_t, int64_t>> merges;  // groups, and how many of them become one
  std::vector<Dims> lows;                        // zeros before the axes of a convolution's operand
  std::set<Dims> targets;                        // shapes of all values
  // By the shape that they take: windows' taps to channels, for images and for weights, and back to
  // the shape of the original's results.
  std::vector<std::pair<Dims, Rearrangement>> windows, returns;
  int arithmetic = 0;             // operators, parallel ones counted once
  double least = 1e30, most = 1;  // elements of its arithmetic values
};

Vocabulary vocabulary(const Graph& original);

}  // namespace tessera::mutants
