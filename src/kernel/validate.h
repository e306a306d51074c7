// Is a kernel sound? Decided on the IR before there is any text: names are known and types fit;
// every element that is touched exists; no two iterations of a parallel or vector loop touch one
// element that one of them writes; nothing is read before it is written, and results are written
// whole; workspace that buffers share is used by one after the other. What cannot be decided is
// refused.
#pragma once
#include <string>

#include "kernel/ir.h"

namespace tessera::kernel {

// Why a function is refused, with the statement it is about; empty: it is valid.
std::string why_invalid(const Function& function);

}  // namespace tessera::kernel
