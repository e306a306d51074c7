// Folders of data files, which may be missing.
#pragma once
#include <string>
#include <vector>

namespace tessera {

// The paths of a folder's regular files that end in `extension` (".rules"), sorted; none where
// there is no such folder or it cannot be read.
std::vector<std::string> files_of(const std::string& folder, const std::string& extension);

}  // namespace tessera
