#include "search/patterns/warehouse.h"

#include <algorithm>

#include "base/error.h"
#include "base/folder.h"
#include "base/sha256.h"

namespace tessera::patterns {
std::vector<Pattern> load_patterns(const std::string& folder) {
  std::vector<Pattern> patterns;
  for (const std::string& file : files_of(folder, ".pattern")) {
    Pattern p = parse_pattern(read_text(file), file);
    for (const Pattern& other : patterns)
      if (other.name == p.name)
        throw Error(ErrorKind::BadInput,
                    "'" + p.name + "' is the name of the pattern in " + other.file + ", too",
                    SourceLocation{file, 1, 1});
    patterns.push_back(std::move(p));
  }
  return patterns;
}

std::vector<Pattern> load_warehouse(const std::vector<std::string>& folders,
                                    std::vector<std::string>& problems) {
  std::vector<Pattern> all;
  for (const std::string& folder : folders) {
    if (&folder == &folders.front()) {
      all = load_patterns(folder);
      continue;
    }
    for (const std::string& file : files_of(folder, ".pattern")) {
      try {
        Pattern p = parse_pattern(read_text(file), file);
        std::erase_if(all, [&](const Pattern& other) { return other.name == p.name; });
        all.push_back(std::move(p));
      } catch (const Error& e) {
        problems.push_back(e.what());
      }
    }
  }
  return all;
}

bool may_match(const Pattern& pattern, const Graph& program) {
  std::vector<std::string> keys;
  for (const Op& op : program.ops())
    if (const std::string key = loop_op(op.kind); is_key(key)) keys.push_back(key);
  return std::ranges::all_of(pattern.keys, [&](const std::string& key) {
    return key == "reduceAny" ? !keys.empty() : std::ranges::count(keys, key) > 0;
  });
}

std::string warehouse_key(const std::vector<std::string>& folders, const Graph& program) {
  std::vector<std::string> problems;
  std::string all;
  for (const Pattern& p : load_warehouse(folders, problems))
    if (may_match(p, program)) all += p.name + "\n" + print(p);
  return sha256_hex(all);
}

}  // namespace tessera::patterns
