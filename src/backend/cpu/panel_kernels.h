// Kernels for products whose right operand lies in panels (plan/layout.h): which panel suits a
// product, and for 16-bit panels of many rows the text of the kernels. f32 and f64 panels are read
// by the micro-kernels of matmul.h, few rows are multiplied by those of stream_kernels.h.
#pragma once

#include <optional>
#include <string>

#include "backend/cpu/matmul.h"

namespace tessera {

// A panel is as wide as the tile; `group` rows of it lie side by side.
struct PanelShape {
  RegisterTile tile;
  int64_t group = 1;
};

// The panels of a matrix stored as `stored` for a product with m rows and n columns that is summed
// in `sums`; nullopt where nothing reads it in panels.
std::optional<PanelShape> panel_shape(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t n);

// Whether left operands that are stored as bf16 are multiplied with bf16 panels as they are.
bool panels_take_bf16(CpuIsa isa);

// Kernels for 16-bit panels.
// Name of the kernel template: name<ARS, P, LDC, ACCUMULATE, LINES>(a, b, c, f, k) computes
// c[i*LDC + j] (+)= sum_k a[i*ARS + k] * b(k, j) over the tile, b a panel of P columns stored as
// `stored`. a is bf16 where `left` is, and f32 otherwise; c is f32. It fetches LINES cache lines
// from f on for each group of rows. bf16 by bf16 are dot products of pairs (vdpbf16ps), which take
// subnormal elements for zero.
std::string panel_kernel(SharedText& shared, CpuIsa isa, DType left, DType stored,
                         const RegisterTile& tile);
// Name of the template for whole products by tiles (AMX): name<ARS, LDC, PITCH, LOW, ACCUMULATE,
// AHEAD>(a, b, c, m, n, k), panels of 32 columns, PITCH elements of b a column. a is bf16; with
// LOW, what lies LOW elements behind it is added to it. Pairs of k must be whole in a. c has room
// for whole vectors of 16. With AHEAD it asks for what lies that many bytes ahead in b. Subnormal
// elements count as zero.
std::string amx_kernel(SharedText& shared);
// Name of the template that packs a matrix, k by n, into panels, of bf16 of pairs: name<LD, PITCH,
// COLUMNS>(from, to, k, n). Rows lie LD elements apart, or columns where the matrix is `turned`;
// panel j begins at to + j*PITCH*COLUMNS. Columns and a row that are missing are filled with zeros.
// Turned ones need t_transpose of the prelude.
std::string pack_kernel(SharedText& shared, DType dtype, bool turned);

}  // namespace tessera
