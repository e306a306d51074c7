// A target: what a machine can do, read from a plain text file (targets/*.target). Bandwidths and
// rates are sustained figures; `tessera doctor --calibrate` may rewrite them for the machine at
// hand.
//
// The file is a list of lines `key value…`; '#' starts a comment. Numbers take the suffixes K M G T
// (powers of 1024 for capacities, of 1000 for rates) and times end in s, ms, us or ns.
//
//   target cpu-avx512              name
//   kind cpu                       cpu or gpu
//   cores 2                        cores, or streaming multiprocessors
//   vector_bytes 64                width of a vector register
//   vector_registers 32
//   launch 4us                     fixed cost of starting one kernel
//   block 0.3us                    fixed cost of one block of the grid, on its core
//   iteration 50ns                 fixed cost of one loop iteration in a block
//   level dram capacity 64G bandwidth 40G            outermost first; bandwidth in bytes/s
//   level l2 capacity 1M bandwidth 60G per_core      per_core: each core has its own
//   matmul f32 110G                FLOP/s of one core (a fused multiply-add is two)
//   pointwise f32 15G              simple element operations per second and core, data in cache
//   weight exp 12                  cost of an operator relative to such an operation
//   layout strided 1.2             a product's time if its right operand is not in panels
//   layout copied 1.4              ... if it must be copied tile by tile to be read at all
//   layout banks 32                banks of block memory, 4 bytes wide; 0: no bank conflicts
//   layout bulk 16                 bytes that one bulk copy to block memory moves; 0: no such
//   copies
//
// Lines of a GPU, which all but `nominal`, `library` and `scale` must be there:
//
//   level hbm capacity 141G bandwidth 4.3T nominal 4.8T   nominal: of the data sheet, to compare
//   launch_in_graph 1.3us          of one kernel after another where a CUDA graph launches them
//   clock 1.755G                   of the multiprocessors under load, Hz
//   sm threads 2048                what all blocks of one multiprocessor share: threads, blocks,
//   sm blocks 32                   registers of 4 bytes and shared memory, of which every block
//   sm registers 65536             takes `reserved` more than it asks for
//   sm cluster 16                  blocks that may form a thread-block cluster; 1: there are none
//   sm shared 228K
//   sm reserved 1K
//   sm port 110G                   bytes/s between L2 and one multiprocessor
//   special 28G                    exp2, log2, sin, rcp, … per second and multiprocessor
//   latency dram 700ns             of a load under load, by where it ends
//   latency l2 270ns
//   matmul tf32 2.9T               FLOP/s of one multiprocessor on f32 that is rounded to tf32
//   library matmul bandwidth 0.5 compute 0.9 overhead 1us   a library's call: the shares of the
//                                  memory's bandwidth and of the rates above that it reaches at
//                                  most, and what a call costs beyond a kernel of one's own
//   scale memory 1.1               a coefficient of the model, fitted to measurements (cost/fit.h)
#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op.h"
#include "ir/window.h"

namespace tessera {

enum class TargetKind : uint8_t { Cpu, Gpu };

struct MemoryLevel {
  std::string name;
  int64_t capacity = 0;  // bytes
  double bandwidth = 0;  // bytes per second, of one core where per_core
  bool per_core = false;
  double nominal = 0;  // bandwidth by the data sheet; 0: not stated
};

// What the blocks of one multiprocessor of a GPU share, and times.
struct Multiprocessor {
  double clock = 0;  // Hz
  int threads = 0, blocks = 0, registers = 0;
  int cluster = 0;                          // blocks of a thread-block cluster at most, 1: none
  int64_t shared = 0, reserved = 0;         // bytes
  double port = 0;                          // bytes/s to and from L2
  double special = 0;                       // special functions per second
  double dram_latency = 0, l2_latency = 0;  // seconds
};

// What the calls of a library reach: shares of the memory's bandwidth and of a target's rates.
struct LibraryRate {
  double bandwidth = 0, compute = 0;
  double overhead = 0;  // seconds
};

// Factors of the GPU model's terms, from measurements (cost/fit.h).
struct Scales {
  double launch = 1, latency = 1, memory = 1, compute = 1;
};

struct Target {
  std::string name;
  TargetKind kind = TargetKind::Cpu;
  int cores = 1;
  int vector_bytes = 32;
  int vector_registers = 16;
  double launch_seconds = 0, block_seconds = 0, iteration_seconds = 0;
  double launch_in_graph = 0;                          // seconds; GPUs
  std::vector<MemoryLevel> levels;                     // outermost first; at least two
  std::array<double, kNumDTypes> matmul_flops{};       // per core; 0: not stated
  std::array<double, kNumDTypes> pointwise_ops{};      // per core; 0: not stated
  std::map<OpKind, double> weights;                    // operators not named weigh 1
  double strided_operand = 1.2, copied_operand = 1.4;  // factors of a product's time, see above
  int banks = 0, bulk_bytes = 0;
  Multiprocessor sm;                             // GPUs
  std::map<std::string, LibraryRate> libraries;  // "matmul", "attention", "convolution"
  Scales scale;
  double tf32_flops = 0;  // per core: f32 products whose factors are rounded to tf32; GPUs
  bool tf32 = false;      // whether they may be; not part of the text
  Transforms transforms = Transforms::All;  // that code for it uses; not part of the text

  // Rates of a type; where the file states none, that of f32 scaled by element size. Products of
  // f32 take tensor cores where `tf32` allows it.
  double matmul_rate(DType) const;
  double pointwise_rate(DType) const;
  double weight(OpKind) const;
  // What one block may use: the innermost per-core level (three quarters of it where it is a
  // cache).
  int64_t block_bytes() const;
  std::string str() const;  // canonical text; parse_target(str()) gives the same target
  // For people: what the machine is and can do, a line per fact.
  std::string summary() const;
};

// Throws Error(BadInput) with file:line:col on anything malformed or missing.
Target parse_target(std::string_view text, const std::string& file = "<target>");
Target load_target(const std::string& path);
// targets/NAME.target for a bare name, a path otherwise. `directory` holds the descriptions.
Target find_target(const std::string& name, const std::string& directory);
// The description compiled in for tests and as a fallback: this class of 2-core AVX-512 machine.
Target default_cpu_target();

}  // namespace tessera
