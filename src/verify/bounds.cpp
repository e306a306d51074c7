#include "verify/bounds.h"

#include <algorithm>

#include "eval/pointwise.h"
#include "ir/window.h"

namespace tessera {
namespace {

using Wide = __int128;

// As a domain of eval/pointwise.h. Results of arithmetic wrap where they are too far.
struct BoundsVec : Bounds {
  static BoundsVec of(Wide low, Wide high) {
    if (low <= -kFar || high >= kFar) return {};
    return {{int64_t(low), int64_t(high)}};
  }
  BoundsVec constant(const Rational& c) const {
    return c.is_integer() ? of(c.num(), c.num()) : BoundsVec();
  }
  BoundsVec unknown() const { return {}; }
  void assign_integers(const BoundsVec& x) { *this = x; }
};

constexpr BoundsVec kTruth{{0, 1}};

BoundsVec operator-(const BoundsVec& x) { return BoundsVec::of(-Wide(x.high), -Wide(x.low)); }
BoundsVec operator+(const BoundsVec& x, const BoundsVec& y) {
  if (!x.known() || !y.known()) return {};
  return BoundsVec::of(Wide(x.low) + y.low, Wide(x.high) + y.high);
}
BoundsVec operator-(const BoundsVec& x, const BoundsVec& y) { return x + -y; }
BoundsVec operator*(const BoundsVec& x, const BoundsVec& y) {
  const Wide all[] = {Wide(x.low) * y.low, Wide(x.low) * y.high, Wide(x.high) * y.low,
                      Wide(x.high) * y.high};
  const auto [least, most] = std::minmax_element(all, all + 4);
  return BoundsVec::of(*least, *most);
}
BoundsVec operator/(const BoundsVec&, const BoundsVec&) { return {}; }
BoundsVec max(const BoundsVec& x, const BoundsVec& y) {
  return {{std::max(x.low, y.low), std::max(x.high, y.high)}};
}
BoundsVec min(const BoundsVec& x, const BoundsVec& y) {
  return {{std::min(x.low, y.low), std::min(x.high, y.high)}};
}
BoundsVec relu(const BoundsVec& x) { return max(x, {{0, 0}}); }
BoundsVec abs(const BoundsVec& x) {
  return BoundsVec::of(std::max<int64_t>({0, x.low, -x.high}), std::max(-x.low, x.high));
}
BoundsVec sign(const BoundsVec&) { return {{-1, 1}}; }
BoundsVec power(const BoundsVec&, const BoundsVec&) { return {}; }
BoundsVec atan2(const BoundsVec&, const BoundsVec&) { return {}; }
BoundsVec mod(const BoundsVec&, const BoundsVec& y) {  // has the divisor's sign
  return y.low > 0 ? BoundsVec{{0, y.high < kFar ? y.high - 1 : kFar}} : BoundsVec();
}
BoundsVec not_zero(const BoundsVec&) { return kTruth; }
BoundsVec logical_not(const BoundsVec&) { return kTruth; }
BoundsVec compare(const BoundsVec&, const BoundsVec&, Order) { return kTruth; }
BoundsVec select(const BoundsVec&, const BoundsVec& x, const BoundsVec& y) { return {hull(x, y)}; }

// Of what takes many elements together: how many at least and at most.
BoundsVec terms(const Graph& g, const Op& op) {
  const double most = terms_of(g, op);
  const int64_t n = most < double(kFar) ? int64_t(most) : kFar;
  // Windows may see padding only, and tiles are clipped.
  if (is_windowed(op.kind) || g.level() != Level::Kernel) return {{0, n}};
  return is_scan(op.kind) ? BoundsVec{{1, n}} : BoundsVec{{n, n}};
}

}  // namespace

Bounds hull(const Bounds& a, const Bounds& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

Bounds bounds_of(DType dtype) {
  if (dtype == DType::Bool) return {0, 1};
  if (dtype == DType::I8) return {INT8_MIN, INT8_MAX};
  if (dtype == DType::U8) return {0, UINT8_MAX};
  return dtype == DType::I32 ? Bounds{INT32_MIN, INT32_MAX} : Bounds{};
}

Bounds computed(const Graph& g, const Op& op, const std::vector<Bounds>& operands) {
  const Type& type = g.type(op.result());
  if (const Rational* value = op.constant()) return BoundsVec().constant(*value);
  if (const auto* a = std::get_if<IotaAttrs>(&op.attrs))
    return {0, std::max<int64_t>(0, type.shape[size_t(a->axis)].extent - 1)};
  if (operands.empty()) return {};
  std::vector<BoundsVec> in = mapped(operands, [&](const Bounds& b) { return BoundsVec{b}; });
  if (has(op.kind, algebra::Pointwise))
    return apply_to_one(op, g.type(op.inputs[first_value(op.kind)]).dtype, type.dtype, in);
  if (has(op.kind, algebra::Movement)) {
    Bounds all = operands[0];
    if (op.kind == OpKind::Gather) return all;
    for (const Bounds& b : operands) all = hull(all, b);
    if (const auto* pad = std::get_if<PadAttrs>(&op.attrs))
      return hull(all, BoundsVec().constant(pad->value));
    return has(op.kind, algebra::Fills) ? hull(all, {0, 0}) : all;
  }
  if (is_tile(op.kind)) return operands[0];
  if (decides(op) && !is_windowed(op.kind)) return operands[0];  // an extremum of some
  if (is_bilinear(op.kind)) return in[0] * in[1] * terms(g, op);
  const auto* accumulator = std::get_if<AccumAttrs>(&op.attrs);
  if (accumulator != nullptr && accumulator->kind == AccumKind::Concat) return operands[0];
  if (operands.size() == 1 && (adds_up(op.kind) || accumulator != nullptr))
    return in[0] * terms(g, op);
  return {};
}

}  // namespace tessera
