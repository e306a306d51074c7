// The GPU model: laws that pruning and ranking rest on, and orders of magnitude by hand.
#include "cost/gpu_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/analytical.h"
#include "ir/text.h"
#include "places.h"

namespace tessera {
namespace {

Target target(const std::string& name) { return find_target(name, source_dir() + "/targets"); }

// One kernel's quantities before a machine sees them.
struct Draw {
  double blocks, iterations, matmul_rows, matmul_depth, points, tensor, again, iteration, other,
      accumulators, steps;
};

Draw draw(Rng& rng) {
  auto pow2 = [&](int low, int high) {
    return std::exp2(low + double(rng.below(uint64_t(high - low))) + rng.unit());
  };
  return {std::ceil(pow2(0, 14)),
          std::ceil(pow2(0, 8)),
          std::ceil(pow2(0, 8)),
          std::ceil(pow2(2, 12)),
          pow2(4, 18),
          pow2(8, 30),
          1 + 3 * rng.unit(),
          pow2(8, 15),
          pow2(8, 16),
          pow2(0, 15),
          pow2(0, 8)};
}

KernelWork work(const GpuMachine& m, const Draw& d) {
  KernelWork w;
  w.blocks = d.blocks;
  w.iterations = d.iterations;
  w.block_compute = m.matmul(DType::F16, 1, d.matmul_rows, 64, d.matmul_depth) +
                    m.pointwise(OpKind::Exp, DType::F16, d.points);
  m.add_traffic(w, d.tensor, d.tensor * d.again, INFINITY);
  m.add_traffic(w, d.points, d.points, d.points);
  w.iteration_bytes = d.iteration;
  w.other_bytes = d.other;
  w.accumulators = d.accumulators;
  w.steps = d.steps;
  return w;
}

TEST(GpuModel, BoundsAreBelowCosts) {
  Rng rng(1);
  for (const char* name : {"a100", "h100", "h200", "b200"}) {
    const GpuMachine m(target(name));
    for (int i = 0; i < 2000; ++i) {
      const Draw d = draw(rng);
      const KernelWork w = work(m, d);
      const double first = m.first_pass(d.tensor, INFINITY) + m.first_pass(d.points, d.points);
      EXPECT_LE(m.bound(w.blocks * w.block_compute, first), m.seconds(w) * (1 + 1e-9));
      EXPECT_LE(m.launch(), m.bound(0, 0));
    }
  }
}

// Tiles never do less than the whole product, so that a bound from whole operators stays one.
TEST(GpuModel, TilesOfAProductAreNoCheaperThanTheWhole) {
  Rng rng(2);
  const GpuMachine machine(target("h100"));
  for (int i = 0; i < 5000; ++i) {
    const DType t = rng.below(2) ? DType::F16 : DType::F32;
    const double parts[3] = {double(1 + rng.below(9)), double(1 + rng.below(9)),
                             double(1 + rng.below(9))};
    const double tile[3] = {double(1 + rng.below(200)), double(1 + rng.below(200)),
                            double(1 + rng.below(200))};
    const double whole =
        machine.matmul(t, 1, parts[0] * tile[0], parts[1] * tile[1], parts[2] * tile[2]);
    const double tiles =
        parts[0] * parts[1] * parts[2] * machine.matmul(t, 1, tile[0], tile[1], tile[2]);
    EXPECT_LE(whole, tiles * (1 + 1e-9)) << tile[0] << "·" << parts[0] << " " << tile[1] << "·"
                                         << parts[1] << " " << tile[2] << "·" << parts[2];
  }
}

TEST(GpuModel, MoreIsNeverCheaper) {
  Rng rng(3);
  const GpuMachine m(target("h200"));
  using Field = double Draw::*;
  for (int i = 0; i < 2000; ++i) {
    const Draw d = draw(rng);
    const double before = m.seconds(work(m, d));
    for (Field f : {&Draw::matmul_rows, &Draw::matmul_depth, &Draw::points, &Draw::tensor,
                    &Draw::again, &Draw::other, &Draw::accumulators, &Draw::steps}) {
      Draw more = d;
      more.*f = d.*f * (1 + 2 * rng.unit());
      EXPECT_LE(before, m.seconds(work(m, more)) * (1 + 1e-9)) << (d.*f) << " " << (more.*f);
    }
  }
}

TEST(GpuModel, BetterMachinesAreNeverSlower) {
  Rng rng(4);
  const Target base = target("h100");
  const GpuMachine slow(base);
  for (int i = 0; i < 500; ++i) {
    const Draw d = draw(rng);
    const double before = slow.seconds(work(slow, d));
    for (int what = 0; what < 5; ++what) {
      Target better = base;
      if (what == 0) better.levels[0].bandwidth *= 1.5;
      if (what == 1) better.levels[1].bandwidth *= 1.5;
      if (what == 2) better.sm.dram_latency /= 2;
      if (what == 3) better.launch_in_graph /= 2;
      if (what == 4) better.sm.shared *= 2;
      const GpuMachine fast(better);
      EXPECT_LE(fast.seconds(work(fast, d)), before * (1 + 1e-9)) << what;
    }
  }
}

// 128 blocks that each read 32 columns of a [4096, 4096] matrix, 64 rows at a time.
KernelWork skinny(const GpuMachine& m, double blocks, double depth) {
  KernelWork w;
  w.blocks = blocks;
  const double columns = 4096 / blocks;
  w.iterations = 4096 / depth;
  w.block_compute = w.iterations * m.matmul(DType::F16, 1, 16, columns, depth);
  const double x = 16 * 4096 * 2.0, weights = 4096 * 4096 * 2.0;
  m.add_traffic(w, x, x * blocks, INFINITY);
  m.add_traffic(w, weights, weights, INFINITY);
  m.add_traffic(w, x, x, x);
  w.iteration_bytes = (16 + columns) * depth * 2;
  w.accumulators = 16 * columns;
  w.steps = w.iterations;
  return w;
}

TEST(GpuModel, NeedsEnoughBlocksAndBytesInFlight) {
  const GpuMachine m(target("h200"));
  const double limit = 4096 * 4096 * 2.0 / 4.3e12;
  const double all = m.seconds(skinny(m, 128, 256)), few = m.seconds(skinny(m, 16, 256)),
               short_tiles = m.seconds(skinny(m, 128, 16));
  EXPECT_GT(all, limit);
  EXPECT_LT(all, 1.6 * limit);
  EXPECT_GT(few, 2.5 * all);          // 16 of 132 multiprocessors: their ports are the limit
  EXPECT_GT(short_tiles, 1.3 * all);  // too little on its way to each, and 256 iterations
  const GpuTimes t = m.times(skinny(m, 128, 256));
  EXPECT_EQ(t.stages, 2 + (t.in_flight > 25e3));  // more stages only where they are needed
  EXPECT_GE(t.in_flight, 0.9 * 4.3e12 / 132 * 700e-9);
}

TEST(GpuModel, TensorCoresMultiplyF32OnlyWhereItMayBeRounded) {
  Target t = target("h200");
  const GpuMachine plain(t);
  t.tf32 = true;
  const GpuMachine rounded(t);
  EXPECT_GT(plain.matmul(DType::F32, 1, 1024, 1024, 1024),
            5 * rounded.matmul(DType::F32, 1, 1024, 1024, 1024));
  for (const DType d : {DType::F16, DType::BF16, DType::F64})
    EXPECT_EQ(plain.matmul(d, 1, 1024, 1024, 1024), rounded.matmul(d, 1, 1024, 1024, 1024));
  // Few filters are multiplied by lanes.
  Machine::Convolution few;
  few.filters = 4, few.channels = 64, few.taps = 9, few.pixels = {28, 28};
  EXPECT_EQ(plain.convolution(DType::F32, few), rounded.convolution(DType::F32, few));
}

TEST(GpuModel, AnUnevenLastWaveCosts) {
  const GpuMachine m(target("h200"));
  auto seconds = [&](double blocks) {
    KernelWork w;
    w.blocks = blocks;
    w.block_compute = 20e-6;
    w.other_bytes = 200e3;  // one block at a time
    return m.seconds(w);
  };
  EXPECT_NEAR(seconds(132), seconds(66), 1e-9);
  EXPECT_GT(seconds(133), 1.7 * seconds(132));
  EXPECT_NEAR(seconds(264), seconds(133), 1e-9);
}

// A part of 16 multiprocessors has room for one cluster of 12, and for two of 8.
TEST(GpuModel, ClustersFillPartsOfTheGpu) {
  const GpuMachine m(target("h200"));
  const auto seconds = [&](int64_t groups, int64_t size) {
    KernelWork first;
    first.blocks = double(groups * size);
    first.block_compute = 20e-6;
    first.other_bytes = 200e3;  // one block at a time
    return m.joined_times(first, KernelWork(), {OpId(0), OpId(1), {}, groups, size, size}).seconds;
  };
  EXPECT_NEAR(seconds(16, 8), seconds(8, 16), 1e-7);
  EXPECT_NEAR(seconds(8, 12), seconds(8, 16), 1e-7);
  EXPECT_GT(seconds(10, 12), 1.6 * seconds(8, 12));
  EXPECT_GT(seconds(9, 16), 1.6 * seconds(8, 16));
}

TEST(GpuModel, LaunchesFromTheHostTakeLonger) {
  const GpuMachine graph(target("h200")), host(target("h200"), false);
  KernelWork w;
  EXPECT_NEAR(host.seconds(w) - graph.seconds(w), 1.2e-6, 1e-9);
}

TEST(GpuModel, OccupancyFollowsTheScarcestResource) {
  const GpuMachine m(target("h200"));
  KernelWork w;
  w.blocks = 132 * 64;
  EXPECT_EQ(m.times(w).blocks_per_sm, 9);  // 56 registers, 128 threads: 65536 / 7168
  w.other_bytes = 60 << 10;
  EXPECT_EQ(m.times(w).blocks_per_sm, 3);  // 61 KB of 228
  w.accumulators = 128 * 256;
  EXPECT_EQ(m.times(w).threads, 256);
  EXPECT_EQ(m.times(w).blocks_per_sm, 1);  // 184 registers, 256 threads
  EXPECT_EQ(m.times(w).waves, 64);
  const double fits = m.seconds(w);
  w.accumulators = 1 << 20;  // 4 MB in registers of one multiprocessor: most are spilled
  EXPECT_GT(m.seconds(w), 10 * fits);
}

TEST(GpuModel, ScalesMultiplyTheirTerms) {
  const Target base = target("h200");
  Rng rng(5);
  for (int i = 0; i < 300; ++i) {
    const Draw d = draw(rng);
    const GpuMachine plain(base);
    const GpuTimes t = plain.times(work(plain, d));
    EXPECT_NEAR(t.scaled({}), t.seconds, 1e-12);
    EXPECT_NEAR(t.scaled({2, 2, 2, 2}), 2 * t.seconds, 1e-9 * t.seconds);
    Target doubled = base;
    doubled.scale = {2, 2, 2, 2};
    const GpuMachine twice(doubled);
    EXPECT_NEAR(twice.seconds(work(twice, d)), 2 * t.seconds, 1e-6 * t.seconds);
  }
}

TEST(GpuModel, LibrariesReachHalfTheBandwidthInProductsOfFewRows) {
  const GpuMachine m(target("h200"));
  LibraryCall call;
  call.rows = 16;
  call.depth = call.columns = 4096;
  const double limit = call.bytes() / 4.3e12;
  EXPECT_GT(m.library(call), 1.8 * limit);
  EXPECT_LT(m.library(call), 2.6 * limit);
  call.rows = 8192;
  call.depth = call.columns = 8192;
  const double peak = 2.0 * 8192 * 8192 * 8192 / 788e12;
  EXPECT_GT(m.library(call), peak);
  EXPECT_LT(m.library(call), 1.3 * peak);
  Target none = target("h200");
  none.libraries.clear();
  EXPECT_TRUE(std::isinf(GpuMachine(none).library(call)));
  EXPECT_EQ(m.library_times(call).scaled({}), m.library(call));
  EXPECT_TRUE(std::isinf(Machine::of(default_cpu_target())->library(call)));
}

TEST(GpuModel, AttentionAndConvolutionsByALibrary) {
  const GpuMachine m(target("h200"));
  LibraryCall call;
  call.kind = LibraryCall::Kind::Attention;
  call.dtype = DType::BF16;
  call.batch = 64;
  call.rows = call.columns = 4096;
  call.depth = call.value_depth = 128;
  // 484 to 702 TFLOP/s are published for it.
  const double rate = 4.0 * 64 * 4096 * 4096 * 128 / m.library(call);
  EXPECT_GT(rate, 484e12);
  EXPECT_LT(rate, 702e12);
  const double all = m.library(call);
  call.causal = true;
  EXPECT_LT(m.library(call), 0.6 * all);
  EXPECT_GT(m.library(call), 0.45 * all);
  // Decoding reads keys and values once for a group of heads.
  call.causal = false;
  call.batch = 256;
  call.group = 4;
  call.rows = 1;
  const double limit = call.bytes() / 4.3e12;
  EXPECT_GT(m.library(call), limit);
  EXPECT_LT(m.library(call), 1.5 * limit);

  LibraryCall conv;
  conv.kind = LibraryCall::Kind::Convolution;
  conv.batch = 64;
  conv.depth = conv.columns = 256;
  WindowAxis axis;
  axis.in = axis.out = 56;
  axis.taps = 3;
  axis.low = axis.high = 1;
  conv.axes = {axis, axis};
  const double peak = 2.0 * 64 * 256 * 256 * 56 * 56 * 9 / 788e12;
  EXPECT_GT(m.library(conv), 1.1 * peak);
  EXPECT_LT(m.library(conv), 1.6 * peak);
  EXPECT_EQ(m.library_times(conv).scaled({}), m.library(conv));
}

TEST(GpuModel, WhatKernelsStoreIsReadFromTheCache) {
  const AnalyticalModel model(target("h200"));
  const Graph g = parse(R"(graph g {
  X = input : f32[1024,2048]
  Y = exp X
  Z = exp Y
  return Z
})");
  const auto kernels = model.kernels(g);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_GT(kernels[0].work.shared_traffic, 1.05 * kernels[1].work.shared_traffic);
  EXPECT_NEAR(model.cost(g).seconds, kernels[0].seconds + kernels[1].seconds, 1e-12);
}

}  // namespace
}  // namespace tessera
