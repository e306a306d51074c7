// Where patterns are kept: *.pattern files of folders, those that ship and others.
#pragma once
#include "search/patterns/pattern.h"

namespace tessera::patterns {

// The patterns of all *.pattern files of a folder, in the order of the files' names; none where
// there is no such folder. Throws Error(BadInput) with file:line:col, Error(Io).
std::vector<Pattern> load_patterns(const std::string& folder);

// The patterns of several folders. Those of the first have to be right; of the others, what is
// malformed is left out and told in `problems`. Of two with one name the later one stands, so that
// a project can replace what ships.
std::vector<Pattern> load_warehouse(const std::vector<std::string>& folders,
                                    std::vector<std::string>& problems);

// Whether a program has all operations that a pattern is about: without them, it fits nowhere.
bool may_match(const Pattern& pattern, const Graph& program);

// A hash of the patterns that may match the program: what was found without one of these, or with
// another, is searched again. Nothing else hangs on patterns, as what was found is proved without.
std::string warehouse_key(const std::vector<std::string>& folders, const Graph& program);

}  // namespace tessera::patterns
