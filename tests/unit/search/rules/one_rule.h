// A rule from its lines, for tests.
#pragma once

#include "search/rules/rule.h"

namespace tessera::rules {

inline Rule rule(const std::string& body) { return parse_rules("rule r\n" + body, "r").at(0); }

}  // namespace tessera::rules
