// Kernel-level convolutions and pooling: direct loops, no matrix of windows is ever written.
#pragma once

#include "backend/cpu/emit_kernel.h"

namespace tessera {

struct WindowText {
  std::string text;
  int64_t units = 1;
  int64_t scratch_bytes = 0;  // per worker
  // Operands in the form the kernel reads: made by NAME_once over `staging_units` into a workspace
  // of this size, whose address is the argument after the result.
  int64_t workspace_bytes = 0;
  int64_t staging_units = 0;
};

// A convolution takes x as planes in which every tap is an offset: padded, with the elements of one
// residue modulo the stride side by side. Rows of a register tile are output channels, columns are
// places in the plane; those between the lines of the result are computed and dropped.
WindowText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit);

}  // namespace tessera
