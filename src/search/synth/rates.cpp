#include "search/synth/rates.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace tessera::synth {
namespace {

double pointwise_rate(const Rates& r, OpKind kind) {
  if (is_comparison(kind)) return r.compare;
  if (kind == OpKind::Where) return r.select;
  if (kind == OpKind::Pow) return r.power;
  if (is_one_of(kind, OpKind::Exp, OpKind::Log, OpKind::Sin, OpKind::Cos, OpKind::Erf,
                OpKind::Tanh))
    return r.transcendental;
  // NumPy has none of these: written out.
  if (is_one_of(kind, OpKind::Sigmoid, OpKind::Silu, OpKind::Gelu, OpKind::GeluTanh))
    return r.transcendental + 3 * r.simple;
  return r.simple;
}

Timed pointwise_timed(const Node& node) {
  if (is_comparison(node.kind)) return Timed::Compare;
  if (node.kind == OpKind::Where) return Timed::Select;
  if (node.kind == OpKind::Pow) return Timed::Power;
  if (node.kind == OpKind::Sqr || (node.kind == OpKind::Mul && node.arg[0] == node.arg[1]))
    return Timed::Square;
  if (is_one_of(node.kind, OpKind::Exp, OpKind::Log, OpKind::Sigmoid, OpKind::Silu))
    return Timed::Exponential;
  if (is_one_of(node.kind, OpKind::Sin, OpKind::Cos, OpKind::Erf, OpKind::Tanh, OpKind::Gelu,
                OpKind::GeluTanh))
    return Timed::Trigonometric;
  return Timed::Simple;
}

}  // namespace

const char* timed_name(Timed what) {
  constexpr std::array<const char*, kNumTimed> names{
      "simple",         "square", "compare",     "select",       "exponential",
      "trigonometric",  "power",  "reduce_last", "reduce_other", "matrix_vector",
      "matrix_product", "stack",  "triangle"};
  return names[size_t(what)];
}

void Rates::set(const std::map<std::string, TimeCurve>& curves) {
  for (const auto& [name, curve] : curves) {
    size_t what = 0;
    while (what < kNumTimed && name != timed_name(Timed(what))) ++what;
    if (what == kNumTimed)
      throw Error(ErrorKind::Usage, "costs: there is no kind of operation '" + name + "'");
    double before = 0;
    for (const auto& [work, ns] : curve) {
      if (!(work > before) || !(ns >= 0) || !(ns < 1e18))
        throw Error(ErrorKind::Usage,
                    "costs of " + name + ": work must ascend from above 0, and times be finite");
      before = work;
    }
    measured[what] = curve;
    if (!curve.empty() && curve.front().second > 0)
      call_floor =
          call_floor > 0 ? std::min(call_floor, curve.front().second) : curve.front().second;
  }
}

double Rates::nanoseconds(Timed what, double work) const {
  const double ns = of_a_call(what, work);
  // A program is one call, in which a further loop costs its start: what the others measured
  // besides is the same for all programs.
  constexpr double kStart = 300;
  return ns < 0 || kind != CostKind::Fused ? ns : std::max(ns - call_floor, 0.0) + kStart;
}

double Rates::of_a_call(Timed what, double work) const {
  const TimeCurve& curve = measured[size_t(what)];
  if (curve.empty()) return -1;
  if (work <= curve.front().first) return curve.front().second;
  for (size_t i = 1; i < curve.size(); ++i) {
    const auto [from, low] = curve[i - 1];
    const auto [to, high] = curve[i];
    if (work <= to) return low + (high - low) * (work - from) / (to - from);
  }
  return curve.back().second * work / curve.back().first;
}

double Rates::flops(const World& world, const Node& node, const Dims& result,
                    const Dims* const* args) const {
  const DimTable& dims = world.dims();
  const double out = double(dims.elements(result));
  if (node.form == Form::Reduce) return double(dims.elements(*args[0]));
  if (node.form == Form::Dot) return 2 * out * double(dims.extents[args[0]->back(0)]);
  return node.form == Form::Pointwise && node.kind != OpKind::Cast ? out : 0;  // others move
}

bool Rates::fuses(Form form) {
  return form == Form::Pointwise || form == Form::Broadcast || form == Form::Triangle ||
         form == Form::Stack || form == Form::Identity || form == Form::Spread;
}

double Rates::loop_seconds(const World& world, const Dims& result) const {
  if (kind != CostKind::Fused) return 0;
  const double work = double(world.dims().elements(result)) * size_in_bytes(result.dtype) / 4.0;
  const double ns = nanoseconds(Timed::Simple, work);
  return (ns >= 0 ? ns : call_ns + simple * work) * 1e-9;
}

double Rates::seconds(const World& world, const Node& node, const Dims& result,
                      const Dims* const* args, const Form* arg_forms) const {
  constexpr double kFlop = 1e-9, kLeast = 1e-12;
  if (kind == CostKind::Flops) {
    const bool given =
        node.form == Form::Leaf || node.form == Form::Const || node.form == Form::Extent;
    return given ? 0 : flops(world, node, result, args) * kFlop + kLeast;
  }
  const bool fused = kind == CostKind::Fused;
  const DimTable& dims = world.dims();
  const double out = double(dims.elements(result));
  const double width = size_in_bytes(result.dtype) / 4.0;
  double bytes = out * size_in_bytes(result.dtype);
  double most = out;  // elements of the largest operand
  for (int i = 0; i < node.arity; ++i) {
    const double n = double(dims.elements(*args[i]));
    most = std::max(most, n);
    bytes += n * size_in_bytes(args[i]->dtype);
  }
  // Nanoseconds: measured, or else a call and what these figures say, and the way to memory.
  auto timed = [&](Timed what, double work, double built_in) {
    const double ns = nanoseconds(what, work);
    if (ns >= 0) return ns;
    return call_ns + built_in + (bytes > cache_bytes ? bytes * byte : 0);
  };
  double ns = 0;
  switch (node.form) {
  case Form::Leaf:
  case Form::Extent:
  case Form::Const:
  case Form::Kept: return 0;  // always there
  case Form::Transpose:
  case Form::Unsqueeze:
  case Form::Squeeze:
  case Form::Diagonal: return (fused ? 1 : view_ns) * 1e-9;
  case Form::Broadcast:
    if (fused || arg_forms[0] != Form::Const) return (fused ? 1 : view_ns) * 1e-9;
    ns = 3 * call_ns + simple * out * width;  // numpy.full
    break;
  case Form::Pointwise: {
    const bool inverse = node.kind == OpKind::Pow && world.constants()[node.attr] == Rational(-1);
    const double rate = inverse ? simple : pointwise_rate(*this, node.kind);
    ns = timed(inverse ? Timed::Simple : pointwise_timed(node), out * width, rate * out * width);
    if (fused) {  // more than the loop that it is part of: loop_seconds()
      constexpr double kInRegisters = 0.01;
      const double loop = timed(Timed::Simple, out * width, simple * out * width);
      ns = std::max(0.0, ns - loop) + kInRegisters * out * width;
    }
    for (int i = 0; i < node.arity; ++i) {
      const bool number = arg_forms[i] == Form::Const || arg_forms[i] == Form::Extent;
      if (kind == CostKind::Times && args[i]->rank == 0 && number) ns += scalar_ns;
      if (arg_forms[i] == Form::Transpose && args[i]->rank > 1) ns += strided * out * width;
    }
    break;
  }
  case Form::Reduce: {
    const bool last = (node.attr >> (args[0]->rank - 1) & 1) != 0;
    ns = timed(last ? Timed::ReduceLast : Timed::ReduceOther, most * width,
               350 + (last ? reduce_last : reduce_other) * most * width);
    if (node.kind == OpKind::Mean && kind == CostKind::Times) ns += 6 * call_ns;
    break;
  }
  case Form::Dot: {
    const DimId inner = args[0]->back(0);
    const double k = double(dims.extents[inner]);
    const double rows = args[0]->rank > 1 ? double(dims.extents[args[0]->back(1)]) : 1;
    const double columns = args[1]->rank > 1 ? double(dims.extents[args[1]->back(0)]) : 1;
    const double batch = out / (rows * columns);
    const bool vector = rows == 1 || columns == 1;
    const double work = k * rows * columns * width;
    const double batches = (batch - 1) * 0.5 * call_ns;
    ns = vector ? timed(Timed::MatrixVector, batch * work,
                        call_ns + batches + batch * matrix_vector * work)
                : timed(Timed::MatrixProduct, batch * work,
                        call_ns + batches + batch * 2 * flop * work);
    break;
  }
  case Form::Identity:
  case Form::Spread: ns = 7 * call_ns + copy * out * width; break;
  case Form::Triangle:
    ns = timed(Timed::Triangle, out * width, 7 * call_ns + triangle * out * width);
    break;
  case Form::Stack: ns = timed(Timed::Stack, out * width, 5 * call_ns + copy * out * width); break;
  }
  return ns * 1e-9;
}

}  // namespace tessera::synth
