// +Loop and +Graph (PluS, ATC'25, §4.1): what a subgraph looks like as nested loops and key
// operations, which is what patterns are matched by. Text form, nesting by indentation:
//
//   loop0 [M, para]
//     loop1 [N, non-para, (reduceMax)]
//       loop2 [K, non-para, (dot)]
//     loop3 [N, non-para, (sub, exp, reduceSum)]
//     loop4 [N, para, (div)]
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace tessera::patterns {

struct Loop {
  std::vector<Dim> size;  // a product: more than one where loops were collapsed (primitive 4)
  bool parallel = true;
  // Of the body itself, children apart: operations in program order, and what it reads and writes
  // (of a loop without operations: what all it holds reads and writes). Tensors are not matched.
  std::vector<std::string> ops;
  std::vector<Loop> children;
  std::vector<TensorId> inputs, outputs;
};

// The loops side by side at the outermost level; usually one.
using LoopGraph = std::vector<Loop>;

// The name an operator has in a loop: "dot", "reduceMax", "reduceMin", "reduceSum" (means, too), or
// that of the text format.
std::string loop_op(OpKind);
// Reductions are keys: a pattern and a subgraph have the same ones, loop by loop. `reduceAny` in a
// pattern stands for any one of them, and any other operation that a pattern names has to be there.
bool is_key(std::string_view op);
// All key operations, sorted.
std::vector<std::string> keys(const LoopGraph&);

std::string print(const LoopGraph&);
// Throws Error(BadInput) with file:line:col. `first_line` is the number of the text's first line.
LoopGraph parse_loops(std::string_view text, const std::string& file, int first_line = 1);

// The +Graph of some operators of a kernel graph, by primitives 1 to 5, whatever order they are
// listed in. No loops, and why, where an operator has no loop structure (a concat, a gather, a
// reshape that splits axes) or no order of the loops respects the data flow.
struct Derived {
  LoopGraph loops;
  std::string why;
  bool ok() const { return why.empty(); }
};
Derived derive(const Graph&, const std::vector<OpId>& ops);
// Of all its operators.
Derived derive(const Graph&);
// Has the operator a loop structure?
bool has_loops(const Graph&, const Op&);
// Has it a loop that is not parallel (a skeleton operator)?
bool is_skeleton(const Op&);

enum class Fit {
  None,
  Partial,   // the subgraph may still grow into the pattern (§4.2, match conditions)
  Complete,  // loop for loop the pattern
};
// Symbols of the pattern stand for any size, each for one. Partial is an order-preserving embedding
// of the subgraph's loops into the pattern's, level by level.
Fit fit(const LoopGraph& pattern, const LoopGraph& subgraph);

}  // namespace tessera::patterns
