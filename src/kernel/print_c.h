// Kernels as plain C11: a source file and its header, which need libc and libm alone. The code
// allocates nothing; what it computes is what the IR says.
#pragma once
#include <string>

#include "kernel/ir.h"

namespace tessera::kernel {

struct CSource {
  std::string source, header;
};
// `name`: of the files, NAME.c and NAME.h. `notes`: lines of the header's first comment. Throws
// Error(Unsupported) where C has no word for something.
CSource print_c(const Function& function, const std::string& name, const std::string& notes);
// An identifier of C like this name, which is no keyword and no function of the library.
std::string c_name(const std::string& name);

}  // namespace tessera::kernel
