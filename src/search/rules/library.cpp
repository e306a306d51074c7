#include "search/rules/library.h"

#include <set>

#include "base/error.h"
#include "base/folder.h"

namespace tessera::rules {

std::vector<Rule> load_rules(const std::string& folder) {
  std::vector<Rule> rules;
  std::set<std::string> names;
  for (const std::string& file : files_of(folder, ".rules")) {
    for (Rule& r : parse_rules(read_text(file), file)) {
      if (!names.insert(r.name).second)
        throw Error(ErrorKind::BadInput, "another file has a rule '" + r.name + "' too",
                    SourceLocation{file, r.line, 1});
      rules.push_back(std::move(r));
    }
  }
  return rules;
}

void load_more(const std::string& folder, std::vector<Rule>& rules,
               std::vector<std::string>& problems) {
  std::set<std::string> names;
  for (const Rule& r : rules) names.insert(r.name);
  for (const std::string& file : files_of(folder, ".rules")) {
    try {
      for (Rule& r : parse_rules(read_text(file), file))
        if (names.insert(r.name).second) rules.push_back(std::move(r));
    } catch (const Error& e) {
      problems.push_back(e.what());
    }
  }
}

}  // namespace tessera::rules
