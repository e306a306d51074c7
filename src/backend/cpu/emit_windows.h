// Kernel-level convolutions and pooling: direct loops, no matrix of windows is ever written.
#pragma once

#include "backend/cpu/emit_kernel.h"

namespace tessera {

// A convolution takes x as planes in which every tap is an offset: padded, with the elements of one
// residue modulo the stride side by side. Rows of a register tile are output channels, columns are
// places in the plane; those between the lines of the result are computed and dropped.
KernelText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit);

}  // namespace tessera
