// Register-tiled matrix products: which tile suits a shape, and the text of the micro-kernels, with
// every accumulator a named variable (compilers spill accumulator arrays).
#pragma once

#include <string>

#include "backend/cpu/isa.h"
#include "ir/types.h"

namespace tessera {

// A tile of `rows` rows times `vectors` vectors of `lanes` elements.
struct RegisterTile {
  int rows = 1;
  int vectors = 1;
  int lanes = 4;
  int columns() const { return vectors * lanes; }
  friend auto operator<=>(const RegisterTile&, const RegisterTile&) = default;
};

int lanes_of(CpuIsa isa, DType dtype);

// Tile for a product with m rows and n columns of `dtype` (f32 or f64).
RegisterTile choose_tile(CpuIsa isa, DType dtype, int64_t m, int64_t n);

inline constexpr int kFetchSteps = 8;

class SharedText;

// Name of the kernel template: name<ARS, ACS, LDB, LDC, ACCUMULATE, LINES, LDF>(a, b, c, f, k)
// computes c[i*LDC + j] (+)= sum_k a[i*ARS + k*ACS] * b[k*LDB + j] over the tile. LINES lines at f,
// then at f + LDF and so on, are fetched for every kFetchSteps of k, so that many passes over one
// block share what comes next evenly: fetches that come in bursts are dropped.
std::string tile_kernel(SharedText& shared, DType dtype, const RegisterTile& tile);

}  // namespace tessera
