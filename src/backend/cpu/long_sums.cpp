#include "backend/cpu/long_sums.h"

#include <vector>

#include "ir/build.h"

namespace tessera {
namespace {

constexpr int64_t kLong = int64_t{1} << 16;             // elements: what is worth two stages
constexpr int64_t kLeastRow = 256, kMostRow = 1 << 16;  // elements
constexpr int64_t kLeastRows = 16, kUsualRow = 8192;    // enough for all threads
constexpr int64_t kVectors = 64;                        // rows of whole vectors are better

// Elements of a row where `all` elements are cut into rows; 0 where no cut fits.
int64_t row_of(int64_t all) {
  int64_t best = 0;
  const auto score = [](int64_t q) {
    return std::abs(q - kUsualRow) + (q % kVectors == 0 ? 0 : kMostRow);
  };
  for (int64_t rows = kLeastRows; all / rows >= kUsualRow / 8; ++rows) {
    const int64_t q = all / rows;
    if (all % rows == 0 && q <= kMostRow && (best == 0 || score(q) < score(best))) best = q;
  }
  return best;
}

class Stages {
 public:
  explicit Stages(const Graph& graph)
      : graph_(graph), to_(graph.name()), at_(graph.tensors().size()) {}

  Graph run() {
    for (const Op& op : graph_.ops())
      if (!(op.num_results == 1 && (reduction(op) || dot(op)))) copy_op(graph_, op, to_, at_);
    for (TensorId t : graph_.outputs()) to_.add_output(at_[t.index]);
    return changed_ ? without_dead_code(to_) : graph_;
  }

 private:
  const Type& type(TensorId t) const { return graph_.type(t); }

  bool reduction(const Op& op) {
    if (!is_reduction(op.kind)) return false;
    const Type& x = type(op.inputs[0]);
    const std::vector<int64_t> shape = extents(x.shape);
    const int64_t all = num_elements(x.shape), rank = int64_t(shape.size());
    const auto& a = graph_.attrs<ReduceAttrs>(op);
    const bool wide = x.dtype == DType::F32 || x.dtype == DType::F64;
    if (!wide || all < kLong || a.axes.empty() || a.axes.back() != rank - 1) return false;
    // Few results of many axes, the last of which is a row.
    const int64_t last = shape.back();
    if (a.axes.size() > 1 && last >= kLeastRow && last <= kMostRow && all / last >= kLeastRows) {
      ReduceAttrs rows = a;
      rows.axes = {int(rank) - 1};
      rows.keepdims = true;
      const TensorId y = to_.add(op.kind, {at_[op.inputs[0].index]}, rows);
      return finish(op, to_.add(op.kind, {y}, a, graph_.tensor(op.result()).name));
    }
    if (num_elements(type(op.result()).shape) != 1) return false;
    const int64_t row = row_of(all);
    if (row == 0) return false;
    return finish(op, reshaped(in_rows(op.kind, as_rows(op.inputs[0], all, row)), op));
  }

  bool dot(const Op& op) {
    if (op.kind != OpKind::Matmul) return false;
    const Type &x = type(op.inputs[0]), &y = type(op.inputs[1]);
    const int64_t all = num_elements(x.shape);
    if ((x.dtype != DType::F32 && x.dtype != DType::F64) || all < kLong ||
        num_elements(y.shape) != all || num_elements(type(op.result()).shape) != 1)
      return false;
    const int64_t row = row_of(all);
    if (row == 0) return false;
    const TensorId terms =
        to_.add(OpKind::Mul, {as_rows(op.inputs[0], all, row), as_rows(op.inputs[1], all, row)});
    return finish(op, reshaped(in_rows(OpKind::Sum, terms), op));
  }

  bool finish(const Op& op, TensorId result) {
    at_[op.result().index] = result;
    return changed_ = true;
  }
  TensorId reshaped(TensorId t, const Op& op) {
    return build::reshape(to_, t, {type(op.result()).shape}, graph_.tensor(op.result()).name);
  }
  TensorId in_rows(OpKind kind, TensorId rows) {
    ReduceAttrs last, both;
    last.axes = {1};
    both.axes = {0, 1};
    last.keepdims = both.keepdims = true;
    return to_.add(kind, {to_.add(kind, {rows}, last)}, both);
  }

  TensorId as_rows(TensorId t, int64_t all, int64_t row) {
    const ShapeAttrs shape{{Dim(all / row), Dim(row)}};
    return build::reshape(to_, at_[t.index], shape);
  }

  const Graph& graph_;
  Graph to_;
  std::vector<TensorId> at_;
  bool changed_ = false;
};

}  // namespace

Graph with_staged_reductions(const Graph& graph) { return Stages(graph).run(); }

}  // namespace tessera
