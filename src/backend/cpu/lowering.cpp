#include "backend/cpu/lowering.h"

#include <algorithm>
#include <functional>

#include "backend/cpu/matmul.h"
#include "backend/cpu/row_kernels.h"
#include "base/thread_pool.h"
#include "ir/block.h"

namespace tessera {
namespace {

// How many blocks to cut rows into, `least` or somewhat more: so that filling the last tile of each
// up adds least.
int64_t row_blocks(int64_t m, int64_t least, int64_t tile) {
  int64_t best = least;
  const auto filled = [&](int64_t blocks) {
    return blocks * ceil_div(ceil_div(m, blocks), tile) * tile;
  };
  for (int64_t blocks = least + 1; blocks <= least + least / 2; ++blocks)
    if (filled(blocks) < filled(best)) best = blocks;
  return best;
}

// The same of columns, from `few` blocks to twice `usual`. In vectors per row: every strip of tiles
// reads the left operand anew, and what is left of a block has to be copied first.
int64_t column_blocks(int64_t n, int64_t few, int64_t usual,
                      const std::function<RegisterTile(int64_t)>& tile_of) {
  const auto cost = [&](int64_t blocks) {
    const int64_t width = ceil_div(n, blocks);
    const RegisterTile tile = tile_of(width);
    const int64_t whole = width / tile.columns(), rest = width % tile.columns();
    const double strips = double(whole) * (tile.vectors + 0.5);
    return double(blocks) * (strips + (rest > 0 ? double(ceil_div(rest, tile.lanes)) + 1 : 0));
  };
  int64_t best = usual;
  for (int64_t blocks = few; blocks <= 2 * usual; ++blocks)
    if (cost(blocks) < cost(best)) best = blocks;
  return best;
}

ProductTiles split_product(CpuIsa isa, DType dtype, int64_t batch, int64_t m, int64_t n,
                           int64_t k) {
  const DType compute = dtype == DType::F64 ? DType::F64 : DType::F32;
  const RegisterTile tile = choose_tile(isa, compute, m, n);
  ProductTiles t;
  const int64_t rows = m <= 256 ? m : 128;
  // As wide as suits the kernels, yet enough blocks to keep every core busy. Narrow strips keep a
  // block's part of the right operand near; row kernels read wide ones faster.
  const bool by_rows = m <= kMostKernelRows;
  const RowSchedule schedule = row_schedule(tile, m);
  int64_t columns = std::max<int64_t>(tile.columns(), by_rows ? schedule.width : 256);
  const int64_t blocks = by_rows ? int64_t{default_threads()} : 32;
  while (columns > tile.columns() && batch * ceil_div(m, rows) * ceil_div(n, columns) < blocks)
    columns /= 2;
  columns = ceil_div(columns, tile.columns()) * tile.columns();
  t.row_blocks = row_blocks(m, ceil_div(m, rows), tile.rows);
  t.column_blocks = ceil_div(n, std::min(columns, n));
  if (!by_rows) {
    const int64_t busy = ceil_div(8 * int64_t{default_threads()}, batch * t.row_blocks);
    t.column_blocks = column_blocks(
        n, std::min(t.column_blocks, std::max(busy, ceil_div(n, int64_t{256}))), t.column_blocks,
        [&](int64_t width) { return choose_tile(isa, compute, ceil_div(m, t.row_blocks), width); });
  }
  t.iterations = ceil_div(k, by_rows ? 128 : 256);
  // Panels of 16-bit elements hold pairs of rows.
  if (size_in_bytes(dtype) == 2)
    while (t.iterations > 1 && ceil_div(k, t.iterations) % 2 != 0) --t.iterations;
  return t;
}

}  // namespace

Lowering cpu_lowering(CpuIsa isa) {
  Lowering lowering;
  const int64_t least = lowering.block_elements;
  lowering.split = [isa, least](DType dtype, int64_t batch, int64_t m, int64_t n, int64_t k) {
    ProductTiles t = split_product(isa, dtype, batch, m, n, k);
    const bool tiled =
        is_float(dtype) && n * 2 >= lanes_of(isa, dtype == DType::F64 ? DType::F64 : DType::F32);
    if (tiled) return t;
    // Its elements are computed one by one, as many of a row together as there are.
    const int64_t rows = std::max<int64_t>(1, least / std::max<int64_t>(1, n * k));
    return ProductTiles{std::max<int64_t>(1, m / rows), 1, 1};
  };
  return lowering;
}

}  // namespace tessera
