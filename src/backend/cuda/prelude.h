// The numeric functions that generated CUDA kernels call beside the device functions.
#pragma once

#include <set>
#include <string>

namespace tessera {

// The text of the named groups and what they need.
std::string cuda_prelude(const std::set<std::string>& used);

}  // namespace tessera
