// Whole-graph validity beyond what building checks: levels, phases, coverage of results by blocks,
// memory limits, and on request Mirage's stricter Definition 2.1.
#pragma once
#include "ir/graph.h"

namespace tessera {

struct ValidateOptions {
  int64_t kernel_bytes = INT64_MAX;  // all tensors of the kernel graph together
  int64_t block_bytes = INT64_MAX;   // block_memory(...).peak() of each block graph
  int64_t thread_bytes = INT64_MAX;  // live values of a thread graph, per element
  bool mirage_strict = false;        // Definition 2.1(3): one iterator, one accumulator, one saver
};

// Throws Error(BadInput) saying which operator breaks which rule.
void validate(const Graph& graph, const ValidateOptions& options = {});
// The same for the body of one kernel or thread operator of `graph`.
void validate_body(const Graph& graph, const Op& op, const ValidateOptions& options = {});

// Throws Error(BadInput) that names the operator.
[[noreturn]] void bad_op(const Graph& graph, const Op& op, const std::string& what);

}  // namespace tessera
