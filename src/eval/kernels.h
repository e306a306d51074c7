// The SIMD inner loops of evaluation, one table per instruction set, chosen at run time. They are
// second implementations: tests compare every table with plain 128-bit arithmetic.
#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "eval/field.h"

namespace tessera {

// A matrix operand: element (i, j) is at data[i·row + j·col].
template <class T> struct Matrix {
  T* data;
  int64_t row, col;
};

// Blocking of all matrix products: packed panels of kKC × kNC and kMC × kKC.
inline constexpr int64_t kGemmMC = 64, kGemmKC = 256, kGemmNC = 256;

template <class W> struct FieldLoops {
  void (*add)(const Modulus<W>&, const W*, const W*, W*, int64_t);
  void (*sub)(const Modulus<W>&, const W*, const W*, W*, int64_t);
  void (*mul)(const Modulus<W>&, const W*, const W*, W*, int64_t);
  void (*scale)(const Modulus<W>&, const W*, W, W*, int64_t);
  void (*pow)(const Modulus<W>&, const W*, uint64_t exponent, W*, int64_t);
  W (*sum)(const Modulus<W>&, const W*, int64_t);
  // C = A·B for an M×K and a K×N matrix; `scratch` has gemm_scratch_bytes(m, n, k).
  void (*matmul)(const Modulus<W>&, int64_t m, int64_t n, int64_t k, Matrix<const W>,
                 Matrix<const W>, Matrix<W>, void* scratch);
};

template <class T> struct RealLoops {
  void (*matmul)(int64_t m, int64_t n, int64_t k, Matrix<const T>, Matrix<const T>, Matrix<T>,
                 void* scratch);
};

struct Kernels {
  const char* isa;
  FieldLoops<uint32_t> field31;
  FieldLoops<uint64_t> field61;
  RealLoops<float> f32;
  RealLoops<double> f64;

  template <class W> const FieldLoops<W>& field() const;
};
template <> inline const FieldLoops<uint32_t>& Kernels::field<uint32_t>() const { return field31; }
template <> inline const FieldLoops<uint64_t>& Kernels::field<uint64_t>() const { return field61; }

// The fastest table this CPU can run.
const Kernels& kernels();
// All tables this CPU can run, slowest first.
std::vector<const Kernels*> runnable_kernels();

int64_t gemm_scratch_bytes(int64_t m, int64_t n, int64_t k);

// Products split over the pool by rows and columns of C; the result does not depend on the split.
template <class W>
void field_matmul(const Kernels&, const Modulus<W>&, int64_t m, int64_t n, int64_t k,
                  Matrix<const W> a, Matrix<const W> b, Matrix<W> c, ThreadPool* pool = nullptr);
template <class T>
void real_matmul(const Kernels&, int64_t m, int64_t n, int64_t k, Matrix<const T> a,
                 Matrix<const T> b, Matrix<T> c, ThreadPool* pool = nullptr);

}  // namespace tessera
