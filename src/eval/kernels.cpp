#include "eval/kernels.h"

#include <algorithm>

#include "eval/kernels_impl.h"
#include "ir/block.h"

namespace tessera {
namespace {

constexpr int64_t kMaxTile = 32;          // no micro-kernel has more rows or columns
constexpr int64_t kBytesPerElement = 16;  // two limbs of 8 bytes

// Runs `product` on pieces of C: columns are split first (whole panels), rows when few columns.
template <class Product>
void split(int64_t m, int64_t n, int64_t k, ThreadPool* pool, const Product& product) {
  constexpr int64_t kSmall = 1 << 16;  // multiplications not worth a wake-up
  const int64_t column = 128, row = kGemmMC;
  if (pool == nullptr || pool->threads() == 1 || m * n * k < kSmall) {
    Buffer scratch(size_t(gemm_scratch_bytes(m, n, k)));
    product(0, m, 0, n, scratch.as<void>());
    return;
  }
  const int64_t columns = (n + column - 1) / column;
  const int64_t rows = columns >= 2 * pool->threads() ? 1 : (m + row - 1) / row;
  const int64_t height = rows == 1 ? m : row;
  pool->parallel_for(columns * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t j = piece / rows * column, i = piece % rows * height;
      const int64_t width = std::min(column, n - j), tall = std::min(height, m - i);
      Buffer scratch(size_t(gemm_scratch_bytes(tall, width, k)));
      product(i, tall, j, width, scratch.as<void>());
    }
  });
}

}  // namespace

int64_t gemm_scratch_bytes(int64_t m, int64_t n, int64_t k) {
  const int64_t kc = std::min(k, kGemmKC);
  const int64_t rows = std::min(kGemmMC, m) + kMaxTile, columns = std::min(kGemmNC, n) + kMaxTile;
  return round_up((rows + columns) * kc * kBytesPerElement + 64, 64);
}

std::vector<const Kernels*> runnable_kernels() {
  std::vector<const Kernels*> tables = {scalar_kernels()};
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The tables' own functions are compiled for their processors: not to be called on others.
  const auto add = [&](bool runs, const Kernels* (*table)()) {
    if (runs && table() != nullptr) tables.push_back(table());
  };
  add(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2_kernels);
  add(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512ifma"),
      avx512_kernels);
#endif
  return tables;
}

const Kernels& kernels() {
  static const Kernels* best = runnable_kernels().back();
  return *best;
}

template <class W>
void field_matmul(const Kernels& table, const Modulus<W>& modulus, int64_t m, int64_t n, int64_t k,
                  Matrix<const W> a, Matrix<const W> b, Matrix<W> c, ThreadPool* pool) {
  split(
      m, n, k, pool,
      [&](int64_t i, int64_t rows, int64_t j, int64_t columns, void* scratch) {
        table.template field<W>().matmul(modulus, rows, columns, k,
                                         {a.data + i * a.row, a.row, a.col},
                                         {b.data + j * b.col, b.row, b.col},
                                         {c.data + i * c.row + j * c.col, c.row, c.col}, scratch);
      });
}

template <class T>
void real_matmul(const Kernels& table, int64_t m, int64_t n, int64_t k, Matrix<const T> a,
                 Matrix<const T> b, Matrix<T> c, ThreadPool* pool) {
  const RealLoops<T>* loops;
  if constexpr (sizeof(T) == 4)
    loops = &table.f32;
  else
    loops = &table.f64;
  split(m, n, k, pool, [&](int64_t i, int64_t rows, int64_t j, int64_t columns, void* scratch) {
    loops->matmul(rows, columns, k, {a.data + i * a.row, a.row, a.col},
                  {b.data + j * b.col, b.row, b.col},
                  {c.data + i * c.row + j * c.col, c.row, c.col}, scratch);
  });
}

template void field_matmul(const Kernels&, const Modulus<uint32_t>&, int64_t, int64_t, int64_t,
                           Matrix<const uint32_t>, Matrix<const uint32_t>, Matrix<uint32_t>,
                           ThreadPool*);
template void field_matmul(const Kernels&, const Modulus<uint64_t>&, int64_t, int64_t, int64_t,
                           Matrix<const uint64_t>, Matrix<const uint64_t>, Matrix<uint64_t>,
                           ThreadPool*);
template void real_matmul(const Kernels&, int64_t, int64_t, int64_t, Matrix<const float>,
                          Matrix<const float>, Matrix<float>, ThreadPool*);
template void real_matmul(const Kernels&, int64_t, int64_t, int64_t, Matrix<const double>,
                          Matrix<const double>, Matrix<double>, ThreadPool*);

}  // namespace tessera
