// A CPU: cores with private caches, which read shared tensors in place.
#pragma once
#include "cost/machine.h"

namespace tessera {

class CpuMachine : public Machine {
 public:
  using Machine::Machine;
  double matmul(DType, double batch, double m, double n, double k) const override;
  double convolution(DType, const Convolution&) const override;
  double pointwise(OpKind, DType, double elements) const override;
  double reduce(DType, double elements) const override;
  double move(DType, double elements) const override;
  double resident(double input_bytes) const override { return input_bytes; }
  void add_traffic(KernelWork&, double tensor_bytes, double moved, double resident) const override;
  void add_reread(KernelWork&, double moved, double block_bytes) const override;
  double line_waste(double tile, double extent, double element_bytes,
                    double tensor_bytes) const override;
  double seconds(const KernelWork&) const override;
  double bound(double compute, double shared_traffic) const override;
  double launch() const override { return target_.launch_seconds; }
};

}  // namespace tessera
