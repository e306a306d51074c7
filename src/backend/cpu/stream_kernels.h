// Kernels for products of few rows with panels (plan/layout.h). Such a product waits for memory,
// and memory delivers more to several streams than to one: a panel is read at several depths in
// turn, with sums for each of them in registers.
#pragma once

#include <optional>
#include <string>

#include "backend/cpu/matmul.h"

namespace tessera {

struct StreamTile {
  RegisterTile tile;
  int streams = 2;
};

// For a product with m rows and n columns that is summed in `sums`, its right operand stored as
// `stored`; nullopt where registers hold the sums of one stream only, or no kernel reads `stored`.
std::optional<StreamTile> stream_tile(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t n);

// Name of the template: name<ARS, P, LDC, ACCUMULATE>(a, b, c, k), with a and c of type `sums`,
// computes c[i*LDC + j] (+)= sum_k a[i*ARS + k] * b(k, j) over the tile, b a panel of P columns
// stored as `stored`, bf16 in groups of two rows.
std::string stream_kernel(SharedText& shared, CpuIsa isa, DType sums, DType stored,
                          const StreamTile& tile);

}  // namespace tessera
