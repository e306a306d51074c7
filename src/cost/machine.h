// What a machine needs for operations, for traffic and for whole kernels, in seconds. Search builds
// a KernelWork without building a graph; AnalyticalModel (analytical.h) builds it from one.
//
// A CPU is modelled in cpu_model.cpp, a GPU in gpu_model.h.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "cost/kernel_join.h"
#include "cost/library_call.h"
#include "cost/target.h"
#include "ir/window.h"

namespace tessera {

// One kernel. Compute is that of one block over all its iterations; traffic is that of all blocks.
struct KernelWork {
  double blocks = 1, iterations = 1;
  double block_compute = 0;   // seconds on one core
  double core_traffic = 0;    // seconds on one core to move one block's tiles to and from it
  double shared_traffic = 0;  // seconds on the shared levels, all blocks together
  // GPUs only:
  double cache_traffic = 0;    // seconds on L2 of everything that moves
  double steps = 0;            // operators that a block executes one after another
  double restarts = 0;         // times that a block begins a loop, but for the first
  double iteration_bytes = 0;  // of the tiles that one iteration of a loop loads
  double other_bytes = 0;      // of shared memory, besides those tiles
  double accumulators = 0;     // 4-byte values of a block that live as long as its loop
};

inline constexpr double kHidden = 0.15;  // share of the shorter of compute and traffic that shows

class Machine {
 public:
  static std::unique_ptr<const Machine> of(Target target);
  explicit Machine(Target target);
  virtual ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  const Target& target() const { return target_; }

  // Seconds on one core, operands in its private memory.
  virtual double matmul(DType, double batch, double m, double n, double k) const = 0;
  // A convolution with windows of `axes` axes over `images` × `pixels` results.
  struct Convolution {
    double images = 1, filters = 1, channels = 1;  // channels: those that one filter sums over
    double taps = 1;                               // of a window
    double groups = 1;
    std::vector<double> pixels;       // of a result, by axis
    std::vector<WindowAxis> windows;  // by axis, where known and in one group
  };
  virtual double convolution(DType, const Convolution&) const;
  virtual double pointwise(OpKind, DType, double elements) const = 0;
  virtual double reduce(DType, double elements) const = 0;
  virtual double move(DType, double elements) const = 0;

  // What competes for the caches with a program's inputs, given their bytes: a machine may expect
  // them to come from memory every time.
  virtual double resident(double input_bytes) const = 0;
  // Traffic of one tensor of `tensor_bytes`, of which blocks together read or write `moved` bytes
  // (at least the tensor once). `resident`: bytes that compete with it for the caches.
  virtual void add_traffic(KernelWork&, double tensor_bytes, double moved,
                           double resident) const = 0;
  // Traffic of `moved` bytes that blocks read once more in a later pass, after each has read
  // `block_bytes`: from where those of all cores fit.
  virtual void add_reread(KernelWork&, double moved, double block_bytes) const = 0;
  // Bytes moved per byte used when rows of `tile` of `extent` elements are read: whole lines move,
  // and short pieces of what streams from memory take longer.
  virtual double line_waste(double tile, double extent, double element_bytes,
                            double tensor_bytes) const = 0;
  // Seconds to read or write a tensor once.
  double first_pass(double tensor_bytes, double resident) const;
  virtual double seconds(const KernelWork&) const = 0;
  // Of two kernels in one launch; infinite where the machine has no such thing.
  virtual double joined_seconds(const KernelWork& first, const KernelWork& second,
                                const KernelJoin& join) const;
  // A lower bound on `seconds` from compute of the whole kernel (all cores busy) and traffic.
  virtual double bound(double compute, double shared_traffic) const = 0;
  // The least that a kernel costs, whatever it does.
  virtual double launch() const = 0;
  // Seconds of a library's call; infinite where the target has no such library.
  virtual double library(const LibraryCall&) const;

 protected:
  // Of the smallest shared level that holds so many bytes.
  double shared_bandwidth(double bytes) const;

  Target target_;
  std::vector<double> weight_;                       // by operator
  std::array<double, kNumDTypes> simple_{}, fma_{};  // rates by element type
  double core_bandwidth_ = 0;
  int64_t core_capacity_ = 0;
};

}  // namespace tessera
