// Kernels for products of few rows with a large row-major matrix: a few rows of it at a time, over
// many columns, so that memory is read in long pieces and every sum is kept in the first-level
// cache. 16-bit elements of the right operand become f32 in registers.
#pragma once

#include <set>
#include <string>

#include "backend/cpu/matmul.h"

namespace tessera {

// The most rows of a left operand; beyond, the right one is worth copying into strips.
inline constexpr int64_t kMostKernelRows = 32;

// How a product of m rows goes through its right operand: `rows` of it at a time, `width` columns.
struct RowSchedule {
  int rows = 8;
  int64_t width = 0;
};
RowSchedule row_schedule(const RegisterTile& tile, int64_t m);

// Row kernels used by one translation unit, each defined once.
class RowKernels {
 public:
  // Name of the kernel template: name<ARS, LDB, LDC, ROWS>(a, b, c, n) computes
  // c[i*LDC + j] += sum_{k < ROWS} a[i*ARS + k] * b[k*LDB + j] for i < m and j < n, a multiple of
  // the tile's columns. a is stored as `left`, b as `right`; c is f64 if they are, else f32. With
  // both bf16 it takes dot products of pairs (which take subnormal elements for zero); ROWS is then
  // even or 1.
  std::string use(CpuIsa isa, DType left, DType right, int64_t m, const RegisterTile& tile);
  std::string text() const;

 private:
  struct Kernel {
    CpuIsa isa;
    DType left, right;
    int64_t m;
    RegisterTile tile;
    std::string name() const;
    friend auto operator<=>(const Kernel&, const Kernel&) = default;
  };
  static std::string text_of(const Kernel& kernel);
  static std::string step_of(const Kernel& kernel, int rows, const std::string& first);
  static std::string dot_step_of(const Kernel& kernel, int rows, const std::string& first);
  std::set<Kernel> used_;
};

// Whether row kernels of this level read a right operand that is stored as `right`.
bool row_kernel_reads(CpuIsa isa, DType dtype, DType right);

}  // namespace tessera
