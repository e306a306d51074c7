#include "verify/index_ranges.h"

#include "base/interruption.h"

#include <algorithm>
#include <map>
#include <optional>

// An operator that is not named may have any value: sound, so the switch below has a default.

namespace tessera {
namespace {

// An end that is this far may be anywhere beyond. Sums and products of nearer ones do not overflow
// 128 bits.
constexpr int64_t kFar = int64_t{1} << 62;
constexpr int kMostSteps = 20'000;  // of one question: operators looked at

struct Interval {
  int64_t low = -kFar, high = kFar;
  bool empty() const { return low > high; }
};
using Wide = __int128;

int64_t clamped(Wide x) { return int64_t(std::clamp(x, Wide(-kFar), Wide(kFar))); }
// Of results of arithmetic, which wrap where they are too far.
Interval interval(Wide low, Wide high) {
  if (low <= -kFar || high >= kFar) return {};
  return {int64_t(low), int64_t(high)};
}
Interval hull(const Interval& a, const Interval& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}
Interval products(const Interval& a, const Interval& b) {
  const Wide all[] = {Wide(a.low) * b.low, Wide(a.low) * b.high, Wide(a.high) * b.low,
                      Wide(a.high) * b.high};
  return interval(*std::min_element(all, all + 4), *std::max_element(all, all + 4));
}

class Intervals {
 public:
  Intervals(const Graph& g, const std::vector<IntRange>& ranges) : g_(g) {
    for (size_t i = 0; i < ranges.size(); i++)
      given_[g.inputs()[i]] = {std::max(ranges[i].low, -kFar), std::min(ranges[i].high, kFar)};
  }

  bool all_in_range() {
    for (const Op& op : g_.ops()) {
      if (op.body.valid() || op.kind == OpKind::Opaque) return false;
      if (op.kind != OpKind::Gather) continue;
      const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
      const Interval i = of(op.inputs[1], {});
      if (i.low < 0 || i.high >= g_.type(op.inputs[0]).shape[axis].extent) return false;
    }
    return true;
  }

 private:
  // What is known of some tensors where a condition holds, element by element.
  using Known = std::map<TensorId, Interval>;

  // A sum of so many may be as large as that.
  int64_t summed(const Op& op) const {
    const Shape& x = g_.type(op.inputs[0]).shape;
    if (op.kind == OpKind::Cumsum) return x[size_t(g_.attrs<AxisAttrs>(op).axis)].extent;
    int64_t n = 1;
    for (int axis : g_.attrs<ReduceAttrs>(op).axes) n *= x[size_t(axis)].extent;
    return n;
  }

  static Interval most(DType dtype) {
    switch (dtype) {
    case DType::Bool: return {0, 1};
    case DType::I8: return {INT8_MIN, INT8_MAX};
    case DType::U8: return {0, UINT8_MAX};
    case DType::I32: return {INT32_MIN, INT32_MAX};
    case DType::I64:
    case DType::F64:
    case DType::F32:
    case DType::F16:
    case DType::BF16: break;
    }
    return {};
  }

  Interval of(TensorId t, const Known& known) {
    const DType dtype = g_.type(t).dtype;
    if (is_float(dtype) || ++steps_ > kMostSteps) return {};
    if (const auto at = known.find(t); at != known.end()) return at->second;
    if (known.empty())
      if (const auto at = made_.find(t); at != made_.end()) return at->second;
    const Interval all = most(dtype);
    Interval x = computed(t, known);
    if (x.low < all.low || x.high > all.high) x = all;  // it wraps
    if (known.empty()) made_[t] = x;
    return x;
  }

  Interval computed(TensorId t, const Known& known) {
    interruption_point();
    const Op& op = g_.producer(t);
    // What holds of an element's condition holds of no other element.
    const Known& inside = has(op.kind, algebra::Pointwise) ? known : none_;
    const auto in = [&](size_t i) { return of(op.inputs[i], inside); };
    switch (op.kind) {
    case OpKind::Input: return given_.at(t);
    case OpKind::Const: {
      const Rational& value = *op.constant();
      return value.is_integer() ? interval(value.num(), value.num()) : Interval{};
    }
    case OpKind::Iota: {
      const auto axis = size_t(g_.attrs<IotaAttrs>(op).axis);
      return {0, std::max<int64_t>(0, g_.type(t).shape[axis].extent - 1)};
    }
    case OpKind::Neg: {
      const Interval x = in(0);
      return interval(-Wide(x.high), -Wide(x.low));
    }
    case OpKind::Abs: {
      const Interval x = in(0);
      return interval(std::max<int64_t>({0, x.low, -x.high}), std::max(-x.low, x.high));
    }
    case OpKind::Add: {
      const Interval x = in(0), y = in(1);
      return interval(Wide(x.low) + y.low, Wide(x.high) + y.high);
    }
    case OpKind::Sub: {
      const Interval x = in(0), y = in(1);
      return interval(Wide(x.low) - y.high, Wide(x.high) - y.low);
    }
    case OpKind::Mul: return products(in(0), in(1));
    case OpKind::Mod: {  // has the divisor's sign
      const Interval y = in(1);
      return y.low > 0 ? Interval{0, y.high - 1} : Interval{};
    }
    case OpKind::Max: {
      const Interval x = in(0), y = in(1);
      return {std::max(x.low, y.low), std::max(x.high, y.high)};
    }
    case OpKind::Min: {
      const Interval x = in(0), y = in(1);
      return {std::min(x.low, y.low), std::min(x.high, y.high)};
    }
    case OpKind::Relu: {
      const Interval x = in(0);
      return {std::max<int64_t>(0, x.low), std::max<int64_t>(0, x.high)};
    }
    case OpKind::Cast: return is_float(g_.type(op.inputs[0]).dtype) ? Interval{} : in(0);
    case OpKind::Where: return selected(op, inside);
    case OpKind::Sum:
    case OpKind::Cumsum: {
      const int64_t n = summed(op);
      return products(in(0), op.kind == OpKind::Sum ? Interval{n, n} : Interval{1, n});
    }
    case OpKind::Pad: {
      const Rational& v = g_.attrs<PadAttrs>(op).value;
      return hull(in(0), v.is_integer() ? interval(v.num(), v.num()) : Interval{});
    }
    case OpKind::Gather: return in(0);
    case OpKind::Sign: return {-1, 1};
    default: break;
    }
    if (reduces_by_order(op.kind)) return in(0);
    if (!has(op.kind, algebra::Movement)) return {};  // anything its dtype can hold
    Interval x = has(op.kind, algebra::Fills) ? hull(in(0), {0, 0}) : in(0);
    for (size_t i = 1; i < op.inputs.size(); i++) x = hull(x, in(i));
    return x;
  }

  // The two results of `c ? a : b`, each where the condition takes it: `i < 0 ? i + n : i`.
  Interval selected(const Op& op, const Known& known) {
    Known where[2] = {known, known};
    const Op& c = g_.producer(op.inputs[0]);
    if (c.inputs.size() == 2 && !is_float(g_.type(c.inputs[0]).dtype)) {
      const Interval x = of(c.inputs[0], known), y = of(c.inputs[1], known);
      if (y.low == y.high) narrow(c.kind, x, y.low, where[0][c.inputs[0]], where[1][c.inputs[0]]);
    }
    std::optional<Interval> result;
    for (int branch = 0; branch < 2; branch++) {
      const bool never = std::ranges::any_of(
          where[branch], [](const auto& entry) { return entry.second.empty(); });
      if (never) continue;
      const Interval x = of(op.inputs[size_t(1 + branch)], where[branch]);
      result = result ? hull(*result, x) : x;
    }
    return result.value_or(Interval{});
  }

  // Where x compares with a number as `kind` says, and where it does not.
  static void narrow(OpKind kind, const Interval& x, int64_t number, Interval& yes, Interval& no) {
    const Interval below{x.low, std::min(x.high, number - 1)},
        up_to{x.low, std::min(x.high, number)}, above{std::max(x.low, number + 1), x.high},
        from{std::max(x.low, number), x.high};
    const Interval equal{std::max(x.low, number), std::min(x.high, number)};
    const Interval other{x.low == number ? x.low + 1 : x.low,
                         x.high == number ? x.high - 1 : x.high};
    yes = no = x;
    if (kind == OpKind::Lt) yes = below, no = from;
    if (kind == OpKind::Le) yes = up_to, no = above;
    if (kind == OpKind::Gt) yes = above, no = up_to;
    if (kind == OpKind::Ge) yes = from, no = below;
    if (kind == OpKind::Eq) yes = equal, no = other;
    if (kind == OpKind::Ne) yes = other, no = equal;
  }

  const Graph& g_;
  Known given_, made_;
  const Known none_;
  int steps_ = 0;
};

// By input: whether an index depends on it.
std::vector<bool> feed_indices(const Graph& g) {
  std::vector<bool> needed(g.tensors().size(), false);
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    if (op.kind == OpKind::Gather) needed[op.inputs[1].index] = true;
    bool any = false;
    for (uint32_t r = 0; r < op.num_results; r++) any = any || needed[op.result(r).index];
    for (TensorId t : op.inputs) needed[t.index] = needed[t.index] || any;
  }
  std::vector<bool> inputs;
  for (TensorId t : g.inputs()) inputs.push_back(needed[t.index] && is_integer(g.type(t).dtype));
  return inputs;
}

}  // namespace

bool indices_in_range(const Graph& program, const std::vector<IntRange>& ranges) {
  return Intervals(program, ranges).all_in_range();
}

void widen_index_ranges(const Graph& program, std::vector<IntRange>& ranges,
                        const std::vector<IntRange>& most) {
  const std::vector<bool> feeds = feed_indices(program);
  if (std::ranges::find(feeds, true) == feeds.end() || !indices_in_range(program, ranges)) return;
  // Every end moves by a step that doubles while it may, and is halved where it may not.
  struct End {
    size_t input;
    bool high;
    int64_t step = 1;
    bool grows = true;
  };
  std::vector<End> ends;
  for (size_t i = 0; i < feeds.size(); i++)
    if (feeds[i]) ends.insert(ends.end(), {{i, true}, {i, false}});
  for (bool any = true; any;) {
    any = false;
    for (End& e : ends) {
      if (e.step == 0) continue;
      any = true;
      IntRange& r = ranges[e.input];
      const IntRange before = r;
      if (e.high)
        r.high =
            std::max(r.high, clamped(std::min(Wide(r.high) + e.step, Wide(most[e.input].high))));
      else
        r.low = std::min(r.low, clamped(std::max(Wide(r.low) - e.step, Wide(most[e.input].low))));
      const bool moved = r.low != before.low || r.high != before.high;
      if (moved && indices_in_range(program, ranges)) {
        e.step = e.grows ? std::min(2 * e.step, kFar) : e.step / 2;
      } else {
        r = before;
        e.grows = false;
        e.step = moved ? e.step / 2 : 0;
      }
    }
  }
}

}  // namespace tessera
