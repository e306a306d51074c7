#include "cost/gpu_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr double kPart = 16;  // multiprocessors of a GPC of H100, H200, B200: 16, some have 18 [wp]
constexpr double kBarrierSeconds =
    30e-9;  // a barrier before an operator, and the latency of its chain
constexpr int kMostStages = 16;
// Registers of a thread that are not accumulators: addresses, fragments, temporaries.
constexpr double kOtherRegisters = 56, kMostRegisters = 255;
constexpr double kMinThreads = 128, kMaxThreads = 1024;

// Special functions per element, besides multiply-adds.
double specials(OpKind kind) {
  if (kind == OpKind::Mod) return 0;
  if (is_one_of(kind, OpKind::Sigmoid, OpKind::Silu, OpKind::Pow, OpKind::Power)) return 2;
  return has(kind, algebra::Division) || has(kind, algebra::Call) ? 1 : 0;
}

double rounded_up(double n, double to) { return std::ceil(n / to) * to; }

}  // namespace

GpuMachine::GpuMachine(Target target, bool graphs) : Machine(std::move(target)) {
  launch_ = target_.scale.launch * (graphs ? target_.launch_in_graph : target_.launch_seconds);
  for (MemoryLevel& l : target_.levels)
    if (!l.per_core) l.bandwidth /= target_.scale.memory;
  block_memory_bandwidth_ = target_.levels.back().bandwidth;
  l2_bandwidth_ = target_.levels[target_.levels.size() - 2].bandwidth;
  core_bandwidth_ = target_.sm.port / target_.scale.memory;
  special_.assign(weight_.size(), 0);
  Target lanes = target_;
  lanes.tf32 = false;
  for (int i = 0; i < kNumDTypes; ++i) lanes_[size_t(i)] = lanes.matmul_rate(DType(i));
  for (OpKind k : all_op_kinds()) special_[size_t(k)] = specials(k) / target_.sm.special;
}

double GpuMachine::matmul(DType t, double batch, double m, double n, double k) const {
  const bool tensor = is_sixteen(t) || (t == DType::F32 && target_.tf32);
  return product(t, tensor, batch, m, n, k);
}

double GpuMachine::product(DType t, bool tensor, double batch, double m, double n, double k) const {
  // Without tensor cores, lanes compute tiles of 8 by 8 each.
  const double e = size_in_bytes(t), depth = tensor ? rounded_up(k, 32 / e) : k;
  const double rate = tensor ? fma_[size_t(t)] : lanes_[size_t(t)];
  auto shaped = [&](double rows, double columns) {
    const double r = rounded_up(rows, tensor ? 16 : 4), c = rounded_up(columns, tensor ? 8 : 4);
    // What warps read from shared memory: each operand once per tile of 64 of the other side.
    const double bytes = depth * e * (r * std::ceil(c / 64) + c * std::ceil(r / 64));
    return std::max(2 * r * c * depth / rate, bytes / block_memory_bandwidth_);
  };
  return target_.scale.compute * batch * std::min(shaped(m, n), shaped(n, m));
}

// Kernels of our own do it: a product with the columns of all windows, which L2 takes and gives
// (backend/cuda/windows.h), or few filters or terms by lanes.
double GpuMachine::convolution(DType t, const Convolution& c) const {
  double pixels = product_of<double>(c.pixels);
  const double depth = c.channels * c.taps;
  if (c.filters < 8 || depth < 16)
    return product(t == DType::F64 ? t : DType::F32, false, c.images, c.filters, pixels, depth);
  const double columns = c.taps > 1 ? c.images * pixels * depth * size_in_bytes(t) : 0;
  return matmul(t, c.images, c.filters, pixels, depth) +
         2 * columns / l2_bandwidth_ * target_.cores;
}

double GpuMachine::pointwise(OpKind kind, DType t, double n) const {
  return target_.scale.compute * n *
         std::max(weight_[size_t(kind)] / simple_[size_t(t)], special_[size_t(kind)]);
}
double GpuMachine::reduce(DType t, double n) const {
  return target_.scale.compute * n / simple_[size_t(t)];
}
double GpuMachine::move(DType t, double n) const {
  return target_.scale.compute * 2 * n / simple_[size_t(t)];
}

double GpuMachine::resident(double) const { return std::numeric_limits<double>::infinity(); }

void GpuMachine::add_traffic(KernelWork& w, double tensor_bytes, double moved,
                             double resident) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  w.cache_traffic += moved / l2_bandwidth_;
  w.shared_traffic += first_pass(tensor_bytes, resident);
  const double cache = 0.75 * double(target_.levels[target_.levels.size() - 2].capacity);
  if (moved <= tensor_bytes || tensor_bytes <= cache) return;
  // Too large to be there still; but blocks of one wave share what they read: a square of blocks
  // reads rows and columns of tiles once.
  const double sharing = std::sqrt(std::min<double>(w.blocks, target_.cores));
  w.shared_traffic += first_pass(moved - tensor_bytes, tensor_bytes) / sharing;
}

void GpuMachine::add_reread(KernelWork& w, double moved, double block_bytes) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  w.cache_traffic += moved / l2_bandwidth_;
  w.shared_traffic += first_pass(moved, block_bytes * std::min<double>(w.blocks, target_.cores));
}

double GpuMachine::line_waste(double tile, double extent, double element_bytes, double) const {
  if (tile >= extent) return 1;
  // Memory moves 64 bytes at a time; shorter pieces also take more instructions per byte.
  const double piece = tile * element_bytes;
  return std::max(1.0, 64 / piece) + 8 / piece;
}

double GpuTimes::scaled(const Scales& s) const {
  const double m = s.memory * memory, c = s.compute * compute, k = s.latency * chain;
  const double busy = std::max(c, m) + overlap * std::min(c, m);
  return s.launch * launch + s.latency * first_load + std::max(busy, k) +
         kHidden * std::min(busy, k);
}

GpuTimes GpuMachine::times(const KernelWork& w, double cores) const {
  const Multiprocessor& sm = target_.sm;
  GpuTimes t;
  // Accumulators stay in registers: as few threads as have room for them.
  double threads = kMinThreads, registers = 0;
  for (;; threads *= 2) {
    registers = kOtherRegisters + w.accumulators / threads;
    if (registers <= 0.8 * kMostRegisters || threads == kMaxThreads) break;
  }
  // Accumulators beyond them go to memory and come back in every iteration.
  const double spilled = std::max(0.0, registers - kMostRegisters) * threads * 4;
  registers = std::min(rounded_up(registers, 8), kMostRegisters);
  if (cores == 0) cores = target_.cores;
  const double n = std::ceil(w.blocks / cores);  // of the busiest multiprocessor
  const double compute = n * w.block_compute;
  const double block_bytes = w.core_traffic * core_bandwidth_;
  const bool loop = w.iterations > 1 && w.iteration_bytes > 0;
  t.seconds = std::numeric_limits<double>::infinity();
  for (int stages = loop ? 2 : 1; stages <= (loop ? kMostStages : 1); ++stages) {
    const double shared = w.other_bytes + stages * w.iteration_bytes;
    if (stages > 2 && shared > double(target_.block_bytes())) break;
    double at_once = std::floor(double(sm.shared) / (shared + double(sm.reserved)));
    at_once = std::min(at_once, std::floor(sm.registers / (registers * threads)));
    at_once = std::min({at_once, std::floor(sm.threads / threads), double(sm.blocks)});
    at_once = std::min(std::max(1.0, at_once), n);
    const double waves = std::ceil(n / at_once);
    // In flight: all that a block without a loop reads, else the tiles ahead of the one in use.
    const double ahead = loop ? (stages - 1) * w.iteration_bytes : block_bytes;
    const double in_flight = std::max(1.0, at_once * ahead);
    const double reach =
        std::min(core_bandwidth_, in_flight / (target_.scale.memory * sm.dram_latency));
    const double memory = std::max({w.shared_traffic, w.cache_traffic, n * block_bytes / reach}) +
                          n * 2 * spilled * w.iterations / core_bandwidth_;
    GpuTimes now;
    now.launch = launch_;
    now.first_load = target_.scale.latency * sm.dram_latency;
    now.chain =
        target_.scale.latency *
        (waves * (target_.block_seconds + (loop ? w.iterations : 0) * target_.iteration_seconds +
                  w.steps * kBarrierSeconds + w.restarts * sm.l2_latency) +
         (waves - 1) * sm.dram_latency);
    now.memory = memory;
    now.overlap = std::max(kHidden, 1 / (n * (loop ? w.iterations : 1)));
    now.compute = compute;
    now.seconds = now.scaled({});
    now.threads = int(threads);
    now.blocks_per_sm = at_once;
    now.waves = waves;
    now.stages = stages;
    now.in_flight = in_flight;
    if (now.seconds < t.seconds) t = now;
    if (in_flight >= core_bandwidth_ * target_.scale.memory * sm.dram_latency) break;
  }
  return t;
}

GpuTimes GpuMachine::joined_times(const KernelWork& first, const KernelWork& second,
                                  const KernelJoin& join) const {
  const Multiprocessor& sm = target_.sm;
  // A cluster's blocks share what there is to do, else one does it all.
  const bool cluster = join.arrivals <= sm.cluster;
  // A cluster lies within one part of the GPU; what a part has beyond whole clusters stays idle.
  const double whole = cluster ? std::floor(kPart / double(join.arrivals)) : 0;
  GpuTimes t = times(first, std::floor(target_.cores / kPart) * whole * double(join.arrivals));
  const double sharing = cluster ? double(join.arrivals) : 1;
  const double blocks = std::ceil(double(join.parts) / sharing) *
                        std::ceil(double(join.groups) * sharing / double(target_.cores));
  const bool loop = second.iterations > 1 && second.iteration_bytes > 0;
  const double block_bytes = second.core_traffic * core_bandwidth_;
  const double in_flight = std::max(1.0, loop ? second.iteration_bytes : block_bytes);
  const double reach =
      std::min(core_bandwidth_, in_flight / (target_.scale.memory * sm.l2_latency));
  const double memory = std::max(second.cache_traffic, blocks * block_bytes / reach);
  const double compute = blocks * second.block_compute;
  const double chain =
      blocks * ((loop ? second.iterations : 0) * target_.iteration_seconds +
                second.steps * kBarrierSeconds + (1 + second.restarts) * sm.l2_latency);
  const double busy = std::max(compute, memory) + kHidden * std::min(compute, memory);
  const double meet =
      cluster ? sm.l2_latency + kBarrierSeconds : 2 * (sm.l2_latency + kBarrierSeconds);
  t.first_load +=
      target_.scale.latency * meet + std::max(busy, chain) + kHidden * std::min(busy, chain);
  t.seconds = t.scaled({});
  return t;
}

double GpuMachine::bound(double compute, double shared_traffic) const {
  const double c = compute / target_.cores, m = shared_traffic;
  return least(std::max(c, m) + kHidden * std::min(c, m));
}

double GpuMachine::launch() const { return least(0); }

double GpuMachine::least(double busy) const {
  const double chain = target_.scale.latency * target_.block_seconds;
  return launch_ + target_.scale.latency * target_.sm.dram_latency + std::max(busy, chain) +
         kHidden * std::min(busy, chain);
}

GpuTimes GpuMachine::library_times(const LibraryCall& call) const {
  GpuTimes none;
  none.seconds = std::numeric_limits<double>::infinity();
  const auto it = target_.libraries.find(call.rate());
  if (it == target_.libraries.end()) return none;
  // All are products: of so many, m by n of depth k. A convolution's windows are rows.
  double count = double(call.batch), m = double(call.rows), n = double(call.columns);
  double k = double(call.depth), second = 0, beside = 0;
  // Tiles of 128 by 128 at most, half of that where there are few.
  double blocks = 0;
  const auto tiles = [&] {
    const double tile = m * n < 128 * 128 * double(target_.cores) ? 64 : 128;
    return std::ceil(m / tile) * std::ceil(n / tile);
  };
  switch (call.kind) {
  case LibraryCall::Kind::Matmul: blocks = count * tiles(); break;
  case LibraryCall::Kind::Convolution:
    m = double(call.batch);
    k = double(call.depth) / double(call.groups);
    for (const WindowAxis& a : call.axes) {
      m *= double(call.transposed ? a.in : a.out);
      k *= double(a.taps);
    }
    count = double(call.groups);
    n /= count;
    blocks = count * tiles();
    break;
  case LibraryCall::Kind::Attention: {
    // Blocks of 128 queries go through the keys they see, and twice as fast past those they do not.
    const double seen = call.causal ? 0.5 : 1;
    count *= double(call.group);
    blocks = count * std::ceil(m / 128);
    n *= seen;
    second = matmul(call.dtype, count, m, double(call.value_depth), n);
    beside = pointwise(OpKind::Exp, DType::F32, count * m * n);
    break;
  }
  }
  const double waves = std::ceil(blocks / target_.cores) * target_.cores / blocks;
  const double products = matmul(call.dtype, count, m, n, k) + second;
  const double c = (std::max(products, beside) + kHidden * std::min(products, beside)) /
                   target_.cores / it->second.compute;
  const double t = call.bytes() / (target_.levels.front().bandwidth * it->second.bandwidth);
  const auto times = [&](double memory, double compute, double more) {
    GpuTimes now;
    now.launch = launch_ + it->second.overhead + more;
    now.first_load = target_.scale.latency * target_.sm.dram_latency;
    now.chain = target_.scale.latency * target_.block_seconds;
    now.memory = memory;
    now.compute = compute;
    now.overlap = kHidden;
    now.seconds = now.scaled({});
    return now;
  };
  if (blocks >= target_.cores) return times(t, waves * c, 0);
  // Multiprocessors idle, or parts of the contraction are added by one more kernel.
  const double few = std::max(t, call.bytes() / (blocks * core_bandwidth_));
  const GpuTimes idle = times(few, waves * c, 0), split = times(t, c, launch());
  return idle.seconds < split.seconds ? idle : split;
}

}  // namespace tessera
