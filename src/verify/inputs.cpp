#include "verify/inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "eval/eval.h"
#include "ir/walk.h"
#include "verify/bounds.h"
#include "verify/index_ranges.h"

namespace tessera {
namespace {

// Limits that gathers put on the values of integer tensors, pushed back to a graph's inputs.
void index_limits(const Graph& g, std::vector<int64_t>& limit) {
  for (size_t i = g.ops().size(); i-- > 0;) {
    const Op& op = g.ops()[i];
    auto narrow = [&](TensorId t, int64_t n) { limit[t.index] = std::min(limit[t.index], n); };
    if (op.kind == OpKind::Gather) {
      const auto axis = size_t(g.attrs<AxisAttrs>(op).axis);
      narrow(op.inputs[1], g.type(op.inputs[0]).shape[axis].extent);
    }
    if (op.body.valid()) {
      const Graph& body = g.body(op);
      std::vector<int64_t> inner(body.tensors().size(), INT64_MAX);
      for (uint32_t r = 0; r < op.num_results; r++)
        inner[body.outputs()[r].index] = limit[op.result(r).index];
      index_limits(body, inner);
      for (size_t a = 0; a < op.inputs.size(); a++)
        narrow(op.inputs[a], inner[body.inputs()[a].index]);
      continue;
    }
    const int64_t here = limit[op.result().index];
    if (here == INT64_MAX) continue;
    const bool moves = has(op.kind, algebra::Movement) || is_extremum(op.kind) ||
                       is_tile(op.kind) || op.kind == OpKind::Cast || op.kind == OpKind::Where ||
                       reduces_by_order(op.kind);
    for (TensorId t : op.inputs)
      if (!is_float(g.type(t).dtype)) narrow(t, moves ? here : 1);  // arithmetic: zeros are safe
  }
}

}  // namespace

// Of which the field may know nothing: the maximum of floats it models by signs, integers are only
// tried.
bool turns(const Graph& g, bool integers) {
  return any_op(
      g,
      [&](const Graph&, const Op& op) {
        return is_comparison(op.kind) ||
               is_one_of(op.kind, OpKind::Cast, OpKind::Mod, OpKind::Floor, OpKind::Round) ||
               (integers && is_extremum(op.kind));
      });
}

void constants_of(const Graph& g, std::set<double>& values) {
  constexpr double kMost = 1e15;  // so that integers are exact, and their sums
  for (const Op& op : g.ops()) {
    if (!op.constant()) continue;
    const double x = op.constant()->to_double();
    if (std::fabs(x) <= kMost) values.insert(x);
  }
  for (const Graph& body : g.bodies()) constants_of(body, values);
}

namespace {

// Whether the original is defined where all of an input is `value`, the others 0.
bool is_defined_at(const Graph& spec, size_t input, int64_t value) {
  std::vector<NDArray> inputs;
  for (TensorId t : spec.inputs())
    inputs.push_back(NDArray::zeros(spec.type(t).dtype, extents(spec.type(t).shape)));
  std::ranges::fill(inputs[input].ints, value);
  return is_defined_at(spec, inputs);
}

// The integers among `points` and beside them that input `input` may take. `outside`: also those
// outside of `range`, what a gather is sure to select from; told back is whether there are any.
std::vector<double> points_of(const Graph& spec, size_t input, const std::vector<double>& points,
                              const IntRange& most, const IntRange* range, bool& outside) {
  const bool wanted = std::exchange(outside, false);
  std::vector<double> integers;
  std::map<double, bool> defined;
  for (const double p : points)
    for (const double x : {std::floor(p), std::floor(p) - 1, std::floor(p) + 1}) {
      if (x < double(most.low) || x > double(most.high)) continue;
      if (range != nullptr && (x < double(range->low) || x > double(range->high))) {
        if (!wanted || x != p || (defined.count(x) == 0 && defined.size() == 8)) continue;
        const auto [at, first] = defined.try_emplace(x, false);
        if (first) at->second = is_defined_at(spec, input, int64_t(x));
        if (!at->second) continue;
        outside = true;
      }
      integers.push_back(x);
      if (x == p) integers.push_back(x);
    }
  return integers;
}

}  // namespace

IntRange range_of(DType dtype) {
  CHECK(!is_float(dtype)) << "not an integer type";
  const Bounds all = bounds_of(dtype);
  return dtype == DType::I64 ? IntRange{INT64_MIN, INT64_MAX} : IntRange{all.low, all.high};
}

namespace {

// Scales by dtype: logits that overflow an unshifted exp, and sizes whose products of a few factors
// stay finite, so that sound reorderings of a product are not refused.
struct InputScales {
  double large, huge, tiny;
  double most, least;  // the largest number and the smallest subnormal one
  double decades;      // and its inverse: quotients that round away what is added to them
};
InputScales scales_of(DType dtype) {
  if (dtype == DType::F16) return {30, 60, 1e-2, 65504, 0x1p-24, 1e2};
  if (dtype == DType::F64)
    return {1000, 1e8, 1e-8, std::numeric_limits<double>::max(), 0x1p-1074, 1e12};
  if (dtype == DType::BF16) return {200, 1e4, 1e-4, 0x1.FEp127, 0x1p-133, 1e4};
  return {200, 1e4, 1e-4, std::numeric_limits<float>::max(), 0x1p-149, 1e6};
}

class Maker {
 public:
  Maker(const std::string& family, uint64_t seed, size_t index)
      : family_(family), shared_(Rng(seed).split(9000)()), rng_(Rng(seed).split(index)()),
        index_(index) {
    // Small numbers now and then, whose sums and maxima are often the same.
    if (Rng(seed).split(9001).chance(0.5))
      most_ = (int64_t{1} << rng_.between(1, 8)) + rng_.between(-1, 1);
  }

  // Nearly normal, within ±3.46: the sum of four uniform 16-bit numbers of one random word.
  double normal() {
    const uint64_t w = rng_();
    const int64_t sum = int64_t((w & 0xffff) + (w >> 16 & 0xffff) + (w >> 32 & 0xffff) + (w >> 48));
    return double(sum - 131070) * (1 / 37837.2);
  }

  void fill(NDArray& a, const std::string& family) {
    if (family == "integers" || family == "neighbours") return fill(a, "normal");
    const int64_t row = a.shape.empty() ? 1 : a.shape.back();
    const InputScales s = scales_of(a.dtype);
    for (int64_t start = 0; start < int64_t(a.reals.size()); start += row)
      fill_row(&a.reals[size_t(start)], row, family, s, int64_t(a.reals.size()));
    for (double& x : a.reals) x = round_to(a.dtype, x);
  }

  void fill_row(double* x, int64_t n, const std::string& family, const InputScales& s,
                int64_t size = 1) {
    auto each = [&](auto f) {
      for (int64_t i = 0; i < n; i++) x[i] = f(i);
    };
    if (family == "normal")
      each([&](int64_t) { return normal(); });
    else if (family == "positive")
      each([&](int64_t) { return std::fabs(normal()) + 0.125; });
    else if (family == "negative")
      each([&](int64_t) { return -std::fabs(normal()) - 0.125; });
    else if (family == "large")
      each([&](int64_t) { return s.large * normal(); });
    else if (family == "huge")
      each([&](int64_t) { return s.huge * normal(); });
    else if (family == "tiny")
      each([&](int64_t) { return s.tiny * normal(); });
    else if (family == "decades")
      each([&](int64_t) { return std::exp((2 * rng_.unit() - 1) * std::log(s.decades)); });
    else if (family == "zeros")
      each([&](int64_t) { return rng_.chance(0.5) ? 0.0 : normal(); });
    else if (family == "all_zero")
      each([](int64_t) { return 0.0; });
    else if (family == "ties")
      each([&](int64_t) { return rng_.chance(0.3) ? 0.0 : double(rng_.between(-3, 3)); });
    else if (family == "whole") {
      // Among them n with n · (1/n) below 1, in f32 (41, 47, 55) and f64 (49, 103), and multiples.
      static const double some[] = {0, 1, 2, 3, 5, 10, 41, 47, 49, 55, 82, 98, 103, 123, 206, 255};
      each([&](int64_t) {
        return most_ < kMostWhole ? double(rng_.between(0, most_))
               : rng_.chance(0.5) ? some[rng_.below(16)]
                                  : double(rng_.between(-8, kMostWhole));
      });
    } else if (family == "equal") {
      const double c = normal();
      each([&](int64_t) { return c; });
    } else if (family == "shifted") {
      each([&](int64_t) { return s.large * 4 + normal(); });
    } else if (family == "opposed") {  // exp is infinite there, in f16 just so: few digits are left
      const double far = std::min(4 * s.large, s.huge / 5), side = index_ % 2 == 0 ? far : -far;
      each([&](int64_t) { return side + normal(); });
    } else if (family == "alternating") {
      // 0 - 0, not -0: whose sign only strict verdicts heed.
      each([&](int64_t i) { return i % 2 == 1 ? 0 - x[i - 1] : normal(); });
    } else if (family == "outliers") {
      each([&](int64_t) { return rng_.chance(0.1) ? s.large * normal() : normal(); });
    } else if (family == "special" || family == "few_special") {
      const uint64_t odds = family == "special" ? 12 : std::max<uint64_t>(4, 2 * uint64_t(size));
      const double beside = family == "special" ? 0 : 8 * (double(rng_.below(3)) - 1);
      each([&](int64_t) {
        switch (rng_.below(odds)) {
        case 0: return double(INFINITY);
        case 1: return -double(INFINITY);
        case 2: return double(NAN);
        default: return beside + normal();
        }
      });
    } else if (family == "extreme") {
      each([&](int64_t) {
        const double sign = rng_.chance(0.5) ? 1 : -1;
        switch (rng_.below(6)) {
        case 0: return sign * s.most;
        case 1: return sign * s.least;
        case 2: return sign * 0.0;
        case 3: return sign;
        default: return normal();
        }
      });
    } else {
      unreachable("input family");
    }
  }

  NDArray tensor(const Type& type, const IntRange& range) {
    NDArray a = numbers(type, range);
    if (!range.points.empty() && (family_ == "ties" || family_ == "constants"))
      for (double& x : a.reals)
        if (rng_.chance(0.3)) x = round_to(a.dtype, range.points[rng_.below(range.points.size())]);
    return a;
  }

  NDArray numbers(const Type& type, const IntRange& range) {
    NDArray a = NDArray::zeros(type.dtype, extents(type.shape));
    if (!is_float(type.dtype)) {
      if (family_ == "whole" && most_ < kMostWhole && type.dtype != DType::Bool) {
        const int64_t low = std::max<int64_t>(range.low, 0);
        for (int64_t& x : a.ints) x = rng_.between(low, std::max(low, std::min(range.high, most_)));
        return a;
      }
      // Masks of everything, of nothing, and of all but a few are what users have.
      static const double odds[] = {0.5, 0.5, 0, 1, 1.0 / 16, 15.0 / 16, 31.0 / 32};
      const double often = type.dtype == DType::Bool ? odds[rng_.below(7)] : 0.5;
      if (family_ == "neighbours" && is_wide(range))
        neighbours(a);
      else
        for (int64_t& x : a.ints) x = often == 0.5 ? integer(range) : int64_t(rng_.chance(often));
      // Odd counts are the first that few bits do not tell.
      if (type.dtype == DType::Bool && often > 0 && often < 1 && a.size() > 128)
        a.ints[0] ^= 1 ^ (std::accumulate(a.ints.begin(), a.ints.end(), int64_t(0)) & 1);
      return a;
    }
    if (family_ != "mixed") {
      fill(a, family_ == "constants" ? "normal" : family_);
      return a;
    }
    // Only the first input is mixed: products of several extremes would be all overflow.
    if (index_ != 0 || a.shape.size() < 2) {
      fill(a, "normal");
      return a;
    }
    static const std::vector<std::string> rows = {"normal", "large",   "zeros", "tiny",
                                                  "equal",  "shifted", "huge",  "outliers",
                                                  "ties",   "all_zero"};
    const int64_t n = a.shape.back();
    const InputScales s = scales_of(a.dtype);
    for (int64_t r = 0; r * n < int64_t(a.reals.size()); r++)
      fill_row(&a.reals[size_t(r * n)], n, rows[size_t(r) % rows.size()], s);
    for (double& x : a.reals) x = round_to(a.dtype, x);
    return a;
  }

  static bool is_wide(const IntRange& range) {
    return range.low < -(int64_t{1} << 27) && range.high > int64_t{1} << 27;
  }
  // Rows of large numbers (of one, or of as many), the same in all rows of all inputs of that
  // length but for one number here and there that is greater by one: as few digits as floats have
  // do not tell their sums. Some inputs are of ones instead, which keep products in range.
  void neighbours(NDArray& a) {
    const size_t row = a.shape.empty() ? 1 : size_t(a.shape.back());
    const int bits = rng_.chance(0.25) ? 0 : a.dtype == DType::I64 ? 55 : 26;
    const bool constant = Rng(shared_).chance(0.5);
    for (size_t start = 0; start < a.ints.size(); start += row) {
      Rng shared = Rng(shared_).split(row);
      for (size_t i = 0; i < row; i++)
        a.ints[start + i] = constant && i > 0
                                ? a.ints[start]
                                : (int64_t{1} << bits) + int64_t(shared.below(uint64_t{1} << bits));
      if (bits == 0) continue;
      a.ints[start + rng_.below(row)] += int64_t(rng_.below(2));
    }
  }
  int64_t integer(const IntRange& range) {
    const bool small = family_ == "ties" || family_ == "zeros" || family_ == "all_zero";
    if (rng_.chance(small ? 0.7 : 0.2)) {  // edges
      const int64_t edges[] = {range.low, range.high, 0, 1, -1, range.high - 1, 2, -2};
      const int64_t e = edges[rng_.below(8)];
      if (e >= range.low && e <= range.high) return e;
    }
    return draw_integer(rng_, range);
  }

 private:
  std::string family_;
  uint64_t shared_;  // by all inputs
  Rng rng_;
  size_t index_;  // of the input
  static constexpr int64_t kMostWhole = 255;
  int64_t most_ = kMostWhole;  // of family "whole"
};

// Numbers that are the same along an axis, or nearly all zero there (one-hot rows, small masks).
void level(NDArray& a, const IntRange& range, Rng rng) {
  if (a.size() < 2 || rng.chance(0.5)) return;
  const size_t axis = rng.below(a.shape.size() + 1);  // or all of them
  size_t inner = 1, extent = size_t(a.size());
  if (axis < a.shape.size()) extent = size_t(a.shape[axis]);
  for (size_t d = axis + 1; d < a.shape.size(); d++) inner *= size_t(a.shape[d]);
  const bool zeros = rng.chance(0.5) && range.low <= 0 && range.high >= 0;
  for (size_t i = 0; i < size_t(a.size()); i++) {
    const size_t first = i - i / inner % extent * inner;
    if (zeros && rng.chance(2.0 / double(extent))) continue;
    if (!a.reals.empty())
      a.reals[i] = zeros ? 0 : a.reals[first];
    else
      a.ints[i] = zeros ? 0 : a.ints[first];
  }
}

// Which element of `b` meets element `i` of `a` where it broadcasts to that; else any.
size_t met(size_t i, const NDArray& a, const NDArray& b) {
  size_t at = 0, step = 1;
  for (size_t d = 1; d <= std::min(a.shape.size(), b.shape.size()); d++) {
    const size_t own = size_t(a.shape.end()[-int64_t(d)]), its = size_t(b.shape.end()[-int64_t(d)]);
    at += step * (i % own % its);
    i /= own;
    step *= its;
  }
  return at;
}

// Some numbers become multiples of those of another input, or of their neighbours: quotients that
// are whole.
void relate(std::vector<NDArray>& inputs, const std::vector<IntRange>& ranges, Rng rng) {
  const size_t k = rng.below(inputs.size());
  NDArray& a = inputs[k];
  const NDArray other = inputs[rng.below(inputs.size())];
  if (a.dtype == DType::Bool || other.dtype == DType::Bool || other.size() == 0 || rng.chance(0.5))
    return;
  for (size_t i = 0; i < size_t(a.size()); i++) {
    const double x =
        double(rng.between(1, 8)) * (other.at(met(i, a, other)) + double(rng.between(-1, 1)));
    if (std::fabs(x) > 2048 || rng.chance(0.5)) continue;
    if (!a.reals.empty())
      a.reals[i] = round_to(a.dtype, x);
    else if (x >= double(ranges[k].low) && x <= double(ranges[k].high))
      a.ints[i] = int64_t(x);
  }
}

}  // namespace

bool is_defined_at(const Graph& graph, const std::vector<NDArray>& inputs) {
  try {
    eval(graph, inputs);
    return true;
  } catch (const Error&) {  // an index out of range
    return false;
  }
}

int64_t draw_integer(Rng& rng, const IntRange& range) {
  if (!range.points.empty() && rng.chance(0.3))
    return int64_t(range.points[rng.below(range.points.size())]);
  const uint64_t span = uint64_t(range.high) - uint64_t(range.low);
  return int64_t(uint64_t(range.low) + (span == UINT64_MAX ? rng() : rng.below(span + 1)));
}

std::vector<double> turning_points(const Graph& spec, const Graph& candidate) {
  std::vector<double> points;
  const bool integers =
      std::ranges::any_of(spec.inputs(), [&](TensorId t) { return !is_float(spec.type(t).dtype); });
  if (!turns(spec, integers) && !turns(candidate, integers)) return points;
  std::set<double> constants;
  constants_of(spec, constants);
  constants_of(candidate, constants);
  std::vector<double> plain(constants.begin(), constants.end());
  constexpr size_t kMostPlain = 32, kMostPaired = 6;
  if (plain.size() > kMostPlain) plain.resize(kMostPlain);
  const size_t paired = std::min(plain.size(), kMostPaired);
  std::set<double> made;  // between neighbours, and of pairs
  for (size_t i = 0; i + 1 < plain.size(); i++) made.insert(plain[i] / 2 + plain[i + 1] / 2);
  for (size_t i = 0; i < paired; i++)
    for (size_t j = 0; j < paired; j++)
      for (double x : {plain[i] + plain[j], plain[i] - plain[j], plain[i] * plain[j],
                       plain[j] == 0 ? 0 : plain[i] / plain[j]})
        if (std::fabs(x) <= 1e15) made.insert(x);
  // The constants themselves make up half of what is drawn.
  points.assign(made.begin(), made.end());
  for (size_t i = 0; i < std::max(made.size(), plain.size()) && !plain.empty(); i++)
    points.push_back(plain[i % plain.size()]);
  return points;
}

namespace {

std::vector<NDArray> of_family(const Graph& graph, const std::string& family, uint64_t seed,
                               const std::vector<IntRange>& ranges) {
  std::vector<NDArray> inputs;
  for (size_t i = 0; i < graph.inputs().size(); i++) {
    Maker maker(family == "rows" ? "whole" : family, seed, i);
    inputs.push_back(maker.tensor(graph.type(graph.inputs()[i]), ranges[i]));
    if (family == "rows") level(inputs[i], ranges[i], Rng(seed).split(9010 + i));
  }
  if ((family == "whole" || family == "rows") && !inputs.empty())
    relate(inputs, ranges, Rng(seed).split(9002));
  return inputs;
}

bool any_together(const std::vector<IntRange>& ranges) {
  return std::ranges::any_of(
      ranges, [](const IntRange& r) { return r.together; });
}

// What `draw` gives for the first of some seeds at which the graph is defined; if for none, without
// the points that only others than all together are safe with.
template <class Draw>
std::vector<NDArray> drawn_where_defined(const Graph& graph, uint64_t seed,
                                         const std::vector<IntRange>& ranges, const Draw& draw) {
  constexpr uint64_t kTries = 12;
  std::vector<NDArray> inputs = draw(seed, ranges);
  if (!any_together(ranges)) return inputs;
  for (uint64_t i = 0; i < kTries; i++) {
    if (is_defined_at(graph, inputs)) return inputs;
    inputs = draw(Rng(seed).split(7000 + i)(), ranges);
  }
  std::vector<IntRange> inside = ranges;
  for (IntRange& r : inside)
    if (r.together)
      std::erase_if(r.points, [&](double x) { return x < double(r.low) || x > double(r.high); });
  return draw(seed, inside);
}

// `outside`: see points_of.
std::vector<IntRange> ranges_of(const Graph& spec, const Graph& candidate, IntRange free,
                                const std::vector<double>& points, bool& outside) {
  const bool wanted = std::exchange(outside, false);
  std::vector<IntRange> ranges, most;
  std::vector<bool> limited;  // an index depends on it
  int64_t widest = 1;         // extent that is gathered from
  for (const Op& op : spec.ops())
    if (op.kind == OpKind::Gather)
      widest = std::max(
          widest, spec.type(op.inputs[0]).shape[size_t(spec.attrs<AxisAttrs>(op).axis)].extent);
  std::vector<int64_t> a(spec.tensors().size(), INT64_MAX),
      b(candidate.tensors().size(), INT64_MAX);
  index_limits(spec, a);
  index_limits(candidate, b);
  for (size_t i = 0; i < spec.inputs().size(); i++) {
    const DType dtype = spec.type(spec.inputs()[i]).dtype;
    if (is_float(dtype)) {
      ranges.push_back({0, 0, points});
      most.push_back(ranges.back());
      limited.push_back(false);
      continue;
    }
    IntRange r = range_of(dtype);
    most.push_back({std::max(r.low, -2 * widest), std::min(r.high, 2 * widest)});
    r.low = std::max(r.low, free.low);
    r.high = std::min(r.high, free.high);
    const int64_t limit = std::min(a[spec.inputs()[i].index], b[candidate.inputs()[i].index]);
    if (limit != INT64_MAX) r = {0, std::max<int64_t>(0, limit - 1)};
    limited.push_back(limit != INT64_MAX);
    ranges.push_back(r);
  }
  widen_index_ranges(spec, ranges, most);
  for (size_t i = 0; i < ranges.size(); i++) {
    const DType dtype = spec.type(spec.inputs()[i]).dtype;
    if (is_float(dtype) || dtype == DType::Bool) continue;
    bool here = wanted;
    ranges[i].points =
        points_of(spec, i, points, range_of(dtype), limited[i] ? &ranges[i] : nullptr, here);
    ranges[i].together = here;
    outside = outside || here;
  }
  return ranges;
}

}  // namespace

std::vector<IntRange> integer_ranges(const Graph& spec, const Graph& candidate, IntRange free) {
  const std::vector<double> points = turning_points(spec, candidate);
  bool outside = true;
  std::vector<IntRange> ranges = ranges_of(spec, candidate, free, points, outside);
  if (!outside) return ranges;
  // Each is safe alone; together they may still make an index that is out of range. Where they
  // mostly do, drawing again is of no use.
  int64_t elements = 0;
  for (TensorId t : spec.inputs()) elements += num_elements(spec.type(t).shape);
  const int draws = elements < 1000 ? 64 : 4;
  int undefined = 0;
  for (int i = 0; i < draws; i++)
    undefined += !is_defined_at(spec, of_family(spec, "ties", uint64_t(i), ranges));
  if (2 * undefined <= draws) return ranges;
  outside = false;
  return ranges_of(spec, candidate, free, points, outside);
}

const std::vector<std::string>& input_families() {
  static const std::vector<std::string> names = {
      "mixed", "normal",  "large", "zeros",       "ties",     "equal",    "positive",
      "huge",  "shifted", "tiny",  "alternating", "outliers", "all_zero", "special"};
  return names;
}

std::vector<NDArray> make_inputs(const Graph& graph, const std::string& family, uint64_t seed,
                                 const std::vector<IntRange>& ranges) {
  return drawn_where_defined(
      graph, seed, ranges,
      [&](uint64_t s, const auto& r) { return of_family(graph, family, s, r); });
}

std::vector<NDArray> draw_integers(const Graph& graph, uint64_t seed,
                                   const std::vector<IntRange>& ranges) {
  const bool together = any_together(ranges);
  return drawn_where_defined(graph, seed, ranges, [&](uint64_t s, const auto& r) {
    Rng rng(s);
    std::vector<NDArray> inputs;
    for (size_t i = 0; i < r.size(); i++) {
      const Type& t = graph.type(graph.inputs()[i]);
      inputs.emplace_back();
      if (is_float(t.dtype) && !together) continue;
      inputs.back() = NDArray::zeros(t.dtype, extents(t.shape));
      for (int64_t& x : inputs.back().ints) x = draw_integer(rng, r[i]);
    }
    return inputs;
  });
}

std::vector<ConcreteTensor> concrete(const Graph& graph, const std::vector<NDArray>& inputs) {
  std::vector<ConcreteTensor> result;
  for (size_t i = 0; i < inputs.size(); i++) {
    const Tensor& t = graph.tensor(graph.inputs()[i]);
    result.push_back({t.name.empty() ? "input" + std::to_string(i) : t.name, t.type,
                      inputs[i].reals, inputs[i].ints});
  }
  return result;
}

std::vector<int64_t> position_of(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> position(shape.size());
  for (size_t d = shape.size(); d-- > 0; index /= shape[d]) position[d] = index % shape[d];
  return position;
}

}  // namespace tessera
