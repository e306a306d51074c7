// Where undefined elements come from: marks that run backwards from the results of partial
// operators (division, roots) to the inputs that feed them, and the record of a block that this
// needs.
#pragma once
#include <vector>

#include "eval/ndarray.h"
#include "eval/tensor.h"
#include "ir/graph.h"

namespace tessera {

// An element feeds some undefined result, some defined result of a partial operator, or both.
inline constexpr uint8_t kFeedsBad = 1, kFeedsGood = 2;
using Marks = std::vector<uint8_t>;  // one per element, contiguous

// Operators whose result can be undefined although the operands are defined.
bool is_partial(OpKind kind);

// For a partial operator: kFeedsBad or kFeedsGood for each element of the result that did not get
// its flag from an operand. Empty for other operators.
Marks origin_marks(OpKind kind, const std::vector<View>& in, const View& out);

// One operand or result during backward marking.
struct Marked {
  std::vector<int64_t> shape;
  Marks* marks;
};
// Adds the marks of a result to the operands that it was computed from. `index` holds the indices
// of a gather.
void mark_operands(const Graph& g, const Op& op, const std::vector<Marked>& operands,
                   const Marked& result, const NDArray& index);
// Adds marks of `from` to `to` where one is a region of the other (begin, extents of the smaller).
void mark_region(const Marked& whole, const Marked& part, const std::vector<int64_t>& begin,
                 bool into_whole);
// Indices of a gather, as mark_operands takes them.
NDArray integers_of(const View& v);

// What one block did: an entry per executed operator, tile and iteration.
struct BlockTrace {
  struct Entry {
    const Graph* graph;
    const Op* op;
    std::vector<int> operands;  // entries; none for iter
    std::vector<int64_t> shape;
    std::vector<int64_t> begin;  // iter and save: place in the argument or result
    int outside = -1;            // iter and save: which argument or result
    Marks origin;
    NDArray index;
  };
  std::vector<Entry> entries;
  std::vector<int> current;  // by tensor of the block graph: the entry that last gave its value

  int add(Entry entry) {
    entries.push_back(std::move(entry));
    return int(entries.size()) - 1;
  }
};

// Carries marks of a kernel's results to its arguments through one block.
void mark_block(const BlockTrace& trace, const std::vector<Marked>& arguments,
                const std::vector<Marked>& results);

}  // namespace tessera
