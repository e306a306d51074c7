#include "cost/machine.h"

#include <algorithm>
#include <limits>

#include "cost/cpu_model.h"
#include "cost/gpu_model.h"

namespace tessera {

std::unique_ptr<const Machine> Machine::of(Target target) {
  if (target.kind == TargetKind::Gpu) return std::make_unique<GpuMachine>(std::move(target));
  return std::make_unique<CpuMachine>(std::move(target));
}

Machine::Machine(Target target) : target_(std::move(target)) {
  for (OpKind k : all_op_kinds()) {
    weight_.resize(std::max(weight_.size(), size_t(k) + 1), 1.0);
    weight_[size_t(k)] = target_.weight(k);
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    simple_[size_t(i)] = target_.pointwise_rate(DType(i));
    fma_[size_t(i)] = target_.matmul_rate(DType(i));
  }
  for (const MemoryLevel& l : target_.levels) {
    if (l.per_core) {
      core_bandwidth_ = l.bandwidth;
      core_capacity_ = l.capacity;
    }
  }
  if (core_bandwidth_ == 0) {
    core_bandwidth_ = target_.levels.back().bandwidth;
    core_capacity_ = target_.levels.back().capacity;
  }
}

double Machine::shared_bandwidth(double bytes) const {
  const MemoryLevel* at = &target_.levels.front();
  for (const MemoryLevel& l : target_.levels)
    if (!l.per_core && double(l.capacity) * 0.75 >= bytes) at = &l;
  return at->bandwidth;
}

double Machine::first_pass(double tensor_bytes, double resident) const {
  return tensor_bytes / shared_bandwidth(std::max(tensor_bytes, resident));
}

double Machine::joined_seconds(const KernelWork&, const KernelWork&, const KernelJoin&) const {
  return std::numeric_limits<double>::infinity();
}

double Machine::library(const LibraryCall&) const {
  return std::numeric_limits<double>::infinity();
}

double Machine::convolution(DType t, const Convolution& c) const {
  double pixels = product_of<double>(c.pixels);
  return matmul(t, c.images, c.filters, pixels, c.channels * c.taps);
}

}  // namespace tessera
