// Cuts a program into subprograms that a search engine can take whole (Mirage, OSDI'25, §1), and
// puts results back in their place. Data movement that regroups axes stays where it is, except that
// parts may be joined across reshapes that an engine moves to its borders.
#pragma once
#include <vector>

#include "ir/graph.h"

namespace tessera {

// Some operators of a program as a program of their own. Convex: no path leaves and comes back.
struct Part {
  Graph graph;                    // inputs and outputs named as in the program
  std::vector<OpId> ops;          // of the program, ascending
  std::vector<TensorId> inputs;   // of the program, in the order of graph.inputs()
  std::vector<TensorId> outputs;  // of the program, in the order of graph.outputs()
};

// These operators, ascending and convex, as a part. Constants belong to every part that uses them.
Part part_of(const Graph& program, std::vector<OpId> ops);

// Maximal connected parts of operators that compute (not: reshape across axes, concat, slice,
// gather, opaque, …); parts of a single pointwise or movement operator are left out.
std::vector<Part> partition(const Graph& program);

// The same with parts joined across reshapes between them that only merge or split axes ([b,s,h,d]
// to [b,s,h·d] and back), up to the size that engines search as a few regions. partition() of a
// joined part's graph gives the parts that were joined. `apart`: operators that belong to no part,
// since something else takes them; none if empty.
std::vector<Part> partition_across_reshapes(const Graph& program,
                                            const std::vector<bool>& apart = {});

// The program with each part's operators replaced by `replacements[i]` (same interface as
// parts[i].graph). Throws Error(BadInput) if an interface differs.
Graph splice(const Graph& program, const std::vector<Part>& parts,
             const std::vector<Graph>& replacements);

}  // namespace tessera
