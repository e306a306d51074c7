// Whole-graph validity beyond what building checks: levels, phases and coverage of results by
// blocks.
#pragma once
#include "ir/graph.h"

namespace tessera {

// Throws Error(BadInput) saying which operator breaks which rule.
void validate(const Graph& graph);
// The same for the body of one kernel or thread operator of `graph`.
void validate_body(const Graph& graph, const Op& op);

// Throws Error(BadInput) that names the operator.
[[noreturn]] void bad_op(const Graph& graph, const Op& op, const std::string& what);

}  // namespace tessera
