#include "verify/index_ranges.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/interruption.h"
#include "ir/walk.h"
#include "verify/bounds.h"

namespace tessera {
namespace {

constexpr int kMostSteps = 20'000;  // of one question: operators looked at

class Intervals {
 public:
  Intervals(const Graph& g, const std::vector<IntRange>& ranges) : g_(g) {
    for (size_t i = 0; i < ranges.size(); i++)
      given_[g.inputs()[i]] = {std::max(ranges[i].low, -kFar), std::min(ranges[i].high, kFar)};
  }

  bool all_in_range() {
    for (const Op& op : g_.ops()) {
      if (op.body.valid() || is_opaque(op.kind)) return false;
      if (op.kind != OpKind::Gather) continue;
      const auto axis = size_t(g_.attrs<AxisAttrs>(op).axis);
      const Bounds i = of(op.inputs[1], {});
      if (i.low < 0 || i.high >= g_.type(op.inputs[0]).shape[axis].extent) return false;
    }
    return true;
  }

 private:
  // What is known of some tensors where a condition holds, element by element.
  using Known = std::map<TensorId, Bounds>;

  Bounds of(TensorId t, const Known& known) {
    const DType dtype = g_.type(t).dtype;
    if (is_float(dtype) || ++steps_ > kMostSteps) return {};
    if (const auto at = known.find(t); at != known.end()) return at->second;
    if (known.empty())
      if (const auto at = made_.find(t); at != made_.end()) return at->second;
    const Bounds all = bounds_of(dtype);
    Bounds x = made_by(g_.producer(t), known);
    if (!x.within(all)) x = all;  // it wraps
    if (known.empty()) made_[t] = x;
    return x;
  }

  Bounds made_by(const Op& op, const Known& known) {
    interruption_point();
    if (is_input(op.kind)) return given_.at(op.result());
    // What holds of an element's condition holds of no other element.
    const Known& inside = has(op.kind, algebra::Pointwise) ? known : none_;
    if (op.kind == OpKind::Where) return selected(op, inside);
    std::vector<Bounds> operands = mapped(op.inputs, [&](TensorId x) { return of(x, inside); });
    return computed(g_, op, operands);
  }

  // The two results of `c ? a : b`, each where the condition takes it: `i < 0 ? i + n : i`.
  Bounds selected(const Op& op, const Known& known) {
    Known where[2] = {known, known};
    const Op& c = g_.producer(op.inputs[0]);
    if (c.inputs.size() == 2 && !is_float(g_.type(c.inputs[0]).dtype)) {
      const Bounds x = of(c.inputs[0], known), y = of(c.inputs[1], known);
      if (is_comparison(c.kind) && y.low == y.high)
        narrow(c.kind, x, y.low, where[0][c.inputs[0]], where[1][c.inputs[0]]);
    }
    std::optional<Bounds> result;
    for (int branch = 0; branch < 2; branch++) {
      const bool never = std::ranges::any_of(
          where[branch], [](const auto& entry) { return entry.second.empty(); });
      if (never) continue;
      const Bounds x = of(op.inputs[size_t(1 + branch)], where[branch]);
      result = result ? hull(*result, x) : x;
    }
    return result.value_or(Bounds{});
  }

  // Where x compares with a number as `kind` says, and where it does not.
  static void narrow(OpKind kind, const Bounds& x, int64_t number, Bounds& yes, Bounds& no) {
    const Outcomes holds = outcomes(kind);
    const auto side = [&](bool less, bool equal, bool greater) {
      if (less && greater && !equal)
        return Bounds{x.low + (x.low == number), x.high - (x.high == number)};
      return Bounds{less ? x.low : std::max(x.low, number + !equal),
                    greater ? x.high : std::min(x.high, number - !equal)};
    };
    yes = side(holds.less, holds.equal, holds.greater);
    no = side(!holds.less, !holds.equal, !holds.greater);
  }

  const Graph& g_;
  Known given_, made_;
  const Known none_;
  int steps_ = 0;
};

using Wide = __int128;
int64_t clamped(Wide x) { return int64_t(std::clamp(x, Wide(-kFar), Wide(kFar))); }

// By input: whether an index depends on it.
std::vector<bool> feed_indices(const Graph& g) {
  std::vector<TensorId> indices;
  for (const Op& op : g.ops())
    if (op.kind == OpKind::Gather) indices.push_back(op.inputs[1]);
  const std::set<TensorId> needed = made_of(g, indices);
  return mapped(g.inputs(),
                [&](TensorId t) { return needed.count(t) != 0 && is_integer(g.type(t).dtype); });
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
