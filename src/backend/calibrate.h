// Measures the machine at hand: a target description with the bandwidths and rates that generated
// code reaches here, in place of those of a typical machine of the class.
#pragma once
#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/runtime.h"
#include "cost/target.h"

namespace tessera {

// Takes about two seconds on an otherwise idle machine; figures are the best of many short runs.
// Weights of operators, and rates that are not measured, are those of the built-in description,
// scaled. Throws what compile_and_load throws.
Target calibrate(Cache& cache, KernelPool& pool, CpuIsa isa = best_isa());

}  // namespace tessera
