// The statements of a kernel, each with what it does to shared memory and to sums in registers. The
// plan of the block (plan/block_plan.h) makes a program of them: their order, barriers, how far
// tiles run ahead, where buffers lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/block_plan.h"

namespace tessera {

struct SharedBuffer {
  std::string name;
  DType dtype = DType::F32;
  int64_t elements = 0;  // 0: registers
};

struct SharedAccess {
  size_t buffer = 0;
  bool write = false;
  // How elements are given to threads; two accesses with the same, not empty, mapping meet only
  // within a thread.
  std::string mapping;
  // By the asynchronous proxy: what threads wrote or copied there must be fenced before.
  bool async = false;
};

struct EmitStep {
  std::vector<std::string> lines;
  std::vector<SharedAccess> accesses;
  int loop = -1;  // the innermost around it
  // A tile of an operand, which comes by `instruction`; of a loop, its lines are written when the
  // plan is known.
  int tile = -1;
  Instruction instruction = Instruction::Vector;
};

struct EmitLoop {
  int number = 0;  // its variable is l<number>
  int64_t extent = 1;
  int around = -1;  // the next outer one
};

struct EmitFlow {
  std::vector<SharedBuffer> buffers;
  std::vector<EmitLoop> loops;
  std::vector<EmitStep> steps;  // in an order in which one thread could run them
};

// `alignment`: of all buffers, in bytes. Throws Error(Unsupported) where memory does not suffice.
BlockPlan plan_steps(const EmitFlow& flow, int64_t alignment, const BlockLimits& limits);

}  // namespace tessera
