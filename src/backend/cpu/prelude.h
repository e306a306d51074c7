// The small run-time library that generated code carries in its own text: scalar functions without
// branches, which the compiler turns into vector code. No header and no libm is involved.
#pragma once

#include <set>
#include <string>

namespace tessera {

// Text of the functions in `used` (names such as "t_exp") and of what they need, in order.
std::string prelude(const std::set<std::string>& used);

}  // namespace tessera
