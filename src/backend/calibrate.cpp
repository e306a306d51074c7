#include "backend/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "backend/cpu/compile.h"
#include "backend/measure.h"

namespace tessera {
namespace {

// Compiled with the flags of generated kernels, so that what is measured is what they can reach.
// read: sums n floats. fma: n rounds of 16 independent vector multiply-adds. triad: c = a*s + b.
constexpr const char* kProbe = R"(
typedef float V __attribute__((vector_size(VB), aligned(4), may_alias));
#define L (VB / 4)
extern "C" __attribute__((visibility("default"))) float probe_read(const float* p, long n) {
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
extern "C" __attribute__((visibility("default"))) float probe_fma(long n, float x) {
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
extern "C" __attribute__((visibility("default"))) void probe_triad(const float* a, const float* b, float* c, long n) {
  for (long i = 0; i + L <= n; i += L) *(V*)(c + i) = *(const V*)(a + i) * 1.5f + *(const V*)(b + i);
}
)";
constexpr int kFmasPerRound = 12;

struct Probe {
  float (*read)(const float*, long);
  float (*fma)(long, float);
  void (*triad)(const float*, const float*, float*, long);
};

volatile float sink;  // keeps results alive

// Best time of a run within about `budget_s`, in seconds.
double best_seconds(const std::function<void()>& run, double budget_s) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30, total = 0;
  run();
  for (int i = 0; i < 3 || total < budget_s; ++i) {
    auto start = Clock::now();
    run();
    double s = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, s);
    total += s;
  }
  return best;
}

struct ReadJob {
  const Probe* probe;
  const float* data;
  long floats_per_chunk;
};

// Bytes per second that all threads of the pool together read from a buffer of `bytes`.
double shared_read(const Probe& probe, KernelPool& pool, const AlignedBuffer& buffer,
                   int64_t bytes) {
  const long chunk = 64 * 1024 / 4;
  const long chunks = std::max<long>(1, bytes / 4 / chunk);
  ReadJob job{&probe, static_cast<const float*>(buffer.data()), chunk};
  auto body = [](void* context, long begin, long end, int) {
    const ReadJob& j = *static_cast<ReadJob*>(context);
    sink = j.probe->read(j.data + begin * j.floats_per_chunk, (end - begin) * j.floats_per_chunk);
  };
  double s = best_seconds([&] { pool.parallel_for(chunks, 0, body, &job); }, 0.2);
  return double(chunks) * double(chunk) * 4 / s;
}

int64_t private_cache_bytes() {
  long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 512 * 1024;
}

int64_t memory_bytes() {
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? int64_t(pages) * size : int64_t(4) << 30;
}

// Two significant digits: more would pretend a precision that no machine keeps.
double rounded(double x) {
  double unit = 1;
  while (x / unit >= 100) unit *= 10;
  return double(int64_t(x / unit + 0.5)) * unit;
}

}  // namespace

Target calibrate(Cache& cache, KernelPool& pool, CpuIsa isa) {
  CompileOptions options;
  options.isa = isa;
  std::string source = "#define VB " + std::to_string(vector_bytes(isa)) + "\n" + kProbe;
  auto library = compile_and_load(source, options, cache);
  Probe probe;
  probe.read = reinterpret_cast<decltype(probe.read)>(library->symbol("probe_read"));
  probe.fma = reinterpret_cast<decltype(probe.fma)>(library->symbol("probe_fma"));
  probe.triad = reinterpret_cast<decltype(probe.triad)>(library->symbol("probe_triad"));

  Target t = default_cpu_target();
  const double old_matmul = t.matmul_rate(DType::F32), old_pointwise = t.pointwise_rate(DType::F32);
  t.name = "this-cpu";
  t.cores = pool.threads();
  t.vector_bytes = vector_bytes(isa);
  t.vector_registers = vector_registers(isa);

  const int64_t l2 = private_cache_bytes();
  const int64_t last = last_level_cache_bytes();
  const int64_t memory = memory_bytes();
  const int64_t large =
      std::min<int64_t>({std::max<int64_t>(2 * last, 256 << 20), memory / 4, int64_t(1) << 30});
  AlignedBuffer buffer{size_t(large)};

  t.levels.clear();
  t.levels.push_back({"dram", memory, rounded(shared_read(probe, pool, buffer, large)), false});
  if (last > 2 * l2 * t.cores) {
    double bandwidth = shared_read(probe, pool, buffer, (last + l2 * t.cores) / 2);
    t.levels.push_back({"l3", last, rounded(bandwidth), false});
  }
  const long half = l2 / 2 / 4;
  const float* data = static_cast<const float*>(buffer.data());
  double read = best_seconds([&] { sink = probe.read(data, half); }, 0.1);
  t.levels.push_back({"l2", l2, rounded(double(half) * 4 / read), true});

  const long rounds = 200'000;
  const int lanes = vector_bytes(isa) / 4;
  double fma = best_seconds([&] { sink = probe.fma(rounds, 0.999f); }, 0.1);
  // Register-only peak; a blocked matmul reaches about nine tenths of it.
  double matmul = 0.9 * 2 * kFmasPerRound * double(lanes) * double(rounds) / fma;
  const long n = l2 / 4 / 4;  // three arrays in the private cache
  float* c = static_cast<float*>(buffer.data()) + 2 * n;
  double triad = best_seconds([&] { probe.triad(data, data + n, c, n); }, 0.1);
  double pointwise = 2 * double(n) / triad;
  for (double& rate : t.matmul_flops) rate = rounded(rate * matmul / old_matmul);
  for (double& rate : t.pointwise_ops) rate = rounded(rate * pointwise / old_pointwise);

  auto nothing = [](void*, long, long, int) {};
  double join = best_seconds(
      [&] {
        for (int i = 0; i < 100; ++i) pool.parallel_for(pool.threads(), 1, nothing, nullptr);
      },
      0.05);
  // What a launch costs beyond fork and join (looking up buffers, calling) is small and fixed.
  t.launch_seconds = rounded(join / 100 * 1e9 + 500) * 1e-9;
  return t;
}

}  // namespace tessera
