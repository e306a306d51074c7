#include "backend/cpu/matmul.h"

#include <algorithm>

#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "ir/block.h"

namespace tessera {

namespace {

std::string kernel_name(DType dtype, const RegisterTile& tile) {
  return fmt("mm_$0_$1x$2", name(dtype), tile.rows, tile.vectors);
}

// The type of vectors.
std::string vector_type(SharedText& shared, DType dtype, const RegisterTile& tile) {
  const std::string v = std::string("v_") + name(dtype);
  const int bytes = size_in_bytes(dtype);
  shared.type(vector_typedef(storage_type(dtype), v, tile.lanes * bytes, bytes));
  return v;
}

std::string text_of(SharedText& shared, DType dtype, const RegisterTile& tile) {
  const std::string v = vector_type(shared, dtype, tile);
  const int line = 64 / size_in_bytes(dtype);
  const int lines = ceil_div(tile.columns(), line) * kFetchSteps;  // the most that can be asked for
  std::string out = fmt(
      "\ntemplate <long ARS, long ACS, long LDB, long LDC, int ACCUMULATE, int LINES, long "
      "LDF>\nstatic "
      "__attribute__((noinline)) void $0(const $1* a, const $1* b, $1* c, const $1* f, long k) {\n",
      kernel_name(dtype, tile), storage_type(dtype));
  out += declare_sums("  ", v, tile.rows, tile.vectors);
  // Step number `step` of kFetchSteps; fetches stand between the rows, as in front they would hold
  // up the loads of what is there already.
  const auto one = [&](int step) {
    std::string text =
        "    {\n" + declare_vectors("      const ", v, "b", tile.vectors, [&](int j) {
          return fmt("*(const $0*)(b + $1)", v, j * tile.lanes);
        });
    int fetched = step < 0 ? lines : step;
    const int share = ceil_div(lines, kFetchSteps * tile.rows);
    for (int i = 0; i < tile.rows; ++i) {
      text += multiply_row("     ", i, tile.vectors, fmt("a[$0 * ARS]", i));
      for (int s = 0; s < share && fetched < lines; ++s, fetched += kFetchSteps)
        text += fmt("      if (LINES > $0) __builtin_prefetch(f + $1, 0, 2);\n", fetched,
                    fetched * line);
    }
    return text + "      a += ACS;\n      b += LDB;\n    }\n";
  };
  out += fmt("  for (; k >= $0; k -= $0) {\n", kFetchSteps);
  for (int step = 0; step < kFetchSteps; ++step) out += one(step);
  out += fmt("    f += LDF;\n  }\n#pragma GCC unroll 1\n  for (; k > 0; --k) {\n$0  }\n", one(-1));
  return fmt("$0$1}\n", out, keep_sums(v, tile));
}

}  // namespace

int lanes_of(CpuIsa isa, DType dtype) { return vector_bytes(isa) / size_in_bytes(dtype); }

RegisterTile choose_tile(CpuIsa isa, DType dtype, int64_t m, int64_t n) {
  // Most rows per tile, and vectors per number of rows: measured to keep the FMA units busy while
  // leaving registers for one row of b and a broadcast.
  const bool wide = vector_registers(isa) == 32;
  const int most_rows = wide ? 8 : 6;
  const int64_t panels = ceil_div(m, most_rows);
  RegisterTile tile;
  tile.lanes = lanes_of(isa, dtype);
  tile.rows = int(ceil_div(m, panels));
  static constexpr int kWide[] = {0, 8, 8, 6, 4, 4, 4, 3, 2};
  static constexpr int kNarrow[] = {0, 8, 4, 3, 2, 2, 2};
  tile.vectors = wide ? kWide[tile.rows] : kNarrow[tile.rows];
  tile.vectors = int(std::min<int64_t>(tile.vectors, ceil_div(n, tile.lanes)));
  // Rather a narrower tile than a remainder column by column.
  for (int v = tile.vectors; v > std::max(1, tile.vectors / 2); --v) {
    if (n % (v * tile.lanes) == 0) {
      tile.vectors = v;
      break;
    }
  }
  return tile;
}

std::string tile_kernel(SharedText& shared, DType dtype, const RegisterTile& tile) {
  return shared.function(
      kernel_name(dtype, tile), [&] { return text_of(shared, dtype, tile); });
}

}  // namespace tessera
