#include "search/synth/window.h"

#include <algorithm>

#include "search/synth/bank.h"
#include "search/synth/deeper.h"
#include "search/synth/sketches.h"

namespace tessera::synth {
namespace {

// Bottom-up enumeration: all programs of one operation, of two, of three …
class Window {
 public:
  Window(Bank& bank) : bank_(bank), world_(bank.world()), grammar_(bank.grammar()) {}

  void run(const std::vector<ValueId>& leaves) {
    for (ValueId v : leaves) bank_.add_leaf(v);
    for (const DType dtype : dtypes(leaves))
      for (const Rational& c : grammar_.constants) bank_.constant(c, dtype);
    for (uint64_t extent : grammar_.extents) {
      if (!spanned(extent, leaves)) continue;
      for (const DType dtype : dtypes(leaves)) {
        if (!is_float(dtype)) continue;
        const ValueId v = bank_.graph().add(leaf(Form::Extent, extent, dtype));
        if (v != kNone) bank_.add_leaf(v);
      }
    }
    views_of_leaves();
    const WindowLimits& limits = bank_.limits();
    int complete = 0;
    for (int size = 1; size <= limits.max_size && !bank_.over(); ++size) {
      level(size);
      if (bank_.over()) break;
      complete = size;
      if (limits.holes) meet(bank_, size);
    }
    bank_.report().complete = !bank_.over();
    // What enumeration does not reach: longer programs than twice its size and one.
    if (limits.holes && limits.operations > complete + 2 && !bank_.stopped())
      meet_deeper(bank_, limits.probes);
    bank_.report().values = int64_t(bank_.size());
  }

 private:
  // Those of the numbers among the leaves and the target, each once.
  std::vector<DType> dtypes(const std::vector<ValueId>& leaves) const {
    std::vector<DType> all;
    auto add = [&](ValueId v) {
      const DType dtype = bank_.graph()[v].sample.dims.dtype;
      if (dtype != DType::Bool && std::ranges::find(all, dtype) == all.end()) all.push_back(dtype);
    };
    add(bank_.target());
    for (ValueId v : leaves) add(v);
    return all;
  }
  // Are an extent's dimensions among those of the leaves, and told apart by their sizes?
  bool spanned(uint64_t extent, const std::vector<ValueId>& leaves) const {
    std::set<DimId> present;
    for (ValueId v : leaves) {
      const Dims& d = bank_.graph()[v].sample.dims;
      present.insert(d.axis.begin(), d.axis.begin() + d.rank);
    }
    const auto& sizes = world_.dims().sizes;
    for (; extent != 0; extent >>= 8) {
      const DimId dim = DimId(extent & 255);
      if (!present.count(dim)) return false;
      for (DimId other : present)
        if (other != dim && sizes[other] == sizes[dim]) return false;
    }
    return true;
  }

  void views_of_leaves() {
    const std::vector<uint32_t> leaves = bank_.level(0);
    for (uint32_t id : leaves) {
      const Dims d = bank_[id].sample.dims;  // entries move as others come
      if (d.rank >= 2) bank_.try_node(view(Form::Transpose, id, swapped(d.rank)), 0);
      if (d.rank == 1 && grammar_.max_rank > 1) bank_.try_node(view(Form::Unsqueeze, id, 2), 0);
      if (d.rank >= 2 && grammar_.diagonals) bank_.try_node(view(Form::Diagonal, id, 0), 0);
    }
  }
  // Transpose's attr that swaps the last two axes.
  static uint64_t swapped(int rank) {
    uint64_t attr = 0;
    for (int a = 0; a < rank; ++a) {
      const int from = a < rank - 2 ? a : 2 * rank - 3 - a;
      attr |= uint64_t(from) << (4 * a);
    }
    return attr;
  }
  // Everything with `size` operations.
  void level(int size) {
    for (uint32_t id : std::vector<uint32_t>(bank_.level(size - 1))) {
      if (bank_.over()) return;
      if (bank_[id].total <= bank_.dearest()) unary(id, size);
    }
    for (int left = 0; left < size; ++left) {
      const int right = size - 1 - left;
      if (right > left) continue;  // each pair once, the larger first
      const std::vector<uint32_t> as = bank_.level(left), bs = bank_.level(right);
      for (uint32_t a : as) {
        if (bank_[a].total > bank_.dearest()) continue;
        for (uint32_t b : bs) {
          if (left == right && b > a) break;
          if (bank_[b].total > bank_.dearest()) continue;
          binary(a, b, size);
          if (bank_.over()) return;
        }
      }
    }
  }

  void unary(uint32_t a, int size) {
    const Dims d = bank_[a].sample.dims;
    if (d.dtype == DType::Bool || bank_.is_number(a)) return;
    for (int axis = 0; axis < d.rank; ++axis) {
      if (d.axis[size_t(axis)] == kOne) continue;
      reductions(a, uint64_t(1) << axis, size);
    }
    if (d.rank > 1) reductions(a, (uint64_t(1) << d.rank) - 1, size);
    if (d.rank > 2) reductions(a, uint64_t(3) << (d.rank - 2), size);
    if (size <= 2) {
      if (d.rank >= 2) bank_.try_node(view(Form::Transpose, a, swapped(d.rank)), size);
      if (d.rank == 1 && grammar_.max_rank > 1) bank_.try_node(view(Form::Unsqueeze, a, 2), size);
    }
    if (grammar_.diagonals && d.rank >= 2) bank_.try_node(view(Form::Diagonal, a, 0), size);
    if (grammar_.triangles && d.rank == 2 && size <= 2) {
      bank_.try_node(view(Form::Triangle, a, 0, OpKind::Triu), size);
      bank_.try_node(view(Form::Triangle, a, 0, OpKind::Tril), size);
    }
    const bool real = is_float(d.dtype);
    if (grammar_.roots && real) bank_.try_node(pointwise(OpKind::Sqrt, a), size);
    if (grammar_.exponentials && real) {
      bank_.try_node(pointwise(OpKind::Exp, a), size);
      if (size == 1) bank_.try_node(pointwise(OpKind::Log, a), size);
    }
    if (grammar_.order) {
      bank_.try_node(pointwise(OpKind::Abs, a), size);
      if (size <= 2) bank_.try_node(pointwise(OpKind::Sign, a), size);
    }
    bank_.try_node(pointwise(OpKind::Neg, a), size);
  }
  void reductions(uint32_t a, uint64_t mask, int size) {
    bank_.try_node(view(Form::Reduce, a, mask, OpKind::Sum), size);
    if (grammar_.maxima) bank_.try_node(view(Form::Reduce, a, mask, OpKind::ReduceMax), size);
    if (grammar_.minima) bank_.try_node(view(Form::Reduce, a, mask, OpKind::ReduceMin), size);
  }

  void binary(uint32_t a, uint32_t b, int size) {
    const Dims x = bank_[a].sample.dims, y = bank_[b].sample.dims;
    if (x.dtype != y.dtype || x.dtype == DType::Bool || (bank_.is_number(a) && bank_.is_number(b)))
      return;
    if (broadcast(x, y)) {
      bank_.try_node(pointwise(OpKind::Mul, a, b), size);
      bank_.try_node(pointwise(OpKind::Add, a, b), size);
      if (a != b) {
        bank_.try_node(pointwise(OpKind::Sub, a, b), size);
        bank_.try_node(pointwise(OpKind::Sub, b, a), size);
        // Programs that never divide are not given quotients, which are not defined everywhere.
        const bool quotients = grammar_.quotients && is_float(x.dtype);
        if (bank_.is_extent(b) || (quotients && !bank_.is_constant(b)))
          bank_.try_node(pointwise(OpKind::Div, a, b), size);
        if (quotients && !bank_.is_constant(a)) bank_.try_node(pointwise(OpKind::Div, b, a), size);
        if (grammar_.order) {
          bank_.try_node(pointwise(OpKind::Max, a, b), size);
          bank_.try_node(pointwise(OpKind::Min, a, b), size);
        }
      }
    }
    if (x.rank > 0 && y.rank > 0) {
      bank_.try_node(product(a, b), size);
      if (a != b && x.rank + y.rank > 2) bank_.try_node(product(b, a), size);
    }
  }

  Bank& bank_;
  World& world_;
  const Grammar& grammar_;
};

}  // namespace

WindowReport search_window(EGraph& graph, const Grammar& grammar,
                           const std::vector<ValueId>& leaves, ValueId target,
                           const std::vector<bool>& live, const WindowLimits& limits,
                           const std::function<bool()>& stopped) {
  Bank bank(graph, grammar, target, live, limits, stopped);
  Window(bank).run(leaves);
  return bank.report();
}

}  // namespace tessera::synth
