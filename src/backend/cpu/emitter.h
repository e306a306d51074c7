// The generator behind emit_kernel: decides which values of a kernel get memory and writes the body
// of every loop. Private to backend/cpu.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/emit_kernel.h"
#include "backend/cpu/operands.h"
#include "backend/nest.h"
#include "plan/memory.h"

namespace tessera {

// How far ahead dense operands outside the cache are asked for, in bytes.
inline constexpr int64_t kDenseAheadBytes = 8192;
// Whether a product is made of register tiles: long enough rows of floats.
bool is_tiled_product(const Value& v, CpuIsa isa);
// Whether an operator takes so long that it had better not be computed twice.
bool is_costly(OpKind kind);

// Which of a kernel's two functions: values that are the same in all blocks are computed once, into
// a workspace that the blocks then read.
enum class KernelPart { Once, Blocks };

class KernelEmitter {
 public:
  KernelEmitter(const KernelValues& kernel, UnitContext& unit, KernelPart part);
  // True when some value is worth computing once.
  bool has_shared() const { return workspace_bytes_ > 0; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Neighbouring blocks that a thread had better run in one call.
  int64_t blocks_together() const;
  // The function's text; adds to `scratch_bytes` what it needs if that is more.
  std::string run(const std::string& name, int64_t& scratch_bytes);

 private:
  // Scratch memory with its lifetime on the clock of emitted statements.
  struct Buffer {
    std::string name;
    DType dtype;
    int64_t bytes;
    int birth, death;
    int depth;  // number of loops around its allocation
  };

  const Value& value(int id) const { return kernel_.values[size_t(id)]; }
  // A tile of an operand, or what is read like one.
  bool is_operand(int id) const { return value(id).kind == OpKind::Iter; }

  // Decisions.
  void decide();
  struct Pair {  // operands of dot products of bf16 pairs
    int product, left, right;
  };
  void place(size_t id, DType storage);
  void place(size_t id) { place(id, compute_dtype(value(int(id)).dtype)); }
  std::vector<Pair> place_operands();
  void place_what_repeats();
  void fuse_into_accumulators();
  void settle_pairs(const std::vector<Pair>& pairs);
  void mark_needed(const std::vector<int>& roots);
  std::vector<int> saves() const;
  // Finds the values to share between blocks and cuts the kernel there.
  void share();
  bool root(int id) const;
  bool tiled_product(const Value& v) const;
  // A product of few rows with an operand that lies along the contracted axis.
  bool dot_product(const Value& v) const;
  // Memory that shows the value's elements without a copy.
  std::optional<Memory> view(int id) const;
  // The same, with the memory of the value in memory that is looked at given.
  std::optional<Memory> view_of(int id, const Memory* source) const;
  int inlined_work(int id) const;
  // Whether a transposed value meets one that lies the other way: put down in tiles first, both are
  // read along their rows.
  bool turned(int id) const;

  // Buffers.
  void allocate(const std::string& name, DType dtype, int64_t elements);
  // Scratch memory for a value, or its place in the workspace.
  void allocate_value(int id);
  void workspace_pointer(int id);
  void touch(const std::string& name);
  void touch(int id);
  void touch(std::initializer_list<std::string> names) {
    for (const std::string& name : names) touch(name);
  }
  int64_t buffer_elements(const Value& v) const;

  // Loop bodies.
  void region(uint8_t loops, int last);

  // Values.
  Nest nest();
  void emit(Nest& nest);
  void compute(int id);
  // A copy with exchanged axes, in tiles; false where the loops of `elementwise` do as well.
  bool transpose(int id);
  bool concatenate(int id);  // piece by piece, without choices inside of loops
  std::string elementwise(Nest& loops, int id, const std::vector<Expr>& index);
  // An operand that dies with the element-by-element value `id`, which may take over its memory.
  std::optional<int> dying_operand(int id) const;
  std::vector<Expr> all_loops(Nest& loops, const std::vector<Extent>& extents) const;
  std::string tile_offset(int id) const;
  // Declares begin and extent of tiles that may be shorter, in the body of the loop they vary with.
  void declare_extents(uint8_t loops, int last);
  void tile(int id);
  void copy_tile(int id);
  void save(int id);
  // Whether a result is written past the caches.
  bool streams(int argument) const;
  void fill(const Memory& memory, const std::vector<Extent>& extents, const std::string& x);
  std::string neutral(AccumKind kind, DType dtype) const;
  void start_accumulator(int id);
  void accumulate(int id);
  void rescale(int id);
  // Where the running maximum and the scales of a rescaling accumulator are; accumulators with the
  // same maxima share them.
  std::string scales_of(int id) const;
  // Sums along the innermost axis of a value that is just being computed element by element.
  std::vector<int> sums_along(int id) const;
  // Adds one of them to the loops; returns its part of a reduction clause, or with `whole` the
  // statement that adds the vector `out`.
  std::string row_sum(Nest& loops, int sum, const std::string& x, std::vector<Expr> index,
                      int lanes, bool whole);
  // Lanes of the vectors that an innermost loop along such an axis is cut into; 0: too short.
  int row_lanes(const Extent& along, DType dtype) const;

  // emit_reduce.cpp
  // Asks for what lies behind the elements of `id` at `index`, if they are read densely from an
  // operand; empty where they are not.
  std::string fetch_ahead(int id, const std::vector<Expr>& index) const;
  void reduce(int id, const Memory& to, bool accumulate);
  struct Fold;
  void reduce_along(const Fold& fold, const Memory& to, bool accumulate);
  void reduce_across(const Fold& fold, const Value& v, const Memory& to, bool accumulate);
  void cumsum(int id);
  // emit_product.cpp
  void product(int id, const Memory& to, bool accumulate);
  // Operands and result of a product of matrices.
  struct Matrices {
    Memory left, right, to;
    Extent m, n, k;
    int64_t ars, acs, ldb, ldc;  // from row to row; acs: from column to column of the left operand
    std::string a, b, c;         // where the matrices begin
    int opened;                  // blocks of code around them
  };
  // Loops over their leading axes.
  Matrices open_product(int a, int b, const Value& v, const Memory& left, const Memory& right,
                        const Memory& to);
  void close_product(const Matrices& p);
  class Tiled;
  void tiled(int a, int b, const Value& v, const Memory& to, bool accumulate);
  // emit_panels.cpp
  // Memory of a right operand that lies in panels, and whether the value `id` can be multiplied
  // with it as it lies in memory.
  std::optional<Memory> panel_operand(int id) const;
  // Whether the kernel packs the panels of the right operand `id` by itself.
  bool packed_operand(int id) const;
  // Where the panels of a tile are that is packed.
  Memory packed_memory(const RightOperand& tile) const;
  int64_t packed_elements(const RightOperand& tile) const;
  // Decides which packed tiles stay for later blocks.
  void keep_packed();
  // Packs the tile of iterator `id` for all products that read panels of it.
  void pack_tile(int id);
  bool left_of_panel(int id, const Memory& right) const;
  void panels(int a, int b, const Value& v, const Memory& to, bool accumulate);
  // Calls `panel` for the code of each panel: how many of its vectors, its first column.
  void each_panel(const Extent& n, const RegisterTile& tile,
                  const std::function<void(int64_t vectors, const std::string& column)>& panel);
  // What is left of m rows after whole tiles, from row m of the code on.
  void last_rows(const Extent& m, int64_t tile, const std::function<void(int64_t rows)>& call);
  // One product of few rows with all panels.
  void streams(const Matrices& p, const StreamTile& tile, bool accumulate);
  class Strips;  // all panels, by register tiles
  // Where a tile begins that the kernel packs, and how far what lies in order there is apart: its
  // rows, or its columns where it is `turned`. None: an empty string.
  struct NextTile {
    std::string begin = {};
    int64_t pitch = 0;
    bool turned = false;
  };
  // The one that is packed after the right operand `b` of the product `p`.
  NextTile next_tile(int b, const Matrices& p) const;
  struct LeftRows {
    std::string name;
    int64_t pitch = 0, low = 0;
  };
  // A copy of the left operand at `pointer`, as `storage`, whose rows' elements lie side by side. A
  // zero follows each row of bf16; `split` makes f32 elements sums of two bf16, the smaller ones
  // `low` elements behind the greater.
  LeftRows left_rows(const Value& x, const Memory& from, const std::string& pointer, DType storage,
                     bool split);
  // Loops over the leading axes of a product, which move the pointers; axes of extent 1 are shared.
  struct Leading {
    std::string& pointer;
    const Value& value;
    const Memory& memory;
  };
  int open_leading(const Value& v, std::initializer_list<Leading> operands);
  // emit_dot.cpp
  void dots(int a, int b, const Value& v, const Memory& to, bool accumulate);
  void generic(int a, int b, const Value& v, const Memory& to, bool accumulate);
  // emit_rows.cpp
  // Memory of the right operand `id` of product `v` if row kernels read it as it is.
  std::optional<Memory> row_operand(const Value& v, int id) const;
  // Memory of the left operand `a` if the product with `b` can be dot products of bf16 pairs.
  std::optional<Memory> pair_operand(const Value& v, int a, int b) const;
  class Rows;
  void by_rows(int a, int b, const Value& v, const Memory& to, bool accumulate);

  KernelValues kernel_;
  UnitContext& unit_;
  KernelPart part_;
  std::map<int, int64_t> shared_;  // values in the workspace: offset in bytes
  int64_t workspace_bytes_ = 0;
  std::vector<std::vector<int>> users_;
  std::vector<bool> needed_;
  std::vector<int> fused_;        // accumulator that a product or reduction adds to directly, or -1
  uint8_t region_loops_ = 0;      // loops around the code being written
  std::set<int> computed_;        // values whose code is written
  std::set<int> summed_;          // sums that were computed together with their operand
  std::set<std::string> scaled_;  // scales that the current iteration has computed
  std::set<int> dots_;            // products by dots()
  // Packed tiles of all iterations that neighbouring blocks share: how many blocks do.
  std::map<RightOperand, int64_t> kept_;
  std::map<RightOperand, PanelShape> packed_;  // tiles that are packed into panels
  std::set<int> copies_;                       // iterators whose tile is copied into another type
  std::vector<int> touched_;
  Code code_;
  std::vector<Buffer> buffers_;
  std::map<std::string, size_t> buffer_of_;
  std::vector<std::set<size_t>> regions_;  // open loops: outer buffers that they use
  int clock_ = 0;
  int names_ = 0;
};

}  // namespace tessera
