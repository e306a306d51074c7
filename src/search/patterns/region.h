// A subgraph as a program of its own, in the form in which patterns are matched: leading axes that
// go together are one (primitive 4), and sizes small enough to compare numbers.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace tessera::patterns {

struct Region {
  Graph graph;                   // one output
  std::vector<TensorId> inputs;  // of the program, in the order of graph.inputs()
  TensorId output;               // of the program
  std::vector<OpId> ops;         // of the program: those the output needs
};

// One for each value of the operators that others or the program need.
std::vector<Region> regions(const Graph& program, const std::vector<OpId>& ops);

// The same computation with the first `count` axes of all its largest tensors as one; nothing where
// they do not go together.
std::optional<Graph> merge_leading(const Graph&, int count);
// A program that computes the merged graph, for the inputs of the original one.
Graph unmerged(const Graph& original, const Graph& merged);

// The same computation at small sizes, axis by axis; but axes that are summed over keep theirs, up
// to 4096, as programs may know their extents (a mean as a sum times 1/1024). Nothing where the
// operators tie sizes to each other.
std::optional<Graph> reduced(const Graph&);

// The same computation with other extents: each axis by its extent, and constants that are an
// extent or its reciprocal (the 1/N of a mean) follow it. Nothing where operators do not allow it,
// or where a constant would have to follow a symbol.
std::optional<Graph> with_sizes(const Graph&, const std::map<int64_t, Dim>& sizes);

}  // namespace tessera::patterns
