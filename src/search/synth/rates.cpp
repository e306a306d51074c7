#include "search/synth/rates.h"

#include <algorithm>

#include "base/check.h"

namespace tessera::synth {
namespace {

double pointwise_rate(const Rates& r, OpKind kind) {
  if (kind >= OpKind::Eq && kind <= OpKind::Ge) return r.compare;
  auto one_of = [&](std::initializer_list<OpKind> kinds) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  if (kind == OpKind::Where) return r.select;
  if (kind == OpKind::Pow) return r.power;
  if (one_of({OpKind::Exp, OpKind::Log, OpKind::Sin, OpKind::Cos, OpKind::Erf, OpKind::Tanh}))
    return r.transcendental;
  // NumPy has none of these: written out.
  if (one_of({OpKind::Sigmoid, OpKind::Silu, OpKind::Gelu, OpKind::GeluTanh}))
    return r.transcendental + 3 * r.simple;
  return r.simple;
}

}  // namespace

double Rates::seconds(const World& world, const Node& node, const Dims& result,
                      const Dims* const* args, const Form* arg_forms) const {
  const DimTable& dims = world.dims();
  const double out = double(dims.elements(result));
  const double width = size_in_bytes(result.dtype) / 4.0;
  double ns = call_ns, bytes = out * size_in_bytes(result.dtype);
  double most = out;  // elements of the largest operand
  for (int i = 0; i < node.arity; ++i) {
    const double n = double(dims.elements(*args[i]));
    most = std::max(most, n);
    bytes += n * size_in_bytes(args[i]->dtype);
  }
  switch (node.form) {
  case Form::Leaf:
  case Form::Extent:
  case Form::Const: return 0;
  case Form::Kept: return 0;  // always there
  case Form::Transpose:
  case Form::Unsqueeze:
  case Form::Squeeze:
  case Form::Diagonal: return view_ns * 1e-9;
  case Form::Broadcast:
    if (arg_forms[0] != Form::Const) return view_ns * 1e-9;
    ns += 2 * call_ns + simple * out * width;  // numpy.full
    break;
  case Form::Pointwise:
    if (node.kind == OpKind::Pow && world.constants()[node.attr] == Rational(-1)) {
      ns += simple * out * width;
      break;
    }
    ns += pointwise_rate(*this, node.kind) * out * width;
    for (int i = 0; i < node.arity; ++i) {
      if (args[i]->rank == 0 && (arg_forms[i] == Form::Const || arg_forms[i] == Form::Extent))
        ns += scalar_ns;
      if (arg_forms[i] == Form::Transpose && args[i]->rank > 1) ns += strided * out * width;
    }
    break;
  case Form::Reduce: {
    const bool last = (node.attr >> (args[0]->rank - 1) & 1) != 0;
    ns += 350 + (last ? reduce_last : reduce_other) * most * width;
    if (node.kind == OpKind::Mean) ns += 6 * call_ns;
    break;
  }
  case Form::Dot: {
    const DimId inner = args[0]->back(0);
    const double k = double(dims.extents[inner]);
    const double rows = args[0]->rank > 1 ? double(dims.extents[args[0]->back(1)]) : 1;
    const double columns = args[1]->rank > 1 ? double(dims.extents[args[1]->back(0)]) : 1;
    const double batch = out / (rows * columns);
    ns += call_ns + (batch - 1) * 0.5 * call_ns;
    if (rows == 1 || columns == 1)
      ns += batch * matrix_vector * k * std::max(rows, columns) * width;
    else
      ns += batch * 2 * flop * rows * columns * k * width;
    break;
  }
  case Form::Identity:
  case Form::Spread: ns += 6 * call_ns + copy * out * width; break;
  case Form::Triangle: ns += 8 * call_ns + triangle * out * width; break;
  case Form::Stack: ns += 6 * call_ns + copy * out * width; break;
  }
  if (bytes > cache_bytes) ns += bytes * byte;
  return ns * 1e-9;
}

}  // namespace tessera::synth
