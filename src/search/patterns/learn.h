// A kernel that a search found, as a pattern: found again in other programs and at other sizes.
#pragma once
#include <atomic>
#include <map>
#include <optional>
#include <string>

#include "ir/graph.h"
#include "search/patterns/semantic_key.h"

namespace tessera::patterns {

// The text of a pattern that computes `spec` as `kernels`, an equal program of block graphs, does:
// extents of the inputs become symbols, numbers of blocks and iterations follow them, and what is
// pointwise behind it may move in. Where that does not hold at other sizes (check.h), the sizes
// stay as they are; nothing where `spec` has no +Graph or several outputs or element types, or
// where proofs take longer than `seconds`.
std::optional<std::string> learnt_pattern(const std::string& name, const Graph& spec,
                                          const Graph& kernels, const SemanticKey& key,
                                          double seconds = 60,
                                          const std::atomic<bool>* cancel = nullptr);

// The statements of a def that means what `spec` does, extents replaced by symbols and inputs
// named; nothing where `spec` is no program of one output and element type, or its operators do not
// allow the symbols.
std::optional<std::string> meaning(const Graph& spec, const std::vector<std::string>& inputs,
                                   const std::map<int64_t, std::string>& symbols);

}  // namespace tessera::patterns
