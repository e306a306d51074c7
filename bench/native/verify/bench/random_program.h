// Seeded random valid programs: kernel-level ones over the whole operator set, and fused kernels
// with grids, loops and accumulators whose tiles need not divide the shapes.
#pragma once
#include <cstdint>

#include "ir/graph.h"

namespace tessera {

struct RandomProgramOptions {
  int min_ops = 3, max_ops = 8;      // about; helper operators come on top
  double kernel_chance = 0.35;       // that a program holds a fused kernel
  double window_chance = 0.15;       // that one of floats ends in a convolution or in pooling
  double convolution_chance = 0.08;  // that another ends in one whose weights are an input
  bool integers = true;              // some programs compute with integers and bools
  DType dtype = DType::F32;          // of the floating-point part
  int64_t max_extent = 7;
};

// Valid, static, with every input used, and tame: no everywhere-undefined or overflowing values on
// ordinary inputs. The same seed gives the same program.
Graph random_program(uint64_t seed, const RandomProgramOptions& options = {});

}  // namespace tessera
