// Which operators become one kernel: rows that stay in the cache, with the products that make them.
// All values of a group have the same rows and each a width of its own: a number per row, the
// columns of a product, half of them. A block of the kernel takes some rows whole, or, where
// nothing but element-by-element operators follows a product, some of its columns.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "plan/strides.h"

namespace tessera {

// Parts that the rows and columns of a product are cut into over the grid, and its depth over the
// loop.
struct ProductTiles {
  int64_t row_blocks = 1, column_blocks = 1, iterations = 1;
};

// What fusion has to know of a machine.
struct FusionRules {
  // How `batch` products of m rows, n columns and depth k are cut.
  std::function<ProductTiles(DType, int64_t batch, int64_t m, int64_t n, int64_t k)> split;
  // By operator: whether it belongs to code of its own.
  std::function<std::vector<bool>(const Graph&)> apart;
  bool weights = true;    // what depends on weights alone is computed once, elsewhere
  bool compared = false;  // what is kept of weights is compared with them in every call
  // Up to how many rows a product reads the columns of its right operand where they lie in memory
  // one by one: faster than a copy in order, and of weights as fast.
  std::function<int64_t(DType)> few_rows;
  // Whether of more rows a product packs them tile by tile, and as how many rows it is cut at
  // least, so that tiles stay near.
  std::function<bool(DType, int64_t rows)> packs;
  int64_t packed_rows = 1;
};

// Where a member of a group finds an operand, over the group's rows and its own last axes.
struct RowOperand {
  enum Kind { Inside, Constant, Memory } kind = Inside;
  TensorId tensor;
  int64_t offset = 0, width = 1;  // of Inside: columns that are read
  Extents strides = {};           // of Memory
  friend bool operator==(const RowOperand&, const RowOperand&) = default;
};

struct RowGroup {
  explicit RowGroup(Extents r = {}) : rows(std::move(r)) {}
  Extents rows;
  std::vector<OpId> members;                           // in program order
  std::map<uint32_t, std::vector<RowOperand>> reads;   // by member
  std::map<uint32_t, int64_t> widths;                  // by tensor that is made here
  std::vector<OpId> products;                          // members that multiply what lies outside
  std::optional<std::pair<RowOperand, int64_t>> left;  // and its depth: products share it
  bool whole = false;                                  // a block has all columns of its rows
  bool makes(TensorId t) const { return widths.count(t.index) != 0; }
};

// The groups of a graph of static shapes.
class RowGroups {
 public:
  RowGroups(const Graph& graph, const FusionRules& rules);

  const Graph& graph() const { return graph_; }
  const Strided& view(TensorId t) const { return views_[t.index]; }
  Extents shape(TensorId t) const { return extents(graph_.type(t).shape); }
  // Weights, constants, and what follows from these alone.
  bool once(TensorId t) const { return once_[t.index]; }
  // Whether it is a product with the transpose of a matrix in memory: of few rows, or of more,
  // where it packs the matrix in each call, which is cheaper than a copy, also of a weight that
  // would be compared in each call.
  bool dots(const Op& op) const;
  bool packs(const Op& op) const;
  // The group that an operator is in, or null.
  const RowGroup* of(OpId op) const;
  const std::vector<RowGroup>& groups() const { return groups_; }
  // Whether it calls functions and compares, element by element: compilers (GCC 12) make vectors of
  // that only where all that a loop reads and writes lies in order, which is worth a copy.
  bool chooses_among_calls(const RowGroup& g) const;
  // The same operators over other rows; nullopt where they cannot be seen so.
  std::optional<RowGroup> over(const Extents& rows, std::vector<OpId> members) const;

 private:
  using Operands = std::optional<std::vector<RowOperand>>;
  std::optional<int64_t> rows_by_columns(const Op& op) const;
  std::optional<RowOperand> operand(const RowGroup& g, TensorId t, const Extents& over,
                                    const Extents& last, const Extents& rows) const;
  Operands operands(const RowGroup& g, const Op& op) const;
  Operands multiplied(const RowGroup& g, const Op& op) const;
  bool fits(const RowGroup& g, const Op& op, const std::vector<RowOperand>& found,
            int64_t width) const;
  bool plain(const RowGroup& g, const Op& op, int64_t width,
             const std::vector<RowOperand>& found) const;
  bool may_be_whole(const RowGroup& g) const;
  bool attends(const RowGroup& g) const;
  int64_t matrix_bytes(TensorId right) const;
  bool take(RowGroup& g, OpId id) const;
  void read_in_order(RowGroup& g) const;
  void place(OpId id);
  bool join(int number, OpId id);
  bool open(OpId id);
  void merge(int number, int other);
  bool waits(const std::set<int>& groups, const std::vector<OpId>& members) const;

  const Graph& graph_;
  const FusionRules& rules_;
  std::vector<bool> apart_, once_;  // by operator, by tensor
  std::vector<Strided> views_;
  std::vector<RowGroup> groups_;
  std::vector<int> home_;  // by operator: its group's number, or -1
};

}  // namespace tessera
