// Kernels for products of few rows with a large row-major matrix: a few rows of it at a time, over
// many columns, so that memory is read in long pieces and every sum is kept in the first-level
// cache. 16-bit elements of the right operand become f32 in registers.
#pragma once

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

class SharedText;

// Name of the kernel template: name<ARS, LDB, LDC, ROWS>(a, b, c, n) computes
// c[i*LDC + j] += sum_{k < ROWS} a[i*ARS + k] * b[k*LDB + j] for i < m and j < n, a multiple of
// the tile's columns. a is stored as `left`, b as `right`; c is f64 if they are, else f32. With
// both bf16 it takes dot products of pairs (which take subnormal elements for zero); ROWS is then
// even or 1.
std::string row_kernel(SharedText& shared, CpuIsa isa, DType left, DType right, int64_t m,
                       const RegisterTile& tile);

// Whether row kernels of this level read a right operand that is stored as `right`.
bool row_kernel_reads(CpuIsa isa, DType dtype, DType right);

}  // namespace tessera
