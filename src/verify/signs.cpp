#include "verify/signs.h"

#include <algorithm>

#include "base/interruption.h"
#include "ir/custom.h"
#include "ir/window.h"

namespace tessera {
namespace {

// Signs of tensors by their form, in one pass; says on the way whether all operators stay in their
// domains.
class FormSigns {
 public:
  std::vector<Sign> run(const Graph& g, const std::vector<Sign>& arguments) {
    std::vector<Sign> v(g.tensors().size(), Sign::Any);
    size_t next = 0;
    for (const Op& op : g.ops()) {
      if (is_input(op.kind)) {
        const Sign s = next < arguments.size() ? arguments[next] : Sign::Any;
        v[op.result().index] = g.type(op.result()).dtype == DType::Bool ? Sign::NotNegative : s;
        next++;
        continue;
      }
      if (op.body.valid()) {
        std::vector<Sign> in = mapped(op.inputs, [&](TensorId t) { return v[t.index]; });
        const std::vector<Sign> inner = run(g.body(op), in);
        for (uint32_t r = 0; r < op.num_results; r++)
          v[op.result(r).index] = inner[g.body(op).outputs()[r].index];
        continue;
      }
      const Sign s = sign(g, op, v);
      for (uint32_t r = 0; r < op.num_results; r++) v[op.result(r).index] = s;
    }
    return v;
  }
  const Graph* outside = nullptr;  // whose denominators are set aside
  Domains found;

 private:
  void divides(const Graph& g, TensorId by, Sign s) {
    if (is_zero_free(g, by, s)) return;
    if (&g == outside)
      found.poles.push_back(by);
    else
      found.total = false;
  }

  static bool is_zero_free(const Graph& g, TensorId t, Sign s) {
    const Op& op = g.producer(t);
    if (only_moves(op.kind) && op.inputs.size() == 1) return is_zero_free(g, op.inputs[0], s);
    return s == Sign::Positive || (op.constant() && !op.constant()->is_zero());
  }
  static Sign of(const Rational& c) {
    return c.negative() ? Sign::Any : c.is_zero() ? Sign::NotNegative : Sign::Positive;
  }

  Sign sign(const Graph& g, const Op& op, const std::vector<Sign>& v) {
    interruption_point();
    const auto in = [&](size_t i) { return v[op.inputs[i].index]; };
    const auto least = [&](size_t from = 0) {
      Sign s = Sign::Positive;
      for (size_t i = from; i < op.inputs.size(); i++) s = std::min(s, in(i));
      return op.inputs.empty() ? Sign::Any : s;
    };
    const auto needs = [&](bool holds) {
      if (!holds && &g == outside && !is_opaque(op.kind))
        found.bases.push_back({op.inputs[0], op.kind == OpKind::Log1p ? -1.0 : 0.0,
                               in(0) == Sign::NotNegative,
                               op.kind != OpKind::Sqrt && op.kind != OpKind::Pow});
      found.total = found.total && holds;
    };
    const DType dtype = g.type(op.result()).dtype;
    if (dtype == DType::Bool) return Sign::NotNegative;
    if (op.constant()) return of(*op.constant());
    if (is_literal(op.kind)) return Sign::NotNegative;
    if (op.kind == OpKind::Max) return std::max(in(0), in(1));
    if (!is_float(dtype)) return Sign::Any;  // integers wrap
    if (is_accumulator(op.kind)) return in(0);
    if (is_opaque(op.kind)) {
      needs(false);
      return Sign::Any;
    }
    switch (op.kind) {
    case OpKind::Sqrt: needs(in(0) != Sign::Any); return std::max(in(0), Sign::NotNegative);
    case OpKind::Rsqrt: needs(in(0) == Sign::Positive); return Sign::Positive;
    case OpKind::Log: needs(in(0) == Sign::Positive); return Sign::Any;
    case OpKind::Log1p: needs(in(0) != Sign::Any); return in(0);
    case OpKind::Expm1: return in(0);
    case OpKind::Pow: {
      const Rational& e = g.attrs<PowAttrs>(op).exponent;
      if (!e.is_integer()) needs(in(0) == Sign::Positive || (!e.negative() && in(0) != Sign::Any));
      if (e.negative()) divides(g, op.inputs[0], in(0));
      const bool even = e.is_integer() && e.exp2() <= 0 && e.num() % 2 == 0;
      return !even ? in(0) : e.negative() ? Sign::Positive : std::max(in(0), Sign::NotNegative);
    }
    case OpKind::Power: needs(in(0) == Sign::Positive); return in(0);
    case OpKind::Div: divides(g, op.inputs[1], in(1)); return least();
    case OpKind::Mod:
      divides(g, op.inputs[1], in(1));
      return in(1) == Sign::Positive ? Sign::NotNegative : Sign::Any;
    case OpKind::Add: {
      if (least() == Sign::Any) return Sign::Any;
      return std::max(in(0), in(1));
    }
    case OpKind::Mul:
      return op.inputs[0] == op.inputs[1] ? std::max(in(0), Sign::NotNegative) : least();
    case OpKind::Gather: return in(0);
    case OpKind::Pad: return std::min(in(0), of(g.attrs<PadAttrs>(op).value));
    case OpKind::Where:
    case OpKind::Cast:
    case OpKind::Min: return least(first_value(op.kind));
    case OpKind::Neg:
    case OpKind::Sub: return Sign::Any;
    default: break;
    }
    if (op.kind == OpKind::Custom && !custom_function(std::get<CustomAttrs>(op.attrs)).is_total())
      found.total = false;
    if (has(op.kind, algebra::Positive)) return Sign::Positive;
    if (has(op.kind, algebra::NotNegative)) return std::max(in(0), Sign::NotNegative);
    if (has(op.kind, algebra::Partial)) found.total = false;
    // Windows and triangles add zeros.
    const bool ring = has(op.kind, algebra::Ring);
    if (has(op.kind, algebra::Fills) || (ring && is_windowed(op.kind)))
      return std::min(least(), Sign::NotNegative);
    const bool keeps =
        ring || has(op.kind, algebra::Movement) || is_reduction(op.kind) || is_tile(op.kind);
    return keeps ? least() : Sign::Any;
  }
};

}  // namespace

bool is_total(const Graph& graph) {
  FormSigns signs;
  signs.run(graph, {});
  return signs.found.total;
}

Domains domains_of(const Graph& graph) {
  FormSigns signs;
  signs.outside = &graph;
  signs.run(graph, {});
  return std::move(signs.found);
}

std::vector<Sign> signs_of(const Graph& graph, const std::vector<Sign>& arguments) {
  return FormSigns().run(graph, arguments);
}

bool is_nonnegative(const Graph& graph, TensorId t) {
  return is_float(graph.type(t).dtype) && signs_of(graph)[t.index] != Sign::Any;
}

}  // namespace tessera
