// Functions that generated code carries in its own text: those that it uses and what these need.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/check.h"

namespace tessera {

struct PreludeFunction {
  std::string name;
  std::vector<std::string> needs;  // earlier functions
  std::string text;
};

inline std::string prelude_text(const std::vector<PreludeFunction>& table,
                                std::set<std::string> wanted) {
  for (size_t i = table.size(); i-- > 0;)
    if (wanted.count(table[i].name) != 0)
      wanted.insert(table[i].needs.begin(), table[i].needs.end());
  std::string text;
  for (const PreludeFunction& f : table)
    if (wanted.erase(f.name) > 0) text += f.text;
  CHECK(wanted.empty()) << "no prelude function " << *wanted.begin();
  return text;
}

}  // namespace tessera
