#include "backend/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "backend/measure.h"
#include "backend/probe.h"
#include "base/wall_clock.h"

namespace tessera {
namespace {

// Best time of a run within about `budget_s`, in seconds.
double best_seconds(const std::function<void()>& run, double budget_s) {
  double best = 1e30, total = 0;
  run();
  for (int i = 0; i < 3 || total < budget_s; ++i) {
    const WallClock clock;
    run();
    const double s = clock.seconds();
    best = std::min(best, s);
    total += s;
  }
  return best;
}

// Bytes per second that all threads of the pool together read from a buffer of `bytes`.
double shared_read(const Probe& probe, KernelPool& pool, const AlignedBuffer& buffer,
                   int64_t bytes) {
  double s = best_seconds([&] { probe.read_all(pool, buffer, bytes); }, 0.2);
  return double(bytes) / s;
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
  Probe probe(cache, isa);

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
  double read = best_seconds([&] { probe.read(data, half); }, 0.1);
  t.levels.push_back({"l2", l2, rounded(double(half) * 4 / read), true});

  const long rounds = 200'000;
  double fma = best_seconds([&] { probe.fma(rounds); }, 0.1);
  // Register-only peak; a blocked matmul reaches about nine tenths of it.
  double matmul = 0.9 * probe.fma_flops(DType::F32) * double(rounds) / fma;
  const long n = l2 / 4 / 4;  // three arrays in the private cache
  float* c = static_cast<float*>(buffer.data()) + 2 * n;
  double triad = best_seconds([&] { probe.triad(data, data + n, c, n); }, 0.1);
  double pointwise = 2 * double(n) / triad;
  for (double& rate : t.matmul_flops) rate = rounded(rate * matmul / old_matmul);
  for (double& rate : t.pointwise_ops) rate = rounded(rate * pointwise / old_pointwise);

  auto nothing = [](long, long, int) {};
  double join = best_seconds(
      [&] {
        for (int i = 0; i < 100; ++i) pool.parallel_for(pool.threads(), 1, nothing);
      },
      0.05);
  // What a launch costs beyond fork and join (looking up buffers, calling) is small and fixed.
  t.launch_seconds = rounded(join / 100 * 1e9 + 500) * 1e-9;
  return t;
}

}  // namespace tessera
