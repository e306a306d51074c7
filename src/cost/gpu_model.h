// A GPU: multiprocessors that run several blocks each, copy tiles from memory by way of L2 ahead of
// the loop that uses them, and have tensor cores, lanes and special-function units.
//
// A kernel takes
//
//   launch + first load + max(B, K) + 0.15·min(B, K),   B = max(C, M) + h·min(C, M)
//
// h: what of the shorter of the two still shows. A block that loads everything at once computes
// only then; where a multiprocessor has n tiles to go through, of loops and of blocks, 1/n of it is
// left over, and never less than 0.15. C: arithmetic of the busiest multiprocessor. M: the longest
// of memory (every tensor once, what is read again from where it is then), L2 (everything that
// moves), and what one multiprocessor can have on its way: bytes in flight divided by the latency
// (Little's law). K: the chain of things that one block waits for, once per wave: its start,
// barriers of its loops, operators, and the first tiles of every loop after the first, which L2 has
// as a rule. The model chooses stages of the loop's copies, threads and blocks per multiprocessor
// as a kernel generator would. Nothing of it is fitted unless the target has `scale` lines
// (cost/fit.h).
#pragma once
#include "cost/machine.h"

namespace tessera {

// Where the time of a kernel goes, in seconds, and what was chosen for it.
struct GpuTimes {
  double launch = 0, first_load = 0;
  double chain = 0, memory = 0, compute = 0;  // K, M, C
  double overlap = 0.15;                      // h
  double seconds = 0;
  int threads = 128;         // of a block
  double blocks_per_sm = 1;  // at once
  double waves = 1;          // of blocks on the busiest multiprocessor
  int stages = 1;            // copies of the tiles that the loop loads
  double in_flight = 0;      // bytes on their way to one multiprocessor

  // The formula above, with factors on its terms.
  double scaled(const Scales&) const;
};

class GpuMachine : public Machine {
 public:
  // `graphs`: kernels are launched by a CUDA graph, not one by one from the host.
  explicit GpuMachine(Target target, bool graphs = true);

  double matmul(DType, double batch, double m, double n, double k) const override;
  double convolution(DType, const Convolution&) const override;
  double pointwise(OpKind, DType, double elements) const override;
  double reduce(DType, double elements) const override;
  double move(DType, double elements) const override;
  // Weights and caches of keys do not stay in L2 from one run of a model to the next.
  double resident(double input_bytes) const override;
  void add_traffic(KernelWork&, double tensor_bytes, double moved, double resident) const override;
  void add_reread(KernelWork&, double moved, double block_bytes) const override;
  double line_waste(double tile, double extent, double element_bytes,
                    double tensor_bytes) const override;
  double seconds(const KernelWork& w) const override { return times(w).seconds; }
  double bound(double compute, double shared_traffic) const override;
  double launch() const override;
  double library(const LibraryCall& call) const override { return library_times(call).seconds; }
  double joined_seconds(const KernelWork& first, const KernelWork& second,
                        const KernelJoin& join) const override {
    return joined_times(first, second, join).seconds;
  }

  // `cores`: multiprocessors that its blocks may be on; 0: all.
  GpuTimes times(const KernelWork&, double cores = 0) const;
  // Of two kernels in one launch. What follows the first counts as latency: a fence and a ticket,
  // two ways to L2, and a group's part of the second, one block of it after the other on one
  // multiprocessor, which finds in L2 what was stored.
  GpuTimes joined_times(const KernelWork& first, const KernelWork& second,
                        const KernelJoin& join) const;
  // Of a library's call; infinite seconds where the target has no such library.
  GpuTimes library_times(const LibraryCall&) const;

 private:
  // A product by tensor cores, whose operands are filled up to fragments, or by lanes.
  double product(DType, bool tensor, double batch, double m, double n, double k) const;
  // Of a kernel that moves and computes nothing beyond `busy`.
  double least(double busy) const;

  double launch_, l2_bandwidth_;
  double block_memory_bandwidth_;           // of one multiprocessor
  std::array<double, kNumDTypes> lanes_{};  // FLOP/s without tensor cores
  std::vector<double> special_;             // seconds of special functions per element, by operator
};

}  // namespace tessera
