// The plan of one thread block: how tiles lie in shared memory and where, how far loads run ahead,
// and in which order steps run with which barriers (Mirage, OSDI'25, §6). Made from a description
// of the block alone (block.h).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/block.h"
#include "plan/shared_layout.h"

namespace tessera {

enum class BlockPlace { Registers, Shared };

struct ValuePlan {
  BlockPlace place = BlockPlace::Shared;
  SharedLayout layout;
  int64_t offset = 0;  // in shared memory, of the first copy
  int64_t bytes = 0;   // of one copy; the next one begins `pitch` bytes later
  int64_t pitch = 0;
  int copies = 1;  // iteration i of `loop` uses copy i % copies
  int loop = -1;
};

// What moves a lane's part of an access between shared memory and registers.
enum class Instruction {
  None,                  // the value is not in shared memory
  Vector,                // loads and stores of `bytes`
  AsyncCopy,             // cp.async of `bytes`
  MatrixRows,            // ldmatrix
  MatrixRowsTransposed,  // ldmatrix.trans
  MatrixStore,           // stmatrix, perhaps .trans
  Bulk,                  // cp.async.bulk.tensor
  Operand,               // read by wgmma
};

// Predicted for one execution by the whole block. A wavefront is one pass over all banks.
struct AccessPlan {
  Instruction instruction = Instruction::None;
  int bytes = 0;             // per lane and instruction
  int64_t instructions = 0;  // of warps
  int64_t wavefronts = 0;
  int64_t least = 0;  // wavefronts that these bytes take without any conflict
  int64_t conflicts() const { return wavefronts - least; }
};

struct StepPlan {
  int ahead = 0;  // Load: iterations that it runs ahead
  std::vector<AccessPlan> reads, writes;
};

enum class ActionKind {
  Step,      // runs `step`
  Commit,    // ends a group of asynchronous copies (of each thread)
  Wait,      // until no more than `pending` of the thread's groups are not complete
  WaitBulk,  // for the boxes of this iteration (of `loop`; -1: those loaded before all loops)
  Fence,     // what threads wrote becomes visible to the asynchronous proxy
  Barrier,   // all threads
  LoopBegin,
  LoopEnd,
};

struct Action {
  ActionKind kind = ActionKind::Step;
  int step = -1;
  int loop = -1;    // LoopBegin, LoopEnd, WaitBulk
  int pending = 0;  // Wait
  // Step: the load of this many iterations later, none if that is beyond the last; where its loop
  // has not begun, of iteration `ahead`.
  int ahead = 0;
};

struct LoopPlan {
  int stages = 1;            // copies of what its loads write
  int ahead = 0;             // iterations that loads run ahead
  int barriers = 0;          // of all threads, in each iteration
  int64_t bulk_offset = -1;  // of `stages` barriers of 8 bytes in shared memory, if any
};

struct BlockPlan {
  std::vector<ValuePlan> values;
  std::vector<StepPlan> steps;
  std::vector<LoopPlan> loops;
  std::vector<Action> actions;
  int64_t shared_bytes = 0;
  std::vector<int64_t> scratch_offsets;  // by step; -1: it needs none
  int64_t bulk_offset = -1;              // of the barrier for boxes loaded before all loops, if any

  // Totals over the whole block's life.
  int64_t barriers = 0, wavefronts = 0, conflicts = 0;
};

// A tile of a block whose layouts somebody else has settled. Without bytes it is in registers, and
// only the order of what is done to it counts.
struct FlowTile {
  int64_t bytes = 0;
  int64_t alignment = 16;
};
// What a step does to a tile, where only this is known: accesses of the same `mapping`, unless it
// is -1, meet within a thread.
struct FlowAccess {
  int step = 0, tile = 0;
  bool write = false;
  int mapping = -1;
  bool proxy = false;  // the asynchronous proxy does it
  // Of what a Load writes: Vector, AsyncCopy or Bulk.
  Instruction instruction = Instruction::Vector;
};

// The order, stages, barriers and offsets alone: for code whose steps are written already. Of
// `block` its loops, threads and the steps' kinds and loops count, and their names; each Load
// writes one tile. Throws Error(Unsupported) where no plan fits the limits.
BlockPlan plan_flow(const Block& block, const std::vector<FlowTile>& tiles,
                    const std::vector<FlowAccess>& accesses, const BlockLimits& limits = {});

}  // namespace tessera
