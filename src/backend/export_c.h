// Programs as plain C11, ahead of time: lowered to loops, validated, run against the reference
// interpreter, printed.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernel/print_c.h"

namespace tessera {

struct CExport {
  kernel::CSource source;
  std::string function;          // its name
  std::string loops;             // the IR, for a reader
  std::vector<int64_t> offsets;  // by input: where in the weights it lies; −1: an argument
  int64_t weights_bytes = 0, workspace_bytes = 0;
  bool turned = false;           // results differ, since rounding decides which way it turns
  int64_t compared = 0;          // results that agreed with the interpreter's, in f64
  int64_t compared_exactly = 0;  // likewise in a finite field
};

// `data`: which inputs come as data with the code. `name`: of the files. Throws Error(Unsupported)
// naming an operator that C code is not made for, Error(Internal) where the code is not what the
// program computes.
CExport export_c(const Graph& graph, const std::vector<bool>& data, const std::string& name);

}  // namespace tessera
