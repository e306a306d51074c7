// Which operands of a kernel its products could read in panels: what layout selection asks the
// generator.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/panel_kernels.h"
#include "backend/values.h"

namespace tessera {

struct PanelOperand {
  int operand = 0;      // of the kernel
  Layout layout;        // that the register tiles read without a detour
  double flops = 0;     // per call, of the products that read it
  int64_t rows = 1;     // of a tile of the left operand
  bool packed = false;  // the kernel packs tiles of it by itself (packed_tiles)
  bool copied = false;  // read row-major, every tile of it is first copied in another order
};

// Operands that are only read as right operands of register-tiled products of one tile width. Where
// tiles do not begin at panels' borders they have panels of their own.
std::vector<PanelOperand> panel_operands(const KernelValues& kernel, CpuIsa isa);

// An iterator that a product's right operand shows, through views: its axes k and n.
struct RightOperand {
  int iter = 0;
  int k = 0, n = 0;
  friend auto operator<=>(const RightOperand&, const RightOperand&) = default;
};
// nullopt where `id` is anything else.
std::optional<RightOperand> right_operand(const KernelValues& kernel, int id);

// Row-major tiles that a kernel packs into panels for itself, each time they change, since enough
// rows are multiplied with them: of bf16, and of f32 and f64 whose columns lie in order, or whose
// rows lie far apart. The products that read a tile agree on its panels.
std::map<RightOperand, PanelShape> packed_tiles(const KernelValues& kernel, CpuIsa isa);
// Whether a tile of this type is packed for a product of m rows; its rows lie `pitch` elements
// apart, 1 where columns lie in order.
bool packs_tile(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t pitch);

}  // namespace tessera
