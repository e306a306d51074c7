// Where rules are kept: *.rules files of folders, those that ship and those that a user learnt.
#pragma once
#include "search/rules/rule.h"

namespace tessera::rules {

// The rules of all *.rules files of a folder, in the order of the files' names; none where there is
// no such folder. Throws Error(BadInput) with file:line:col on malformed files and on names that
// two rules share, Error(Io) where a file cannot be read. Nothing in a file is ever executed.
std::vector<Rule> load_rules(const std::string& folder);

// As load_rules, for folders that need not be trusted to be whole: a malformed file is left out,
// and `problems` tells why. Rules whose names are known already are left out too.
void load_more(const std::string& folder, std::vector<Rule>& rules,
               std::vector<std::string>& problems);

}  // namespace tessera::rules
