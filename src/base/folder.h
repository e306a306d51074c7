// Files, and folders of them, which may be missing.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// The paths of a folder's regular files that end in `extension` (".rules"), sorted; none where
// there is no such folder or it cannot be read.
std::vector<std::string> files_of(const std::string& folder, const std::string& extension);

// Whole file, or nullopt where it cannot be read.
std::optional<std::string> read_file(const std::string& path);
// The same; throws Error{Io}.
std::string read_text(const std::string& file);

// Why what lies in a folder may be somebody else's, "" where only this user can have put it there;
// `alone`: and only this user can look at it.
std::string why_not_own(const std::string& folder, bool alone);

}  // namespace tessera
