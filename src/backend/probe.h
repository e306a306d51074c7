// Small loops that do nothing but read memory or multiply and add: what generated code can at most
// reach on this machine right now. Calibration and the benchmarks' limits use them.
#pragma once
#include <memory>

#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/runtime.h"
#include "ir/types.h"

namespace tessera {

class Library;

class Probe {
 public:
  // Compiles the loops with the flags of generated kernels; throws what compile_and_load throws.
  explicit Probe(Cache& cache, CpuIsa isa = best_isa());
  ~Probe();

  // Sums `floats` floats on the calling thread.
  void read(const float* data, long floats) const;
  // c[i] = 1.5 a[i] + b[i].
  void triad(const float* a, const float* b, float* c, long n) const;
  // `rounds` rounds of independent multiply-adds in registers, on the calling thread.
  void fma(long rounds, DType = DType::F32) const;
  // FLOP of one round on one thread: bf16 counts its dot products where the processor has them.
  double fma_flops(DType) const;

  // The same on all threads of a pool: `bytes` of a buffer are read once; every thread does
  // `rounds`.
  void read_all(KernelPool&, const AlignedBuffer&, int64_t bytes) const;
  void fma_all(KernelPool&, long rounds, DType) const;

 private:
  bool dot_products(DType) const;

  CpuIsa isa_;
  bool bf16_ = false;  // there are products of bf16 tiles, or dot products of pairs
  std::unique_ptr<Library> library_;
  float (*read_)(const float*, long);
  float (*fma_)(long, float);
  float (*dot_)(long, float);
  void (*triad_)(const float*, const float*, float*, long);
};

}  // namespace tessera
