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
#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op.h"

namespace tessera {

enum class TargetKind : uint8_t { Cpu, Gpu };

struct MemoryLevel {
  std::string name;
  int64_t capacity = 0;  // bytes
  double bandwidth = 0;  // bytes per second, of one core where per_core
  bool per_core = false;
};

struct Target {
  std::string name;
  TargetKind kind = TargetKind::Cpu;
  int cores = 1;
  int vector_bytes = 32;
  int vector_registers = 16;
  double launch_seconds = 0, block_seconds = 0, iteration_seconds = 0;
  std::vector<MemoryLevel> levels;                     // outermost first; at least two
  std::array<double, kNumDTypes> matmul_flops{};       // per core; 0: not stated
  std::array<double, kNumDTypes> pointwise_ops{};      // per core; 0: not stated
  std::map<OpKind, double> weights;                    // operators not named weigh 1
  double strided_operand = 1.2, copied_operand = 1.4;  // factors of a product's time, see above
  int banks = 0, bulk_bytes = 0;

  // Rates of a type; where the file states none, that of f32 scaled by element size.
  double matmul_rate(DType) const;
  double pointwise_rate(DType) const;
  double weight(OpKind) const;
  // What one block may use: the innermost per-core level (three quarters of it where it is a
  // cache).
  int64_t block_bytes() const;
  std::string str() const;  // canonical text; parse_target(str()) gives the same target
};

// Throws Error(BadInput) with file:line:col on anything malformed or missing.
Target parse_target(std::string_view text, const std::string& file = "<target>");
Target load_target(const std::string& path);
// targets/NAME.target for a bare name, a path otherwise. `directory` holds the descriptions.
Target find_target(const std::string& name, const std::string& directory);
// The description compiled in for tests and as a fallback: this class of 2-core AVX-512 machine.
Target default_cpu_target();

}  // namespace tessera
