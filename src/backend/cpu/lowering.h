// How plain products and reductions are split for a CPU.
#pragma once

#include "backend/cpu/isa.h"
#include "backend/lower.h"

namespace tessera {

Lowering cpu_lowering(CpuIsa isa);

}  // namespace tessera
