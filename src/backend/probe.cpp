#include "backend/probe.h"

#include <algorithm>
#include <string>

#include "backend/cpu/compile.h"

namespace tessera {
namespace {

// read: sums n floats. fma: n rounds of independent vector multiply-adds. dot: the same of bf16 dot
// products or tiles (by name, so that the compiler need not know them). triad: c = a*s + b.
constexpr const char* kProbe = R"(
typedef float V __attribute__((vector_size(VB), aligned(4), may_alias));
#define L (VB / 4)
#define API extern "C" __attribute__((visibility("default")))
API float probe_read(const float* p, long n) {
  V a = {}, b = {}, c = {}, d = {};
  for (long i = 0; i + 4 * L <= n; i += 4 * L) {
    __builtin_prefetch(p + i + 2048, 0, 2);
    a += *(const V*)(p + i);
    b += *(const V*)(p + i + L);
    c += *(const V*)(p + i + 2 * L);
    d += *(const V*)(p + i + 3 * L);
  }
  a += b + c + d;
  float s = 0;
  for (int i = 0; i < L; ++i) s += a[i];
  return s;
}
API float probe_fma(long n, float x) {
  // All different, or the compiler computes one and copies it.
  const V z = {};
  V r0 = z + x, r1 = r0 + x, r2 = r1 + x, r3 = r2 + x, r4 = r3 + x, r5 = r4 + x, r6 = r5 + x;
  V r7 = r6 + x, s0 = r7 + x, s1 = s0 + x, s2 = s1 + x, s3 = s2 + x;
  V m = z + x, k = z + 1.0f;
  for (long i = 0; i < n; ++i) {
    r0 = r0 * m + k; r1 = r1 * m + k; r2 = r2 * m + k; r3 = r3 * m + k;
    r4 = r4 * m + k; r5 = r5 * m + k; r6 = r6 * m + k; r7 = r7 * m + k;
    s0 = s0 * m + k; s1 = s1 * m + k; s2 = s2 * m + k; s3 = s3 * m + k;
  }
  r0 += r1 + r2 + r3 + r4 + r5 + r6 + r7 + s0 + s1 + s2 + s3;
  float s = 0;
  for (int i = 0; i < L; ++i) s += r0[i];
  return s;
}
API float probe_dot(long n, float x) {
#if TILES
  struct {
    unsigned char palette, start, zero[14];
    unsigned short bytes[16];
    unsigned char rows[16];
  } s __attribute__((aligned(64))) = {};
  s.palette = 1;
  for (int i = 0; i < 8; ++i) s.bytes[i] = 64, s.rows[i] = 16;
  __asm__ volatile("ldtilecfg %0" : : "m"(s));
#define D(r) "tdpbf16ps %%tmm7, %%tmm6, %%tmm" r "\n\t"
  for (long i = 0; i < n; ++i) __asm__ volatile(D("0") D("1") D("2") D("3") : : : "memory");
  __asm__ volatile("tilerelease" : : : "memory");
  return 0;
#elif DOT
  const V z = {};
  V r0 = z, r1 = z, r2 = z, r3 = z, r4 = z, r5 = z, r6 = z, r7 = z, r8 = z, r9 = z, ra = z, rb = z;
  V m = z + x;
#define D(r) "vdpbf16ps %12, %12, " r "\n\t"
  for (long i = 0; i < n; ++i)
    __asm__(D("%0") D("%1") D("%2") D("%3") D("%4") D("%5") D("%6") D("%7") D("%8") D("%9")
            D("%10") D("%11")
            : "+v"(r0), "+v"(r1), "+v"(r2), "+v"(r3), "+v"(r4), "+v"(r5), "+v"(r6), "+v"(r7),
              "+v"(r8), "+v"(r9), "+v"(ra), "+v"(rb)
            : "v"(m));
  return r0[0] + r1[0] + r2[0] + r3[0] + r4[0] + r5[0] + r6[0] + r7[0] + r8[0] + r9[0] + ra[0] + rb[0];
#else
  return 0;
#endif
}
API void probe_triad(const float* a, const float* b, float* c, long n) {
  for (long i = 0; i + L <= n; i += L) *(V*)(c + i) = *(const V*)(a + i) * 1.5f + *(const V*)(b + i);
}
)";
constexpr int kFmasPerRound = 12;
constexpr double kTileFlops = 4 * 2.0 * 16 * 16 * 32;  // of four products of tiles
constexpr long kChunkFloats = 64 * 1024 / 4;

volatile float sink;  // keeps results alive

template <class F> F symbol(const Library& library, const char* name) {
  return reinterpret_cast<F>(library.symbol(name));
}

}  // namespace

Probe::Probe(Cache& cache, CpuIsa isa) : isa_(isa), bf16_(isa == CpuIsa::Amx || has_bf16_dot(isa)) {
  CompileOptions options;
  options.isa = isa;
  library_ = compile_and_load("#define VB " + std::to_string(vector_bytes(isa)) + "\n#define DOT " +
                                  std::to_string(int(bf16_)) + "\n#define TILES " +
                                  std::to_string(int(isa == CpuIsa::Amx)) + "\n" + kProbe,
                              options, cache);
  read_ = symbol<decltype(read_)>(*library_, "probe_read");
  fma_ = symbol<decltype(fma_)>(*library_, "probe_fma");
  dot_ = symbol<decltype(dot_)>(*library_, "probe_dot");
  triad_ = symbol<decltype(triad_)>(*library_, "probe_triad");
}

Probe::~Probe() = default;

bool Probe::dot_products(DType dtype) const { return dtype == DType::BF16 && bf16_; }

void Probe::read(const float* data, long floats) const { sink = read_(data, floats); }

void Probe::triad(const float* a, const float* b, float* c, long n) const { triad_(a, b, c, n); }

void Probe::fma(long rounds, DType dtype) const {
  sink = (dot_products(dtype) ? dot_ : fma_)(rounds, 0.999f);
}

double Probe::fma_flops(DType dtype) const {
  if (dot_products(dtype) && isa_ == CpuIsa::Amx) return kTileFlops;
  return 2.0 * kFmasPerRound * (vector_bytes(isa_) / 4) * (dot_products(dtype) ? 2 : 1);
}

void Probe::read_all(KernelPool& pool, const AlignedBuffer& buffer, int64_t bytes) const {
  const auto* data = static_cast<const float*>(buffer.data());
  const long floats = long(std::min<int64_t>(bytes, int64_t(buffer.size())) / 4);
  const long chunks = (floats + kChunkFloats - 1) / kChunkFloats;
  pool.parallel_for(chunks, 0, [&](long begin, long end, int) {
    const long from = begin * kChunkFloats, to = std::min(end * kChunkFloats, floats);
    read(data + from, to - from);
  });
}

void Probe::fma_all(KernelPool& pool, long rounds, DType dtype) const {
  pool.parallel_for(
      pool.threads(), 1,
      [&](long begin, long end, int) {
        for (long i = begin; i < end; ++i) fma(rounds, dtype);
      });
}

}  // namespace tessera
