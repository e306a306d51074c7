// The system's C++ compiler, which generated code is compiled with.
#pragma once

#include <string>

namespace tessera {

struct Compiler {
  std::string path;
  std::string version;   // first line of --version
  std::string identity;  // hash of --version's output, size and time of the file
};

// $TESSERA_CXX if set, else c++, g++ or clang++ on PATH. Throws Error{ToolMissing}.
Compiler find_compiler();
// Whether it finds one.
bool has_compiler();

}  // namespace tessera
