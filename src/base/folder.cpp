#include "base/folder.h"

#include <algorithm>
#include <filesystem>

namespace tessera {

std::vector<std::string> files_of(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files;
  std::error_code none;
  for (std::filesystem::directory_iterator at(folder, none), end; !none && at != end;
       at.increment(none)) {
    std::error_code ignored;
    if (at->path().extension() == extension && at->is_regular_file(ignored))
      files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tessera
