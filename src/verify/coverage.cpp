#include "verify/coverage.h"

#include "base/error.h"
#include "ir/text.h"
#include "ir/walk.h"
#include "verify/bounds.h"
#include "verify/decisions.h"

namespace tessera {
namespace {

// Between which numbers each tensor's integers lie.
std::vector<Bounds> ranges(const Graph& g) {
  std::vector<Bounds> range(g.tensors().size());
  for (const Op& op : g.ops()) {
    if (op.body.valid() || op.num_results != 1) continue;
    std::vector<Bounds> operands = mapped(op.inputs, [&](TensorId t) { return range[t.index]; });
    const Bounds made = computed(g, op, operands), held = bounds_of(g.type(op.result()).dtype);
    range[op.result().index] = made.within(held) ? made : held;
  }
  return range;
}

}  // namespace

BranchCoverage::BranchCoverage(const Graph& graph) : graph_(without_dead_code(graph)) {
  Graph& g = graph_;
  const std::vector<bool> asked = made_of_inputs(g);
  const std::vector<Bounds> range = ranges(g);
  std::vector<TensorId> outputs;
  const size_t count = g.ops().size();
  for (size_t i = 0; i < count; i++) {
    const Op op = g.ops()[i];
    if (!asked[op.result().index]) continue;
    if (op.body.valid()) {
      if (hidden_.empty() && has_decisions(g.body(op)))
        hidden_ = "`" + print_op(g, OpId(uint32_t(i))) + "`: decisions inside a fused kernel";
      continue;
    }
    const DType dtype = g.type(op.result()).dtype;
    Decision d{print_op(g, OpId(uint32_t(i))), outputs.size()};
    const auto order = [&](TensorId a, TensorId b, bool ties) {
      d.ties = ties;
      for (OpKind kind : {OpKind::Lt, OpKind::Gt}) outputs.push_back(g.add(kind, {a, b}));
      decisions_.push_back(d);
    };
    const auto zero = [&] { return g.add_const(0, Type{g.type(op.inputs[0]).dtype, {}}); };
    if (is_comparison(op.kind) && g.type(op.inputs[0]).dtype != DType::Bool)
      order(op.inputs[0], op.inputs[1], true);
    else if (is_extremum(op.kind))
      order(op.inputs[0], op.inputs[1], false);
    else if (decides_by_sign(op.kind))
      order(op.inputs[0], zero(), op.kind == OpKind::Sign);
    else if (op.kind == OpKind::Gather && range[op.inputs[1].index].low < 0)
      order(op.inputs[1], g.add_const(0, Type{g.type(op.inputs[1]).dtype, {}}), false);
    else if (decides(op))  // an extremum: of what it is filled up with, and of elements
      for (const Op* from = &g.producer(op.inputs[0]); has(from->kind, algebra::Movement);
           from = &g.producer(from->inputs[0]))
        if (const auto* pad = std::get_if<PadAttrs>(&from->attrs); pad && pad->value.finite()) {
          const Rational value = pad->value;  // `pad` goes when operators are added
          const TensorId filled = g.add_const(value, Type{dtype, {}});
          d.truth = true;
          outputs.push_back(g.add(OpKind::Eq, {op.result(), filled}));
          decisions_.push_back(d);
          break;
        }
    if (dtype != DType::Bool || is_input(op.kind)) continue;
    d = Decision{print_op(g, OpId(uint32_t(i))), outputs.size(), true};
    outputs.push_back(op.result());
    decisions_.push_back(d);
  }
  g.set_outputs(outputs);
}

void BranchCoverage::observe(const std::vector<NDArray>& inputs) {
  if (decisions_.empty()) return;
  std::vector<NDArray> held;
  try {
    held = eval(graph_, inputs);
  } catch (const Error&) {
    return;  // an index out of range where the original does not read it
  }
  for (Decision& d : decisions_) {
    const std::vector<int64_t>& x = held[d.at].ints;
    for (size_t i = 0; i < x.size(); i++)
      if (d.truth)
        d.met |= x[i] ? 4 : 1;
      else
        d.met |= x[i] ? 1 : held[d.at + 1].ints[i] ? 4 : 2;
  }
}

std::string BranchCoverage::first_unmet() const {
  if (!hidden_.empty()) return hidden_;
  for (const Decision& d : decisions_) {
    const auto lacks = [&](unsigned side) { return (d.met & side) == 0; };
    const char* what = nullptr;
    if (d.truth && (lacks(1) || lacks(4)))
      what = lacks(4) ? "it was never true" : "it was never false";
    else if (!d.truth && lacks(1))
      what = "the first operand was never less";
    else if (!d.truth && lacks(4))
      what = "the first operand was never greater";
    else if (!d.truth && d.ties && lacks(2))
      what = "the operands were never equal";
    if (what != nullptr) return "`" + d.text + "`: " + what;
  }
  return "";
}

}  // namespace tessera
