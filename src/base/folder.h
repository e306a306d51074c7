// Folders of data files, which may be missing.
#pragma once
#include <string>
#include <vector>

namespace tessera {

// The paths of a folder's regular files that end in `extension` (".rules"), sorted; none where
// there is no such folder or it cannot be read.
std::vector<std::string> files_of(const std::string& folder, const std::string& extension);

// Why what lies in a folder may be somebody else's, "" where only this user can have put it there;
// `alone`: and only this user can look at it.
std::string why_not_own(const std::string& folder, bool alone);

}  // namespace tessera
