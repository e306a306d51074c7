// Copying a program with one operator replaced: the tool that mutations and rewrites are made of.
// Every edit is type-checked and validated; one that does not fit gives nullopt.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// An operator of the program: of the kernel graph (body < 0) or of the body of a `kernel` operator.
struct Site {
  int body = -1;  // BodyId
  OpId op;
};
std::vector<Site> all_sites(const Graph& g);
const Graph& graph_of(const Graph& g, const Site& site);
const Op& op_at(const Graph& g, const Site& site);

// Builds a replacement in `out` (a copy of the graph up to this operator) from the copied operands;
// returns the tensors that stand for its results, or nothing if it does not apply.
using Edit = std::function<std::optional<std::vector<TensorId>>(
    Graph& out, const Op& op, const std::vector<TensorId>& operands)>;
std::optional<Graph> edit_at(const Graph& g, const Site& site, const Edit& edit);

// Replaces the body of a kernel operator.
std::optional<Graph> replace_body(const Graph& g, int body, const Graph& new_body);

// Copies one operator (with its body, if any) into `out`.
std::vector<TensorId> copy_op(Graph& out, const Graph& from, const Op& op,
                              const std::vector<TensorId>& operands);

// The same interface, and valid.
bool fits(const Graph& original, const Graph& edited);

}  // namespace tessera
