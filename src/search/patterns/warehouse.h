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

// A hash of all that is in them, malformed or not: what was found with other patterns is old.
std::string warehouse_key(const std::vector<std::string>& folders);

}  // namespace tessera::patterns
