// What a program means, as a name: the same for programs that compute the same, whatever they call
// their inputs, in whatever order they take them and by whatever algebra. Tells where to look for
// a kernel that was found before; that it fits is proved there.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera::patterns {

struct SemanticKey {
  std::string meaning;         // 64 hex digits; the same at other sizes
  std::vector<size_t> order;   // of the program's inputs, so that equal programs agree
  std::vector<int64_t> sizes;  // different extents, as they appear in inputs in that order
};

// Of a static kernel graph of at most kMostInputs inputs and one output. Its values are computed in
// f64 at small sizes, one for each extent, under those orders of the inputs that their types leave
// open; nothing where that takes too long or operators tie sizes to each other.
inline constexpr size_t kMostInputs = 8;
std::optional<SemanticKey> semantic_key(const Graph&);

}  // namespace tessera::patterns
