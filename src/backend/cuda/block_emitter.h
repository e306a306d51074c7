// The generator behind emit_cuda: decides where the values of one block graph live (registers,
// shared memory, global memory) and writes the kernel step by step. Private to backend/cuda.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/describe.h"
#include "backend/cuda/emit.h"
#include "backend/cuda/steps.h"
#include "backend/nest.h"
#include "backend/values.h"

namespace tessera {

struct Lowering;  // backend/lower.h

struct BlockText : CudaLaunch {
  std::string text;
};

// What a kernel may take, and what it runs on.
struct EmitLimits {
  BlockLimits block;
  CudaArch arch;
  int cores = 1;      // multiprocessors
  int threads = 0;    // of a block; 0: as the generator sees fit
  bool tf32 = false;  // tensor cores may multiply f32
  int cluster = 1;    // blocks of a cluster at most
};

EmitLimits emit_limits(const CudaArch& arch, const Target& target, const PlanOptions& options);
// How plain products and reductions are split: enough blocks for all multiprocessors, tiles of a
// size that tensor cores keep busy.
Lowering gpu_lowering(const Target& target);

// Registers of a thread that sums of products may take.
inline constexpr int kMostSums = 128;

class BlockEmitter {
 public:
  BlockEmitter(const KernelValues& kernel, const EmitLimits& limits,
               std::set<std::string>& prelude);
  // Throws Error(Unsupported) where shared memory does not suffice.
  BlockText run(const std::string& name);
  // The statements of a kernel, in which g0, g1, … are the block's place in the grid and a0, a1, …
  // its arguments; of the rest of a BlockText all but the text.
  std::string statements(BlockText& out);
  // Whether the grid is given as one row, since CUDA's other dimensions are too short.
  bool flat() const;
  const KernelValues& kernel() const { return kernel_; }
  // What was decided, for the plan of the block (describe.cpp).
  DescribedBlock describe() const;

 private:
  friend class BlockDescriber;
  friend class ReductionCode;
  friend class ProgramPrinter;
  void plan_layouts();  // describe.cpp
  // Where the elements of a value are when something else reads them.
  enum class Home {
    None,      // nobody needs it
    Inline,    // computed where it is used
    Direct,    // an operand's tile, read from global memory
    Tile,      // an operand's tile, copied to shared memory
    Shared,    // computed into shared memory
    Fragment,  // sums of a product in the registers of those who computed them
    Stored,    // a result
  };
  // How a product is given to warps (of tensor cores) or threads: units of `rows` × `columns`
  // fragments (of single elements), `slots` units each.
  struct Units {
    bool tensor_cores = false;
    bool tf32 = false;  // operands are f32, rounded as they are read; fragments are 8 deep
    int rows = 1, columns = 1;
    int64_t row_units = 1, column_units = 1, batch = 1;
    int workers = 1, slots = 1;
    bool registers = false;  // sums stay in registers from one iteration to the next
    // By four warps at once (wgmma): a row of fragments is then one of 64×8. Swapped: what is
    // computed is the transposed product, rows and columns are those of that.
    bool wide = false, swapped = false;
    int64_t units() const { return row_units * column_units * batch; }
    int numbers() const { return rows * columns * (tensor_cores ? 4 : 1); }
  };
  // How the asynchronous proxy brings a tile: boxes of `rows` rows, one map for all.
  struct Boxes {
    int map = 0, rows = 0;
  };
  struct Pair {
    int left, right;
  };

  const Value& value(int id) const { return kernel_.values[size_t(id)]; }
  Value& value(int id) { return kernel_.values[size_t(id)]; }
  Home home(int id) const { return home_[size_t(id)]; }
  bool in_memory(int id) const { return home(id) != Home::Inline && home(id) != Home::None; }
  bool root(int id) const { return is_store(value(id).kind) || is_accumulator(value(id).kind); }

  // decide.cpp
  void decide();
  void choose_threads();
  int operand_source(int input, bool tensor_cores) const;
  void copy_operands();
  void place_shared(int id, bool operand);
  bool tensor_cores(const Value& product) const;
  // Extent of an axis as it lies in memory: operands of tensor cores are filled up with zeros.
  int64_t stored(int id, size_t axis) const;
  std::vector<Pair> pairs(const Value& product) const;
  Units units(const Value& product, bool accumulates) const;
  // Memory that shows the value's elements without a copy.
  std::optional<Memory> view(int id) const;
  int work_inline(int id) const;

  // emit_block.cpp
  size_t buffer(const std::string& name, DType dtype, int64_t elements);
  // Opens a step whose lines go to `code_`; finish() closes it.
  void begin(const std::string& comment);
  void finish();
  // `async`: by the asynchronous proxy.
  void reads(const std::string& buffer, const std::string& mapping, bool async = false);
  void writes(const std::string& buffer, const std::string& mapping, bool async = false);
  // Sums in registers, each thread its own.
  void holds(int id, bool write);
  // Adds the reads that `touched_` lists. `roots`: what was computed element by element, each by
  // the thread that `mapping` says.
  void reads_touched(const std::string& mapping, const std::vector<int>& roots = {}, int width = 1);
  void region(uint8_t loops, int last);
  void compute(int id);
  std::string n(int64_t x) const { return std::to_string(x); }

  // emit_tiles.cpp
  // Lines that declare begin and extent of tiles that may be shorter, of the loop they vary with.
  void declare_extents(uint8_t loops, int last, std::vector<std::string>& lines) const;
  void declare_extent(int id, size_t axis, std::vector<std::string>& lines) const;
  std::string tile_offset(int id) const;
  int piece_bytes(int id) const;
  int64_t memory_elements(int id) const;
  void copy_code(int id, Code& code) const;
  void load_tile(int id);
  void direct_tile(int id);

  // emit_values.cpp
  // How each() gives elements to threads: one after the other.
  std::string mapping_of(const std::vector<Extent>& extents, int width = 1) const;
  // Declares an index for each axis, from that of the element, or of the vector of `width`.
  std::vector<Expr> indices(const std::vector<Extent>& extents, const Expr& flat, int width = 1);
  // Opens a block of code that knows where the tile of a result begins.
  Memory open_result(int id);
  void store_element(int id, const std::vector<Expr>& index, const Memory& to);
  // Whether an element lies within a tile that may be shorter.
  Condition guard(const std::vector<Extent>& extents, const std::vector<Expr>& index) const;
  // Opens a loop over `i` below `elements`.
  void open_each(int64_t elements);
  std::vector<Expr> each(std::vector<Extent> extents, int width = 1);
  Nest nest() { return Nest(kernel_, prelude_, touched_, Dialect::Cuda); }
  std::string element(Nest& nest, int id, const std::vector<Expr>& index);
  std::string shape_text(const Value& v) const;
  void elementwise(int id);
  void cumsum(int id);
  void save(int id);

  // emit_reductions.cpp
  void reduce(int id, int into);

  // emit_accumulators.cpp
  void fill(const std::string& pointer, const Value& shape, const Memory& memory,
            const std::string& x);
  void start_accumulator(int id);
  void accumulate(int id);
  void finish_accumulator(int id);
  // Where the running maximum and the scales of a rescaling accumulator are; accumulators with the
  // same maxima share them.
  std::string scales_of(int id) const;
  Memory scale_memory(int id, const char* part) const;
  void scales(int id);
  std::string factor(int id, const char* part, const std::vector<Expr>& index);

  // emit_product.cpp
  std::string unit_shape(const Units& u) const;
  std::string sums_shape(const Units& u) const;
  void open_units(const Units& u);
  void know_matrix(int product);  // of a batch: `leading_`
  void open_matrices(int product);
  void unrolled(const char* index, int64_t count);  // opens a loop over 0 … count − 1
  void product(int id, int into);
  Expr matrix_of(int operand, const Memory& m) const;
  void fragments(int id, const Pair& pair, const Units& u, const std::string& sums, int number);
  void scalars(int id, const Pair& pair, const Units& u, const std::string& sums);
  void each_sum(int id, const Units& u, const std::string& sums, bool padded,
                const std::function<void(const std::string&, const std::vector<Expr>&)>& inside);
  void store_sums(int id, int into, const Units& u, const std::string& sums, bool accumulates);
  void rescale_sums(int id, int into, const Units& u);
  void spill(int accumulator);

  // emit_fragments.cpp: what is done with products while they are in registers
  std::pair<int64_t, int64_t> covered(const Units& u) const;
  // `into`: a product that takes the holder as its left operand from there.
  std::optional<std::set<int>> fragment_steps(int holder, const Units& u, int into = -1) const;
  void choose_fragments();
  static Expr lane() { return Expr::variable("ts::lane()", {0, 31}); }
  Expr first_row(const Units& u) const;  // of a thread's fragments
  Expr row_of_fragment(const Units& u) const;
  // Row and column of a number that a thread holds: of y and the pair x, x + 1, whichever of them
  // is the row.
  std::pair<Expr, Expr> places_in_registers(const Units& u) const;
  std::string held_number(int holder, const Units& u) const;
  std::vector<Expr> index_in(const Value& v, const Expr& row, const Expr& column) const;
  Nest nest_over(int step, const Units& u, const std::vector<Expr>& index);
  void reads_held(int step);
  Condition within(const Units& u, const Value& v, const Value* also,
                   const std::optional<Expr>& row, const std::optional<Expr>& column) const;
  // Operands that go from one product to the next without shared memory.
  void keep_operands();
  void align_rows();
  bool kept_as_rows(int id, const Units& u, int product, const Units& of_product) const;
  void hold_operand(int id);
  std::string rows_in_registers(int operand, const Units& u, const std::string& i,
                                const std::string& k) const;
  void store_held(int id);

  // emit_wide.cpp: products of four warps, and boxes that the asynchronous proxy copies (sm_90a)
  // `why`: where there are none, the reason, if the architecture has such products.
  std::optional<Units> wide_units(const Value& product, bool accumulates,
                                  std::string* why = nullptr) const;
  void choose_boxes();
  std::optional<int64_t> row_pitch(int id) const;
  int64_t rows_of_map(int id) const;
  bool boxes_fit(int id) const;
  void box_layout(int id);
  void wide_fragments(int id, const Units& u, const std::string& sums);
  void copy_boxes(int id, const std::string& full, Code& code) const;
  void store_as_matrices(int id);

  // print_program.cpp
  void print_program(const BlockPlan& plan, std::string& text) const;

  KernelValues kernel_;
  EmitLimits limits_;
  std::set<std::string>& prelude_;
  std::vector<std::vector<int>> users_;
  std::vector<bool> needed_;
  std::vector<Home> home_;
  std::vector<bool> operand_;   // of products
  std::vector<bool> fragment_;  // operands of tensor cores, in 16 bits
  std::vector<int> fused_;      // accumulator that a product or reduction adds to, or -1
  std::map<int, Units> units_;  // of products
  std::map<int, std::vector<int>>
      held_for_;                 // by step: products and sums that it finds in registers
  std::map<int, int> units_of_;  // of those: the product
  std::set<int> as_matrices_;    // values that go from registers to memory by stmatrix
  std::vector<int> box_width_;   // columns of boxes that a value lies in, 0: none
  std::map<int, Boxes> boxes_;   // of tiles that the asynchronous proxy brings
  std::vector<TensorMapSpec> maps_;
  int threads_ = 128;
  std::vector<int64_t> planned_elements_;  // of each value in shared memory, padding included

  EmitFlow flow_;
  int loop_ = -1;  // of the flow: the one that is being written
  std::map<std::string, size_t> buffer_of_;
  std::vector<std::string> head_;  // declarations of the kernel
  EmitStep step_;
  Code code_;
  std::vector<int> touched_;
  std::set<std::string> scaled_;
  std::vector<Expr> leading_;  // of the product's unit that is being written
};

}  // namespace tessera
