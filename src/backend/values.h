// The values of one kernel in the form that code is generated from: a block graph with its thread
// graphs dissolved, every axis with its actual extent as a C++ expression, and a place in memory
// for those values that have one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/block.h"
#include "ir/graph.h"
#include "kernel/expr.h"
#include "plan/layout.h"
#include "plan/strides.h"

namespace tessera {

// One axis of a tile. Later tiles may be shorter than the nominal one; then `actual` names a
// variable of the generated code that holds the extent.
struct Extent {
  int64_t nominal = 1;
  std::string actual;  // empty: always nominal
  uint8_t loops = 0;   // loops whose iteration it varies with
  int64_t last = 0;    // of the last tile, where all others are whole; 0: unknown

  bool exact() const { return actual.empty(); }
  std::string text() const { return expr().text(); }
  Expr expr() const { return exact() ? Expr(nominal) : Expr::variable(actual, {0, nominal}); }
};

int64_t elements_of(const std::vector<Extent>& extents);  // nominal

// How memory is accessed: plainly in C++; by device functions in CUDA.
enum class Space { Plain, Global, Shared };

// Where a value's elements are: `pointer` is a variable of the generated code, of type `storage`.
struct Memory {
  std::string pointer;
  DType storage = DType::F32;
  std::vector<int64_t> strides;  // in elements, one per axis
  // Panels of a right operand (plan/layout.h): strides are those inside a panel, and column n, a
  // multiple of `panel`, begins at n * panel_pitch; with groups, rows are at multiples of a group.
  // 0: no panels, any element by its strides.
  int64_t panel = 0;
  int64_t panel_pitch = 0;
  Space space = Space::Plain;
  // Shared memory whose 16-byte pieces change places: the element at offset x is at
  // x ^ (x >> swizzle_shift & swizzle_mask). 0: they do not.
  int swizzle_shift = 0, swizzle_mask = 0;
  // Matrices as boxes (ts::boxed): in blocks of swizzle_mask + 8 columns, each with all `box_rows`;
  // strides are then those of whole rows of `box_columns`. 0: not so.
  int box_rows = 0, box_columns = 0;
  int aligned = 16;  // bytes that the address of the first element is a multiple of
};

struct Value {
  OpKind kind = OpKind::Input;
  Attrs attrs = {};
  std::vector<int> inputs = {};
  DType dtype = DType::F32;
  std::vector<Extent> extents = {};
  Phase phase = {};
  bool grid = false;  // differs between blocks
  int argument = -1;  // Iter: which operand of the kernel; Save: which result
  bool in_memory = false;
  Memory memory = {};

  int rank() const { return int(extents.size()); }
  std::vector<int64_t> shape() const;  // nominal, as its number of elements
  int64_t elements() const { return elements_of(extents); }
};

// Loops in whose body a value is computed; for accumulators, where they are updated.
uint8_t update_loops(const Value& value);
// Whether the loops of `inner` begin with those of `outer` and then `next`.
bool continues(uint8_t inner, uint8_t outer, int next);
// How the grid and the loops cut the array that a tile is of.
const GridMap& grid_map(const Value& tile);
const LoopMap& loop_map(const Value& tile);

// Values in topological order; roots are the Save operators.
struct KernelValues {
  std::vector<int64_t> grid, loops;
  std::vector<Value> values;
  std::vector<std::vector<int64_t>> argument_extents;  // operands, then results
  std::vector<DType> argument_dtypes;
  std::vector<Layout> argument_layouts;  // of the operands; missing ones are row-major
  int operands = 0;
  bool rounds = false;  // as NumPy does, operator by operator (backend/jumps.h)

  std::vector<std::vector<int>> users() const;
  // An argument as memory at `pointer`, and the pitch of each axis when tiles of it are looked up.
  Memory argument_memory(int argument, const std::string& pointer) const;
  std::vector<int64_t> argument_pitch(int argument) const;
  // Where an argument's first element is, in elements from the address that the kernel is given.
  int64_t argument_offset(int argument) const;
  // How the grid and the loops cut an axis: index variable and size of a part, outermost first.
  struct Split {
    std::string variable;
    int64_t size;
  };
  std::vector<Split> splits(const Value& tile, size_t axis) const;
  // The first accumulator with the same maxima as the rescaling one `id`, of those that `needed`
  // says: they share the running maximum and the scales.
  int same_scales(int id, const std::vector<bool>& needed) const;
  // The argument's layout if it has tiles of panels along that axis, else null.
  const Layout* tiles_of(int argument, size_t axis) const;
};

// Throws Error{Unsupported} where tiles that do not divide meet an operator that needs whole ones.
// `layouts`: of the operands, as far as they are not row-major. Sums of products of few rows with
// panels leave the loops they are summed over: each panel is then read from end to end.
KernelValues kernel_values(const Graph& block_graph, const std::vector<Layout>& layouts = {});

// One operator over whole arrays: operands "a0", "a1", … in memory and the result, the last value.
// Neighbouring axes are merged where that changes nothing.
KernelValues operator_values(const Graph& graph, const Op& op, const std::vector<Layout>& layouts);

// Operand and result shapes of a pointwise operator with neighbouring axes merged where every
// operand either has both or broadcasts both: long inner loops for any shape.
std::vector<std::vector<int64_t>> merged_axes(std::vector<std::vector<int64_t>> shapes);

// A value that turns its operand's axes (ir/op.h): its strides from those of the operand.
std::vector<int64_t> turned_strides(const Value& value, const std::vector<int64_t>& strides);

// Row-major strides of a contiguous tensor.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& extents);

}  // namespace tessera
