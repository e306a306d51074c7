// The model of a CPU: a kernel costs launch + max(C, M) + 0.15·min(C, M), where C is compute on the
// busiest core and M the traffic; the small term keeps hidden work from looking free, so bounds
// stay additive.
#include "cost/cpu_model.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

constexpr double kOpSeconds = 15e-9;  // entering one operator's loops
constexpr double kMaxCompute = 1e6;

}  // namespace

double CpuMachine::matmul(DType t, double batch, double m, double n, double k) const {
  const double lanes = std::max(1, target_.vector_bytes / size_in_bytes(t));
  const double rate = fma_[size_t(t)], simple = simple_[size_t(t)];
  auto shaped = [&](double rows, double cols) {
    double padded = std::ceil(cols / lanes) * lanes;
    // A loaded column tile is used once per row; with few rows loads, not multiply-adds, set the
    // pace (measured: 8 rows run at about 0.7 of the rate of 16).
    double efficiency = std::min(1.0, 0.2 + 0.065 * rows);
    return 2 * rows * padded * k / (rate * efficiency);
  };
  // The accumulator tile is read and written once per call, so short contractions do not pay.
  double seconds = std::min(shaped(m, n), shaped(n, m)) + 0.5 * m * n / simple;
  return std::min(batch * seconds + kOpSeconds, kMaxCompute);
}

// Winograd's F(m×m, r×r) sums (m+r−1)² products for m² results (Lavin & Gray, CVPR 2016, §4.1) and
// moves every image and result through a transform, which takes as long as a few products. The
// frames of films are terms of the sums.
double CpuMachine::convolution(DType t, const Convolution& c) const {
  const double direct = Machine::convolution(t, c);
  const int lanes = std::max(1, target_.vector_bytes / size_in_bytes(t));
  // Few filters of a group fill no vector: code runs along pixels then, whose loads set the pace
  // (measured on Zen 5: groups of 2, 4 and 8 filters reach 0.07, 0.13 and 0.29 of the rate).
  const double filters = c.filters / c.groups;
  if (c.groups > 1 && c.channels > 1 && filters < lanes) return direct * 1.75 * lanes / filters;
  const size_t rank = c.windows.size();
  if (rank < 1 || rank > 3 || rank != c.pixels.size() || t != DType::F32 ||
      std::fmod(c.channels, lanes) != 0 || std::fmod(c.filters, lanes) != 0 ||
      !may_transform(target_.transforms, c.windows))
    return direct;
  constexpr double kMoved = 10;  // products that an element through a transform takes as long as
  double least = direct;
  for (const int wanted : {2, 4}) {
    if (wanted > 2 && target_.transforms == Transforms::Small) break;
    double places = 1, tiles = c.images, depth = c.channels, frames = c.images;
    for (size_t i = 0; i < rank; ++i) {
      const WindowAxis& a = c.windows[i];
      if (rank - i > 2) {
        tiles *= c.pixels[i];
        depth *= double(a.taps);
        frames *= double(a.in);
        continue;
      }
      const int m = transform_tile(a, wanted);
      places *= m > 0 ? double(m + a.taps - 1) : 0;
      tiles *= std::ceil(c.pixels[i] / std::max(m, 1));
      frames *= std::ceil(c.pixels[i] / std::max(m, 1));
    }
    if (places <= 1 || places > kMostTransformed) continue;
    const double moved =
        places * (frames * c.channels + tiles * c.filters) + 2 * places * depth * c.filters;
    least = std::min(least, matmul(t, places, c.filters, tiles, depth) +
                                2 * kMoved * moved / fma_[size_t(t)]);
  }
  return least;
}

double CpuMachine::pointwise(OpKind kind, DType t, double n) const {
  return n * weight_[size_t(kind)] / simple_[size_t(t)] + kOpSeconds;
}
double CpuMachine::reduce(DType t, double n) const { return n / simple_[size_t(t)] + kOpSeconds; }
double CpuMachine::move(DType t, double n) const { return 2 * n / simple_[size_t(t)] + kOpSeconds; }

void CpuMachine::add_traffic(KernelWork& w, double tensor_bytes, double moved,
                             double resident) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  // The first pass comes from where the working set lives, repeats from where the tensor fits.
  double pass = first_pass(tensor_bytes, resident);
  w.shared_traffic += pass;
  if (moved > tensor_bytes && tensor_bytes > double(core_capacity_) / 2)
    w.shared_traffic += first_pass(tensor_bytes, tensor_bytes) * (moved / tensor_bytes - 1);
}

void CpuMachine::add_reread(KernelWork& w, double moved, double block_bytes) const {
  w.core_traffic += moved / w.blocks / core_bandwidth_;
  if (block_bytes <= double(core_capacity_) / 2) return;
  w.shared_traffic +=
      moved / shared_bandwidth(block_bytes * std::min<double>(w.blocks, target_.cores));
}

double CpuMachine::line_waste(double tile, double extent, double element_bytes,
                              double tensor_bytes) const {
  if (tile >= extent) return 1;
  const double piece = tile * element_bytes;
  const double waste = std::max(1.0, 64 / piece);
  if (tensor_bytes <= double(core_capacity_)) return waste;
  // Short pieces of rows also keep memory from streaming: measured with rows far apart, 128 bytes
  // at a time reach 46 % of the bandwidth, 512 bytes 81 %, 2048 bytes 90 %.
  return std::max(waste, 1 + 150 / piece);
}

double CpuMachine::seconds(const KernelWork& w) const {
  double waves = std::ceil(w.blocks / target_.cores);
  // Uneven last waves cost less than a whole wave where blocks are many.
  double c = waves * (w.block_compute + target_.block_seconds +
                      (w.iterations > 1 ? w.iterations * target_.iteration_seconds : 0));
  double m = std::max(waves * w.core_traffic, w.shared_traffic);
  return target_.launch_seconds + std::max(c, m) + kHidden * std::min(c, m);
}

double CpuMachine::bound(double compute, double shared_traffic) const {
  double c = compute / target_.cores, m = shared_traffic;
  return target_.launch_seconds + std::max(c, m) + kHidden * std::min(c, m);
}

}  // namespace tessera
