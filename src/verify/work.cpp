#include "verify/work.h"

#include <algorithm>

#include "ir/block_schedule.h"
#include "ir/window.h"

namespace tessera {

namespace {

// What an element of an operand costs, in multiply-adds: fields have no order, so that extrema are
// looked up in sets (eval/domains.h), and comparisons in tables.
double weight(OpKind k) {
  if (reduces_by_order(k) || k == OpKind::PoolMax) return 16;
  return is_comparison(k) ? 4 : 1;
}

}  // namespace

double count_work(const Graph& g) {
  double work = 0;
  for (const Op& op : g.ops()) {
    if (is_kernel(op.kind)) {
      const Graph& body = g.body(op);
      const double iterations =
          double(body.num_blocks()) * total_iterations(body, block_schedule(body));
      work += iterations * count_work(body);
      continue;
    }
    if (op.body.valid()) {
      work += double(num_elements(g.type(op.result()).shape)) * double(g.body(op).ops().size());
      continue;
    }
    double n = 0;
    for (uint32_t r = 0; r < op.num_results; r++)
      n += double(num_elements(g.type(op.result(r)).shape));
    if (is_product(op.kind) || is_windowed(op.kind))
      n *= terms_of(g, op);
    else
      for (TensorId t : op.inputs) n = std::max(n, double(num_elements(g.type(t).shape)));
    if (is_tile(op.kind) || is_input(op.kind)) continue;
    work += n * weight(op.kind);
  }
  return work;
}

namespace {

// Over the paths to a graph's outputs, the most of what its operators contribute (one that is
// defined by a graph, what its longest path does): own(graph, operator), joined to what is most
// before it; `start` is what is most of an input.
template <class Own, class Join> double longest(const Graph& g, double start, Own own, Join join) {
  std::vector<double> length(g.tensors().size(), start);
  for (const Op& op : g.ops()) {
    double most = most_of(0.0, op.inputs, [&](TensorId t) { return length[t.index]; });
    const double mine = op.body.valid() ? longest(g.body(op), start, own, join) : own(g, op);
    for (uint32_t r = 0; r < op.num_results; r++) length[op.result(r).index] = join(most, mine);
  }
  return most_of(start, g.outputs(), [&](TensorId t) { return length[t.index]; });
}

double summed(const Graph& g, const Op& op) {
  return reduces_by_order(op.kind) ? 1 : terms_of(g, op);
}

}  // namespace

double rounding_length(const Graph& g) {
  return longest(
      g, 1, summed, [](double most, double own) { return most + own; });
}
double most_terms(const Graph& g) {
  return longest(
      g, 1, summed, [](double most, double own) { return std::max(1.0, most) * own; });
}

double function_depth(const Graph& g) {
  const auto is_function = [](const Graph&, const Op& op) -> double {
    return has(op.kind, algebra::Pointwise) && !has(op.kind, algebra::Linear) &&
           !has(op.kind, algebra::Associative);
  };
  return longest(g, 0, is_function, [](double most, double own) { return most + own; });
}

namespace {

// F64 stands for everything that is exact.
DType coarser(DType a, DType b) {
  constexpr DType fine_to_coarse[] = {DType::F64, DType::F32, DType::F16, DType::BF16};
  const auto rank = [&](DType t) {
    const auto* at = std::find(std::begin(fine_to_coarse), std::end(fine_to_coarse), t);
    return at == std::end(fine_to_coarse) ? 0 : at - fine_to_coarse;
  };
  return rank(a) < rank(b) ? b : a;
}

std::vector<DType> rounding_behind(const Graph& g, const std::vector<DType>& inputs) {
  std::vector<DType> behind(g.tensors().size(), DType::F64);
  for (size_t i = 0; i < g.inputs().size(); ++i) behind[g.inputs()[i].index] = inputs[i];
  for (const Op& op : g.ops()) {
    if (op.inputs.empty()) continue;  // operands and constants are what they are
    std::vector<DType> operands;
    DType coarsest = DType::F64;
    for (TensorId t : op.inputs) {
      operands.push_back(behind[t.index]);
      coarsest = coarser(coarsest, operands.back());
    }
    const DType from = g.type(op.inputs[0]).dtype;
    const bool converts = op.kind == OpKind::Cast || is_store(op.kind);
    const bool exact = has(op.kind, algebra::Movement) || is_load(op.kind) ||
                       (converts && coarser(from, g.type(op.result()).dtype) == from);
    std::vector<DType> results(op.num_results, coarsest);
    if (is_kernel(op.kind)) {
      const Graph& body = g.body(op);
      const std::vector<DType> inside = rounding_behind(body, operands);
      for (uint32_t r = 0; r < op.num_results; ++r) results[r] = inside[body.outputs()[r].index];
    } else if (!exact) {
      for (uint32_t r = 0; r < op.num_results; ++r)
        results[r] = coarser(coarsest, g.type(op.result(r)).dtype);
    }
    for (uint32_t r = 0; r < op.num_results; ++r) behind[op.result(r).index] = results[r];
  }
  return behind;
}

}  // namespace

std::vector<DType> coarsest_rounding(const Graph& g) {
  const std::vector<DType> behind =
      rounding_behind(g, std::vector<DType>(g.inputs().size(), DType::F64));
  return mapped(g.outputs(), [&](TensorId t) { return coarser(behind[t.index], g.type(t).dtype); });
}

}  // namespace tessera
