// Which operands of a kernel its products could read in panels: what layout selection asks the
// generator.
#pragma once

#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/values.h"

namespace tessera {

struct PanelOperand {
  int operand = 0;   // of the kernel
  Layout layout;     // that the register tiles read without a detour
  double flops = 0;  // per call, of the products that read it
  // Panels of rows that share what the kernel packs by itself while it first reads a strip.
  double row_panels = 1;
  bool copied = false;  // read row-major, every tile of it is first copied in another order
};

// Operands that are only read as right operands of register-tiled products of one tile width, and
// whose tiles begin at panels' borders.
std::vector<PanelOperand> panel_operands(const KernelValues& kernel, CpuIsa isa);

}  // namespace tessera
