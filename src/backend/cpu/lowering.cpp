#include "backend/cpu/lowering.h"

#include <algorithm>

#include "backend/cpu/matmul.h"
#include "backend/cpu/row_kernels.h"
#include "base/thread_pool.h"
#include "ir/block.h"

namespace tessera {
namespace {

ProductTiles split_product(CpuIsa isa, DType dtype, int64_t batch, int64_t m, int64_t n,
                           int64_t k) {
  const DType compute = dtype == DType::F64 ? DType::F64 : DType::F32;
  const RegisterTile tile = choose_tile(isa, compute, m, n);
  ProductTiles t;
  const int64_t rows = m <= 192 ? m : 128;
  // As wide as suits the kernels, yet enough blocks to keep every core busy. Narrow strips keep a
  // block's part of the right operand near; row kernels read wide ones faster.
  const bool by_rows = m <= kMostKernelRows;
  const RowSchedule schedule = row_schedule(tile, m, dtype);
  int64_t columns = std::max<int64_t>(tile.columns(), by_rows ? schedule.width : 256);
  const int64_t blocks = by_rows ? 2 * int64_t{default_threads()} : 32;
  while (columns > tile.columns() && batch * ceil_div(m, rows) * ceil_div(n, columns) < blocks)
    columns /= 2;
  columns = ceil_div(columns, tile.columns()) * tile.columns();
  t.row_blocks = ceil_div(m, rows);
  t.column_blocks = ceil_div(n, std::min(columns, n));
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
