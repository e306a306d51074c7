#include "verify/rounded_decisions.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/range_search.h"
#include "verify/work.h"

namespace tessera {
namespace {

// Exponents of two of the numbers to draw: the smallest and the largest.
using Exponents = std::pair<int, int>;

// Of the smallest subnormal and the largest number of a dtype.
Exponents exponents_of(DType dtype) {
  const auto [bits, least, most] = format_of(dtype);
  return {least - bits + 1, most};
}

double anywhere(DType dtype, Exponents of, Rng& rng) {
  if (rng.chance(0.1)) return 0;
  if (rng.chance(0.2)) return double(rng.between(-4, 4));
  const auto [low, high] = of;
  // Half of them near one, where most thresholds are.
  const bool near = rng.chance(0.5);
  const int64_t e =
      near ? rng.between(std::max(low, -40), std::min(high, 40)) : rng.between(low, high - 1);
  const double x = std::ldexp(1 + rng.unit(), int(e));
  return round_to(dtype, rng.chance(0.5) ? x : -x);
}

std::vector<NDArray> hostile_inputs(const Graph& g, const std::vector<NDArray>& integers,
                                    const std::vector<Exponents>& of, Rng& rng) {
  std::vector<NDArray> inputs;
  for (size_t k = 0; k < g.inputs().size(); k++) {
    const Type& type = g.type(g.inputs()[k]);
    NDArray a = NDArray::zeros(type.dtype, extents(type.shape));
    a.ints = integers[k].ints;
    if (a.reals.empty()) {
      inputs.push_back(std::move(a));
      continue;
    }
    // Equal, of one magnitude, or each of its own; of one sign or both; sometimes what another
    // input holds there.
    const double scale = rng.chance(0.4) ? std::fabs(anywhere(type.dtype, of[k], rng)) : 0;
    const bool equal = rng.chance(0.25);
    const double sign = rng.chance(0.5) ? 0 : rng.chance(0.5) ? 1 : -1;
    const NDArray* other = k > 0 && rng.chance(0.5) ? &inputs[rng.below(k)] : nullptr;
    for (size_t i = 0; i < a.reals.size(); i++) {
      a.reals[i] = scale != 0 ? round_to(type.dtype, equal ? scale : scale * (2 * rng.unit() - 1))
                              : anywhere(type.dtype, of[k], rng);
      if (sign != 0) a.reals[i] = std::copysign(a.reals[i], sign);
      if (other != nullptr && other->reals.size() == a.reals.size() && rng.chance(0.3))
        a.reals[i] = round_to(type.dtype, other->reals[i]);
      if (!std::isfinite(a.reals[i])) a.reals[i] = 1;
    }
    inputs.push_back(std::move(a));
  }
  return inputs;
}

// Moved by some last places, which subnormal numbers have fewer of.
std::vector<NDArray> nudged(std::vector<NDArray> inputs, Rng& rng) {
  for (NDArray& a : inputs) {
    if (a.reals.empty()) continue;
    const double ulp = std::ldexp(1.0, 1 - format_of(a.dtype).bits),
                 least = std::ldexp(1.0, exponents_of(a.dtype).first);
    for (double& x : a.reals) {
      const double place = x == 0 ? 0 : std::max(std::fabs(x) * ulp, least);
      x = round_to(a.dtype, x + place * double(rng.between(-4, 4)));
    }
  }
  return inputs;
}

// An input without whose large numbers nothing overflows, or any if there is none.
size_t to_blame(const InnerOverflow& overflow, const std::vector<NDArray>& inputs, ThreadPool* pool,
                Rng& rng) {
  std::vector<size_t> some;
  for (size_t k = 0; k < inputs.size(); k++) {
    std::vector<NDArray> smaller = inputs;
    for (double& x : smaller[k].reals) x = std::clamp(x, -1.0, 1.0);
    if (!smaller[k].reals.empty() && !overflow.happens(smaller, pool)) some.push_back(k);
  }
  return some.empty() ? rng.below(inputs.size()) : some[rng.below(some.size())];
}

}  // namespace

std::optional<Counterexample> decided_by_rounding(Reference& reference, const Graph& candidate,
                                                  bool decides, uint64_t seed, double work,
                                                  const std::atomic<bool>* cancel) {
  constexpr int64_t kElements = 1 << 15;
  constexpr double kClear = 1.0 / 64;
  constexpr int kNudges = 32;  // a decision at a tie survives one of them in five of nine
  const Graph& spec = reference.spec();
  EvalOptions native;
  native.precision = Precision::Native;
  native.pool = reference.pool();
  const std::vector<IntRange> ranges = integer_ranges(spec, candidate, {-8, 8});
  const int sets = int(std::clamp(5e7 / std::max(1.0, work), 2.0, 600.0));
  const InnerOverflow overflow(spec);
  // Tame numbers are far from overflow, and so are products of four.
  std::vector<Exponents> widest, tame;
  for (TensorId t : spec.inputs()) {
    const DType dtype = spec.type(t).dtype;
    const auto [low, high] = exponents_of(is_float(dtype) ? dtype : DType::F32);
    widest.emplace_back(low, high);
    tame.emplace_back(low / 4, high / 4);
  }
  std::vector<Exponents> smaller = widest;  // once something overflowed
  int64_t compared = 0;
  for (int n = 0; n < sets && compared < kElements; n++) {
    if (cancel != nullptr && cancel->load()) return std::nullopt;
    Rng rng = Rng(seed).split(uint64_t(n));
    const bool is_tame = n % 2 == 1;
    const std::vector<Exponents>& range = is_tame ? tame : n % 4 == 0 ? widest : smaller;
    const std::vector<NDArray> inputs =
        hostile_inputs(spec, draw_integers(spec, rng(), ranges), range, rng);
    std::vector<NDArray> s, c;
    std::vector<WithMagnitude> exact;
    try {
      s = eval(spec, inputs, native);
      c = eval(candidate, inputs, native);
      exact = eval_with_magnitude(spec, inputs);
    } catch (const Error&) {
      continue;  // an index out of range
    }
    std::vector<std::vector<NDArray>> moved;  // asked for when first needed
    std::vector<NDArray> in_range;            // likewise
    const auto unbounded = [&](size_t k, size_t i) {
      if (in_range.empty())
        in_range = eval(spec, inputs, {Precision::Unbounded, native.pool, {}, {}});
      return in_range[k].at(i);
    };
    bool skipped = false;
    for (size_t k = 0; k < s.size() && !skipped; k++) {
      const bool real = is_float(s[k].dtype);
      compared += s[k].size();
      for (size_t i = 0; i < size_t(s[k].size()); i++) {
        const double x = s[k].at(i), y = c[k].at(i), off = std::fabs(x - y);
        const bool lost = is_tame && std::isfinite(x) && !std::isfinite(y);
        if (!lost && (!(off > 0) || !std::isfinite(off))) continue;
        const double terms = real ? std::fabs(exact[k].magnitude.reals[i]) : 0;
        // What is lost below the least normal number is no decision.
        const double least = real ? std::ldexp(2.0, format_of(s[k].dtype).least) : 0;
        if (!lost && off <= kClear * std::max({std::fabs(x), std::fabs(y), terms}) + least)
          continue;
        if (std::isnan(terms) && !lost) continue;
        // Rewrites that lose the original's range are the numeric gate's; decisions that the
        // original makes otherwise than the real numbers do are looked for everywhere.
        const double truth = exact[k].value.at(i);
        if (!is_tame &&
            !(decides && std::fabs(x - truth) > kClear * std::max(std::fabs(x), terms) + least))
          continue;
        // Where the original is inaccurate since something overflows, no decision is at fault;
        // smaller next.
        if (!is_tame && overflow.happens(inputs, native.pool) &&
            !(std::fabs(unbounded(k, i) - x) <= off / 4)) {
          int& high = smaller[to_blame(overflow, inputs, native.pool, rng)].second;
          high -= (high + 3) / 4;
          skipped = true;
          break;
        }
        if (moved.empty())
          for (int j = 0; j < kNudges; j++)
            moved.push_back(eval(spec, nudged(inputs, rng), native));
        const bool unstable = std::ranges::any_of(moved, [&](const auto& m) {
          return !(std::fabs(m[k].at(i) - x) <= (lost ? std::fabs(x) / 64 : off / 4));
        });
        if (unstable) continue;
        Counterexample shown;
        shown.kind = lost ? Difference::Definedness : Difference::Precision;
        shown.what = "rounding, underflow or absorption decides a branch of one program only";
        shown.inputs = concrete(spec, inputs);
        shown.output = int(k);
        shown.position = position_of(s[k].shape, int64_t(i));
        shown.spec = x;
        shown.candidate = y;
        shown.allowed = kClear * std::max({std::fabs(x), std::fabs(y), terms});
        return shown;
      }
    }
  }
  return std::nullopt;
}

std::string made_of_rounding(Reference& spec, const std::vector<IntRange>& ranges, uint64_t seed) {
  Graph g = spec.spec();
  std::vector<TensorId> values;
  for (const Op& op : g.ops())
    for (uint32_t i = 0; i < op.num_results && !op.inputs.empty(); i++)
      if (is_float(g.type(op.result(i)).dtype)) values.push_back(op.result(i));
  g.set_outputs(values);
  const std::vector<NDArray> inputs = make_inputs(g, "normal", seed, ranges);
  const std::vector<NDArray> own = eval(g, inputs, {Precision::Native, spec.pool(), {}});
  const EvalOptions wide{Precision::Wide, spec.pool(), {}};
  const std::vector<WithMagnitude> right = eval_with_magnitude(g, inputs, wide);
  for (size_t k = 0; k < values.size(); k++) {
    g.set_outputs({values[k]});
    // A difference that vanishes on the way is meant to be an error; what is small, or the mean of
    // what was centred, may be so by accident.
    const bool inner = std::ranges::count(spec.spec().outputs(), values[k]) == 0;
    if (inner && !is_one_of(g.producer(values[k]).kind, OpKind::Add, OpKind::Sub)) continue;
    const double unit = std::ldexp(1.0, 1 - format_of(coarsest_rounding(g)[0]).bits),
                 part = std::min(0.25, std::min(256 * unit, std::max(0x1p-6, 4 * unit)) *
                                           std::sqrt(rounding_length(g)));
    std::vector<WithMagnitude> moved;
    const auto is_mostly_lost = [&] {
      size_t lost = 0;
      for (size_t i = 0; i < own[k].reals.size(); i++) {
        const double x = own[k].reals[i], y = right[k].value.reals[i], off = right[k].error(i, x);
        lost += std::isfinite(off) && off > part * std::max(std::fabs(x), std::fabs(y)) &&
                off > 0x1p-100 && (!inner || std::fabs(y) <= 0x1p-12 * off) &&
                std::ranges::all_of(moved, [&](const WithMagnitude& m) {
                  return std::fabs(m.value.reals[i] - y) < off / 16;
                });
      }
      return 8 * lost >= own[k].reals.size();
    };
    if (!is_mostly_lost()) continue;
    Rng rng(seed);
    for (int n = 0; n < 8; n++)
      moved.push_back(eval_with_magnitude(g, nudged(inputs, rng), wide)[0]);
    if (is_mostly_lost()) return print_op(g, g.tensor(values[k]).producer);
  }
  return "";
}

}  // namespace tessera
