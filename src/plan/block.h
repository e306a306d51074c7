// One thread block of a GPU kernel as the planner sees it: tiles, and steps that read and write
// them, with the way in which each step shares its elements among the threads. It says nothing of
// what is computed; whoever generates code describes its kernel in these terms (block_plan.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/types.h"

namespace tessera {

// A tile. Several steps may write it, like a variable: reads see the last write before them in the
// order in which the steps are listed, iteration after iteration.
struct BlockValue {
  std::string name;
  DType dtype = DType::F32;  // as it is stored
  std::vector<int64_t> extents;
  bool registers = false;  // in registers whatever happens (accumulators of products)
  int innermost = -1;      // the only axis that may be innermost in memory; -1: any
  int64_t elements() const { return product_of(extents); }
};

// How the elements of a step's space are shared among the threads.
enum class WalkKind {
  // Vectors of `width` neighbours along `along` are dealt to the threads in turn: vector
  // i·threads + t to thread t. They are numbered with `along` fastest, then the other axes from the
  // last to the first. Each thread runs through axis `k`, if there is one, by itself.
  Linear,
  // `lanes` neighbouring threads share a row along `along`: the lane-th takes vectors lane, lane +
  // lanes, … of `width` elements; rows are dealt to the groups in turn, numbered likewise. What has
  // no axis `along` is read by all lanes and written by the first, which alone reads what it
  // updates.
  Rows,
  // mma.sync.m16n8k16 (or m16n8k8 of 32-bit elements): rows and columns of the product are cut into
  // warps_m × warps_n parts of whole tiles, warp w has part (w / warps_n, w % warps_n). The values
  // with axes (m, k), (k, n) and (m, n) are operands and accumulators in fragments; other values
  // are read element by element with the accumulators, of which `width` neighbours (1 or 2) are
  // moved at once.
  Fragments,
  // wgmma.m64nNk16 by warps_m × warps_n groups of four warps, each with a part of tiles of 64 rows:
  // operands are read by the asynchronous proxy, in 128-byte swizzling; accumulators are like those
  // of Fragments, each warp having 16 of 64 rows.
  WideFragments,
  Bulk,   // boxes copied by the asynchronous proxy, issued by one thread
  Whole,  // every thread reads everything, thread 0 writes: a scalar, or what is not known better
};

struct Walk {
  WalkKind kind = WalkKind::Linear;
  int along = -1;              // axis of the space: Linear and Rows
  int width = 1;               // elements
  int lanes = 32;              // of Rows: a power of two
  int m = -1, n = -1, k = -1;  // axes of the space: Fragments; k may be missing
  int warps_m = 1, warps_n = 1;
  // Operands are read by ldmatrix, and vectors moved at once, or not at all. Tiles are then as
  // large as whole matrices where the space is not.
  bool whole = false;
  // Of Fragments of 32 bits: lane 4g + t has 2t and 2t + 1 along k, not t and t + 4, since the left
  // operand is what another product left in registers.
  bool in_pairs = false;
};

// `axes` has for each axis of the value the axis of the step's space that indexes it; -1: index 0.
struct BlockAccess {
  int value = -1;
  std::vector<int> axes;
  // Any thread may touch any element, in no way that can be said; `axes` do not count.
  bool anyhow = false;
};

enum class StepKind {
  Load,     // global memory to a tile, as it is; the only kind that may run ahead
  Compute,  // tiles to tiles
  Store,    // a tile to global memory
};

struct BlockStep {
  std::string name;
  StepKind kind = StepKind::Compute;
  int loop = -1;               // the innermost loop around it; -1: none
  std::vector<int64_t> space;  // extents
  Walk walk;
  std::vector<BlockAccess> reads, writes;
  // Load and Store: the axis of the space along which neighbours are neighbours in global memory,
  // -1 for none, and the bytes up to which pieces along it are in line there (a power of two).
  int global_along = -1;
  int global_bytes = 16;
  int64_t scratch_bytes = 0;  // shared memory that the step needs for itself
  int barriers = 0;           // that the step has inside, met by all threads
};

// Loops are listed after those around them.
struct BlockLoop {
  int64_t extent = 1;
  int around = -1;  // the next outer loop
};

// The steps of one body stand where they run, as a program without any parallelism would run them;
// an inner loop runs where its first step stands.
struct Block {
  std::vector<BlockValue> values;
  std::vector<BlockLoop> loops;
  std::vector<BlockStep> steps;
  int threads = 128;  // a multiple of 32
};

// Whether `loop` is `outer` or inside it; everything is inside -1.
bool inside(const Block& block, int loop, int outer);

// What a target can do; figures of sm_80 by default.
struct BlockLimits {
  int64_t shared_bytes = 163 * 1024;     // that a block may have
  int64_t shared_bytes_sm = 164 * 1024;  // of a multiprocessor, for all its blocks
  int banks = 32, bank_bytes = 4;
  bool matrix_stores = false;           // stmatrix: sm_90 and later
  int most_stages = 4;                  // of a loop's loads
  int64_t bytes_in_flight = 32 * 1024;  // of a multiprocessor, that hide the latency of memory
  int blocks_per_sm = 1;                // that the grid has for each multiprocessor
  bool schedule = true;                 // off: every step in an interval of its own
  bool memory = true;                   // off: no two tiles share memory
};

}  // namespace tessera
