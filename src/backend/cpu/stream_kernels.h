// Kernels for products of few rows with panels (plan/layout.h). Such a product waits for memory,
// and memory delivers more to several streams than to one: a panel is read at several depths in
// turn, with sums for each of them in registers.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "backend/cpu/matmul.h"

namespace tessera {

struct StreamTile {
  RegisterTile tile;
  int streams = 2;
  friend auto operator<=>(const StreamTile&, const StreamTile&) = default;
};

// For a product with m rows and n columns that is summed in `sums`, its right operand stored as
// `stored`; nullopt where registers hold the sums of one stream only, or no kernel reads `stored`.
std::optional<StreamTile> stream_tile(CpuIsa isa, DType sums, DType stored, int64_t m, int64_t n);

// Kernels used by one translation unit, each defined once.
class StreamKernels {
 public:
  // Name of the template: name<ARS, P, LDC, ACCUMULATE>(a, b, c, k), with a and c of type `sums`,
  // computes c[i*LDC + j] (+)= sum_k a[i*ARS + k] * b(k, j) over the tile, b a panel of P columns
  // stored as `stored`, bf16 in groups of two rows.
  std::string use(CpuIsa isa, DType sums, DType stored, const StreamTile& tile);
  std::string text() const;

 private:
  struct Kernel {
    CpuIsa isa;
    DType sums, stored;
    StreamTile tile;
    std::string name() const;
    friend auto operator<=>(const Kernel&, const Kernel&) = default;
  };
  static std::string definitions(const Kernel& kernel);
  static std::string text_of(const Kernel& kernel);
  std::set<Kernel> used_;
};

}  // namespace tessera
