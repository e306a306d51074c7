#include "verify/range_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "base/text.h"
#include "ir/walk.h"
#include "verify/work.h"

namespace tessera {

double smallest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p-1022 : dtype == DType::F16 ? 0x1p-24 : 0x1p-126;
}

FloatFormat format_of(DType dtype) {
  CHECK(is_float(dtype)) << name(dtype) << " is not a float type";
  // In DType's order.
  constexpr FloatFormat kFormats[] = {
      {53, -1022, 1023}, {24, -126, 127}, {11, -14, 15}, {8, -126, 127}};
  return kFormats[size_t(dtype)];
}

namespace {

double largest(DType dtype) {
  const FloatFormat f = format_of(dtype);
  return std::ldexp(2 - std::ldexp(1.0, 1 - f.bits), f.most);
}

constexpr double kOctaveStep = 0.25;  // octaves: how exactly the edge of a range is found
constexpr int kLeastPoints = 4;
constexpr int kMostPoints = 600;
constexpr size_t kMostConstants = 6;
constexpr int kMixed = 8;
constexpr size_t kMany = 64;  // elements, of whose errors the middle one is compared
constexpr uint64_t kMostDraws = 16;
constexpr int kSecants = 24;
constexpr uint64_t kSuspectDraws = 8;  // elements of one draw may share one error, of a sum
constexpr double kFine = 0x1p-23;      // of coarser roundings nothing would be left
constexpr double kMuchLarger = 8;
constexpr double kLasting = 4;  // octaves, beside those of the sums' lengths

enum class Sides { Positive, Both, Negative };  // of shifts, Negative: one input's are waves
enum class Change { Scale, Shift, Slices };
constexpr int64_t kEveryOther = -1;
constexpr int kAsDrawn = -1;

// A way from ordinary inputs to the ends of the range: its points are exponents of two.
struct Direction {
  int input = -1;  // all of them if negative
  Change change = Change::Scale;
  Sides signs = Sides::Positive;
  bool up = true;  // towards overflow
  int axis = 0;    // of Slices, counted from the last
  int64_t slice = kEveryOther;
  int masks = kAsDrawn;  // 0, 1: all bools are that
  int near = -1;      // of Shift: what the inputs are near instead of a power of two, see near(),
  double spread = 2;  // and how far around it they lie
};

// Of an output: the coarsest rounding on the way to it, and the ends of its dtype's range.
struct Limits {
  double unit = 0, least = 0, largest = 0;
};
std::vector<Limits> limits_of(const Graph& g) {
  const std::vector<DType> rounded = coarsest_rounding(g);
  std::vector<Limits> all(g.outputs().size());
  for (size_t k = 0; k < all.size(); k++) {
    const DType t = g.type(g.outputs()[k]).dtype;
    if (is_float(t))
      all[k] = {std::ldexp(1.0, 1 - format_of(rounded[k]).bits),
                t == DType::F16 ? 0x1p-24 : std::ldexp(1.0, format_of(t).least), largest(t)};
  }
  return all;
}

bool has_exponentials(const Graph& g) {
  return any_op(
      g,
      [](const Graph&, const Op& op) {
        return has(op.kind, algebra::Exponential) || has(op.kind, algebra::Gate) ||
               op.kind == OpKind::Erf;
      });
}

// Whether something is rounded to fewer digits than it was computed with: sums whose terms cancel
// keep digits that narrower ones lose.
bool has_narrowing(const Graph& g) {
  return any_op(
      g,
      [](const Graph& at, const Op& op) {
        if (!std::holds_alternative<CastAttrs>(op.attrs)) return false;
        const DType from = at.type(op.inputs[0]).dtype, to = at.type(op.result()).dtype;
        return is_float(from) && is_float(to) && format_of(from).bits > format_of(to).bits;
      });
}

class RangeSearch {
 public:
  RangeSearch(Reference& reference, const Graph& candidate, const RangeOptions& options)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate), o_(options),
        overflow_(spec_),
        length_(std::sqrt(std::max(rounding_length(spec_), rounding_length(candidate)))),
        headroom_(std::ceil(std::log2(std::max(most_terms(spec_), most_terms(candidate))))),
        limits_(limits_of(spec_)), integers_(draw_integers(spec_, o_.seed, o_.ranges)) {
    const double work = count_work(spec_) * 4 + count_work(candidate);
    points_left_ = int(
        std::clamp(o_.max_work / std::max(1.0, work), double(kLeastPoints), double(kMostPoints)));
    draw_units(0);
    while (first_ < units_.size() && units_[first_].empty()) first_++;
    for (size_t k = 0; k < units_.size(); k++)
      if (!units_[k].empty() && format_of(type(k).dtype).bits > format_of(widest_).bits)
        widest_ = type(k).dtype;
    std::set<double> constants;
    constants_of(spec_, constants);
    for (const double x : constants)
      if (x != 0 && constants_.size() < kMostConstants) constants_.push_back(std::fabs(x));
    result_.family.family = "scales";
    result_.family.seed = o_.seed;
  }

  RangeResult run() {
    const std::vector<Direction> all = directions();
    far_from_zero(all);
    if (over()) return std::move(result_);
    std::vector<bool> fails(all.size());
    // The ends first: where work is short, they tell most.
    for (size_t n = 0; n < all.size(); n++) {
      fails[n] = try_point(all[n], end(all[n]));
      if (over()) return std::move(result_);
    }
    for (size_t n = 0; n < all.size(); n++) {
      refine(all[n], fails[n]);
      if (over()) return std::move(result_);
    }
    for (const double e : constants())
      for (const Direction& d : all) {
        if (d.change != Change::Scale || d.signs != Sides::Both || (e > 0) != d.up) continue;
        try_point(d, e);
        if (over()) return std::move(result_);
      }
    beside_constants();
    return std::move(result_);
  }

 private:
  // `alike`: inputs of as many elements are the same before they are scaled or shifted.
  void draw_units(uint64_t draw, bool alike = false) {
    units_ = drawn_[{draw, alike}];
    if (!units_.empty()) return;
    units_.assign(spec_.inputs().size(), {});
    for (size_t k = 0; k < units_.size(); k++) {
      Rng rng = Rng(o_.seed).split((alike ? 0 : k) + 1000 * draw);
      if (is_float(type(k).dtype))
        for (int64_t n = num_elements(type(k).shape); n > 0; n--) {
          const double u = rng.unit();
          units_[k].push_back(rng.chance(0.5) ? u : -u);
        }
    }
    drawn_[{draw, alike}] = units_;
  }

  // Of few digits rounding explains nearly any error of one element, but not the middle one of
  // many: variances as mean(x²) − mean(x)² in bf16, sums of f32 in f64 that are taken in f32.
  void far_from_zero(const std::vector<Direction>& all) {
    const int points = std::exchange(points_left_, points_left_ / 2);
    where_differences_vanish();
    std::vector<Direction> some =
        those(all, [&](const Direction& d) { return d.change == Change::Shift; });
    for (Direction d : some) {
      const double far = end(d), bits = far + 2;
      const auto at = [&](double e, double spread) {
        d.spread = spread;
        for (const bool alike : {false, true})
          if (!over() && (d.input < 0 || !alike)) try_many(d, rounded(e), alike);
      };
      for (const Sides signs : {Sides::Positive, Sides::Both, Sides::Negative}) {
        if (signs == Sides::Negative && !narrowing_) continue;
        d.signs = signs;
        // Of long sums of numbers too much alike the same digits are lost with every term.
        for (const double e : {far, far * 0.75, far * 0.5})
          at(e, bits < 24 ? 2 : std::max(2.0, 4 * std::exp2(e - bits) * length_ * length_));
      }
      d.signs = Sides::Positive;
      for (const double e : {1.5, 5.0, 10.0, 15.0}) at(e, std::exp2(e - 3));
    }
    draw_units(0);
    points_left_ = points;
  }

  // An input is chosen such that a difference of the original's nearly vanishes, as a model's
  // residuals do: A·x − b for b near A·x. Matrices are also taken to be ones of single ones.
  void where_differences_vanish() {
    constexpr int kMost = 16;  // each takes some evaluations, whatever comes of it
    int tried = 0;
    for (const Op& op : spec_.ops()) {
      if (tried >= kMost || over()) return;
      if ((op.kind != OpKind::Sub && op.kind != OpKind::Add) ||
          !is_float(spec_.type(op.result()).dtype))
        continue;
      Graph difference = spec_;
      difference.set_outputs({op.result()});
      difference = without_dead_code(difference);
      const int64_t size = num_elements(spec_.type(op.result()).shape);
      for (size_t k = 0; k < units_.size() && tried < kMost; k++)
        for (const bool single : {false, true}) {
          if (over() || units_[k].empty() || int64_t(units_[k].size()) % size != 0) continue;
          bool by_columns = false;
          const auto make = [&] { return vanishing(difference, k, single, by_columns); };
          tried++;
          if (make().empty() && (by_columns = int64_t(units_[k].size()) > size, make().empty()))
            continue;
          try_many("input " + std::to_string(k) + " near where operands of a sum cancel", false,
                   true, make);
        }
    }
  }
  // By the secant method for each element alone, or for each row that the difference is one of;
  // none where that does not get there.
  std::vector<NDArray> vanishing(const Graph& difference, size_t k, bool single,
                                 bool by_columns) const {
    std::vector<NDArray> inputs;
    for (size_t j = 0; j < units_.size(); j++) {
      NDArray a = NDArray::zeros(type(j).dtype, extents(type(j).shape));
      a.ints = integers_[j].ints;
      const size_t row = a.shape.empty() ? 1 : size_t(a.shape.back());
      for (size_t i = 0; i < a.reals.size(); i++)
        a.reals[i] =
            round_to(a.dtype, !single                        ? 2 * units_[j][i]
                              : j != k && type(j).rank() > 1 ? i / row % row == i % row
                                                             : std::fabs(2 * units_[j][i]));
      inputs.push_back(std::move(a));
    }
    const auto at = [&] {
      return eval(difference, inputs, {Precision::Exact, reference_.pool(), {}})[0].reals;
    };
    std::vector<double>& x = inputs[k].reals;
    std::vector<double> best = x, f = at(), step(x.size(), 1);
    const size_t share = x.size() / f.size();
    const double apart = std::exp2(-0.4 * format_of(type(k).dtype).bits);
    size_t near = 0;
    for (int n = 0; n < kSecants && 2 * near < x.size(); n++) {
      for (size_t i = 0; i < x.size(); i++) x[i] = best[i] + step[i];
      const std::vector<double> next = at(), last = f;
      near = 0;
      for (size_t i = 0; i < x.size(); i++) {
        const size_t j = by_columns ? i % f.size() : i / share;
        const double y = next[j], secant = last[j] * step[i] / (last[j] - y);
        near += std::fabs(y) < 0x1p-10 * apart * std::fabs(x[i]);
        if (!std::isfinite(last[j]) || std::fabs(y) < std::fabs(last[j])) {
          best[i] = x[i];
          f[j] = y;
          step[i] = std::isfinite(secant) ? secant - step[i] : 1;
        } else {  // too far, or the wrong way
          const double part = secant / step[i];
          step[i] *= part < 0 ? part : part < 0.5 ? std::max(part, 0.25) : 0.5;
        }
      }
    }
    if (2 * near < x.size()) return {};
    for (size_t i = 0; i < x.size(); i++)
      x[i] = round_to(type(k).dtype, x[i] * (1 + apart * units_[k][i]));
    return inputs;
  }

  void try_many(const Direction& d, double e, bool alike) {
    try_many(
        describe(d, e), alike, false,
        [&] {
          return mapped(
              units_.size(), [&](size_t k) { return input(d, k, e); });
        });
  }
  // `make`: inputs of the units that are drawn. `vanishing`: errors are measured by what little is
  // left of the results; so much that a product of two such differences, multiplied out, shows.
  void try_many(const std::string& where, bool alike, bool vanishing,
                const std::function<std::vector<NDArray>()>& make) {
    struct Off {
      std::vector<double> own, other;  // over a rounding of all terms
      double most = 0;
      RangeFault worst;
    };
    std::vector<Off> off(spec_.outputs().size());
    const auto collect = [&](Reference::Run& r, const std::vector<NDArray>& c) {
      measure(r);
      for (size_t k = 0; k < off.size(); k++) {
        Off& o = off[k];
        const double before = o.most;
        for (size_t i = 0; i < c[k].reals.size(); i++) {
          const double x = r.native[k].reals[i], y = c[k].reals[i], unit = unit_of(k),
                       one = vanishing ? std::pow(unit, 0.35) * std::fabs(r.exact[k].value.reals[i])
                                       : unit * r.exact[k].magnitude.reals[i];
          if (!is_fine(r, k, i) || !std::isfinite(y) || !(one > 0)) continue;
          if (vanishing && unit > kFine) continue;
          o.own.push_back(r.exact[k].error(i, x) / one);
          o.other.push_back(r.exact[k].error(i, y) / one);
          if (o.other.back() <= o.most) continue;
          o.most = o.other.back();
          o.worst = {where, {}, int(k), int64_t(i), x, y, one, false};
        }
        if (o.most > before) o.worst.inputs = r.inputs;
      }
    };
    // Where all are within half a rounding of each other, no middle is off by more than the other's
    // and a half: nothing has to be measured.
    std::vector<std::pair<Reference::Run, std::vector<NDArray>>> runs;
    size_t fewest = 0, measured = 0;
    bool same = true;
    for (uint64_t draw = 0;
         draw < kMostDraws && (fewest < kMany || draw < kSuspectDraws) && points_left_-- > 0;
         draw++) {
      if (o_.cancel != nullptr && o_.cancel->load()) result_.cancelled = true;
      if (result_.cancelled) return;
      draw_units(draw, alike);
      Reference::Run r;
      r.inputs = make();
      if (r.inputs.empty()) continue;
      r.native = eval(spec_, r.inputs, {Precision::Native, reference_.pool(), {}});
      std::vector<NDArray> c =
          eval(candidate_, r.inputs, {Precision::Native, reference_.pool(), {}});
      same = same && are_near(r, c);
      runs.emplace_back(std::move(r), std::move(c));
      for (; !same && measured < runs.size(); measured++)
        collect(runs[measured].first, runs[measured].second);
      fewest = kMany;
      for (size_t k = 0; k < off.size(); k++)
        if (const size_t n = runs[0].second[k].reals.size(); n > 0)
          fewest = std::min(fewest, same ? n * runs.size() : off[k].own.size());
      // Faults are far beyond what is allowed.
      const auto innocent = [&](Off& o) { return share(o.own, o.other) < 0.5; };
      if (fewest >= kMany / 4 && std::ranges::all_of(off, innocent)) return;
    }
    for (Off& o : off) {
      if (o.own.size() < kMany / 4 || share(o.own, o.other) <= 1) continue;
      o.worst.allowed *= allowed(o.own);
      result_.fault = std::move(o.worst);
      return;
    }
  }
  // The middle of few errors is itself a matter of chance.
  double allowed(std::vector<double>& own) const {
    return std::max({1.0, length_ / (own.size() < kMany ? 2 : 8), kMuchLarger * middle(own)});
  }
  // Of what is allowed, the part that the middle error takes.
  double share(std::vector<double>& own, std::vector<double>& other) const {
    return own.empty() ? 0 : middle(other) / allowed(own);
  }
  bool are_near(const Reference::Run& r, const std::vector<NDArray>& c) const {
    for (size_t k = 0; k < c.size(); k++)
      for (size_t i = 0; i < c[k].reals.size(); i++) {
        const double x = r.native[k].reals[i], y = c[k].reals[i];
        if (std::isfinite(x) && !(std::fabs(x - y) <= 0.5 * unit_of(k) * std::fabs(x)))
          return false;
      }
    return true;
  }
  static double middle(std::vector<double>& x) {
    std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
    return x[x.size() / 2];
  }

  const Type& type(size_t input) const { return spec_.type(spec_.inputs()[input]); }
  bool over() const { return result_.fault || result_.cancelled || points_left_ <= 0; }

  std::vector<Direction> directions() const {
    std::vector<int> which;
    for (size_t k = 0; k < units_.size(); k++)
      if (!units_[k].empty()) which.push_back(int(k));
    if (which.size() > 1) which.insert(which.begin(), -1);
    std::vector<Direction> all;
    for (const int k : which) {
      for (const Sides s : {Sides::Positive, Sides::Both, Sides::Negative})
        all.push_back({k, Change::Scale, s, true, 0});
      for (const int masks : {0, 1})
        if (has_masks())
          all.push_back({k, Change::Scale, Sides::Both, true, 0, kEveryOther, masks});
      all.push_back({k, Change::Scale, Sides::Positive, false, 0});
      all.push_back({k, Change::Shift, Sides::Positive, true, 0});
      for (int axis = 0; k >= 0 && axis < std::min(2, type(size_t(k)).rank()); axis++)
        for (const int64_t slice : slices(extent(size_t(k), axis)))
          for (const Sides s : {Sides::Both, Sides::Positive})
            if (s == Sides::Both || (exponentials_ && slice != kEveryOther))
              all.push_back({k, Change::Slices, s, true, axis, slice});
    }
    return all;
  }
  bool has_masks() const {
    return std::ranges::any_of(
        spec_.inputs(), [&](TensorId t) { return spec_.type(t).dtype == DType::Bool; });
  }
  // Every other one, and some alone: one of the programs may read what the other does not.
  std::vector<int64_t> slices(int64_t extent) const {
    if (extent < 2) return {};
    std::vector<int64_t> some = {kEveryOther};
    if (extent > 8)
      return {kEveryOther, 0, extent - 1, 1 + int64_t(o_.seed % uint64_t(extent - 2))};
    for (int64_t i = 0; i < extent; i++) some.push_back(i);
    return some;
  }
  int64_t extent(size_t k, int axis) const {
    return type(k).shape[size_t(type(k).rank() - 1 - axis)].extent;
  }

  // The exponents at which an input is as large and as small as it may be. Sums of many terms may
  // reach overflow sooner by their number, as sums that are scaled afterwards do, but in f16, where
  // that is much of the range.
  double top(DType dtype) const {
    return format_of(dtype).most - (dtype == DType::F16 ? 0 : headroom_);
  }
  double end(const Direction& d) const {
    double e = 0;
    for (size_t k = 0; k < units_.size(); k++) {
      if (units_[k].empty() || !changes(d, k)) continue;
      const FloatFormat f = format_of(type(k).dtype);
      if (!d.up)
        e = std::min(e, double(f.least));
      else
        e = std::max(e, d.change == Change::Shift ? f.bits - 2.0 : top(type(k).dtype));
    }
    return e;
  }
  // Where the original has to be fine, too, for a fault at e to count: it is the original's own
  // edge otherwise, where the order of operations decides who fails first. Sums whose terms cancel
  // stay finite by luck until a term does not; digits are lost to underflow bit by bit. e if
  // nothing is further out.
  double beyond(const Direction& d, double e) const {
    if (d.change == Change::Shift) return e;
    FloatFormat widest{0, 0, 0};
    bool cancel = d.signs == Sides::Both;
    for (size_t k = 0; k < units_.size(); k++) {
      if (units_[k].empty() || !changes(d, k)) continue;
      const FloatFormat f = format_of(type(k).dtype);
      widest = {std::max(widest.bits, f.bits), std::min(widest.least, f.least),
                std::max(widest.most, f.most)};
      cancel = cancel || type(k).dtype != DType::F16;
    }
    if (!d.up) return std::max(e - widest.bits / 3, std::min(double(widest.least), e));
    return std::min(e + std::max(kOctaveStep, cancel ? headroom_ : 0), double(widest.most));
  }
  static bool changes(const Direction& d, size_t input) {
    return d.input < 0 || size_t(d.input) == input;
  }
  // Magnitudes at which constants of the programs take over.
  std::vector<double> constants() const {
    std::set<double> exponents;
    for (const double x : turning_points(spec_, candidate_))
      if (std::fabs(x) > 8 || (x != 0 && std::fabs(x) < 0.125))
        exponents.insert(std::round(std::log2(std::fabs(x)) / kOctaveStep) * kOctaveStep);
    return {exponents.begin(), exponents.end()};
  }

  // (x - 1000)² is accurate beside 1000, what it expands to is not.
  void beside_constants() {
    const int sets = constants_.empty() ? 0 : 2 * int(constants_.size()) + kMixed;
    for (int near = 0; near < sets; near++)
      for (int k = -1; k < int(units_.size()); k++)
        for (const double digits : {0.4, 0.15}) {
          if (over()) return;
          if (k >= 0 && (units_.size() == 1 || units_[size_t(k)].empty())) continue;
          const int bits = format_of(k < 0 ? widest_ : type(size_t(k)).dtype).bits;
          try_point({k, Change::Shift, Sides::Positive, true, 0, kEveryOther, kAsDrawn, near},
                    rounded(-digits * bits));
        }
  }
  // One of the constants of the original, of either sign, for all; or one for each input and
  // column.
  double near(const Direction& d, size_t input, size_t i) const {
    const size_t n = size_t(d.near), count = constants_.size();
    if (n < 2 * count) return n % 2 == 0 ? constants_[n / 2] : -constants_[n / 2];
    const bool columns = n % 2 == 0 && type(input).rank() > 0;
    const uint64_t place = columns ? i % uint64_t(extent(input, 0)) : i;
    const uint64_t of = Rng(o_.seed).split(n).split(input).split(place).below(count + 1);
    return of == count ? 0 : constants_[of];
  }

  // Where both programs fail at the end the rewrite may have failed before the original did.
  void refine(const Direction& d, bool fails) {
    double edge = end(d), inner = 0;
    const bool few = d.change == Change::Slices;
    if (!fails || few) {
      // Between the ends, too, something may leave the range whose effect fades further out; and
      // exponentials lose their digits where they are small, a few octaves from 1.
      const size_t parts = few ? 1 : d.signs == Sides::Both || !d.up ? kParts.size() : 2;
      for (size_t n = 0; n < parts && !over(); n++) try_point(d, rounded(edge * kParts[n]));
      const bool near = few ? d.signs == Sides::Positive : parts > 2;
      for (double e = 1.5; e <= 6.5 && exponentials_ && d.up && near && !over(); e += 0.25)
        try_point(d, e);
      return;
    }
    while (!over() && std::fabs(edge - inner) > kOctaveStep) {
      const double middle = rounded((edge + inner) / 2);
      (try_point(d, middle) ? edge : inner) = middle;
    }
  }
  static const inline std::vector<double> kParts = {0.5,   0.25, 0.75, 0.9, 0.125, 0.375,
                                                    0.625, 0.8,  0.7,  0.3, 0.2,   0.1};
  static double rounded(double e) { return std::round(e / kOctaveStep) * kOctaveStep; }

  // Whether an element lies on the one half of the squares of a chessboard.
  bool is_odd(size_t k, size_t i) const {
    int64_t sum = 0, rest = int64_t(i);
    for (int axis = 0; axis < type(k).rank(); rest /= extent(k, axis++))
      sum += rest % extent(k, axis);
    return sum % 2 == 1;
  }

  // Signs (by Walsh's functions) with which sums along either of the last axes cancel, those of
  // products with one input and those of most pairs of rows; 0 where a wave does not end.
  int wave(const Direction& d, size_t k, size_t i) const {
    if (d.input < 0 && k != first_) return 1;
    uint64_t both = ~uint64_t(0), rest = i;
    for (int axis = 0; axis < std::min(2, type(k).rank()); axis++) {
      const uint64_t n = uint64_t(extent(k, axis)),
                     length = std::min<uint64_t>(8, std::bit_floor(n));
      if (rest % n >= n - n % length) return 0;
      both &= rest % n % length + 1;
      rest /= n;
    }
    return std::popcount(type(k).rank() < 2 ? both & 1 : both) % 2 == 1 ? -1 : 1;
  }

  NDArray input(const Direction& d, size_t k, double e) const {
    NDArray a = NDArray::zeros(type(k).dtype, extents(type(k).shape));
    a.ints = integers_[k].ints;
    if (a.dtype == DType::Bool && d.masks != kAsDrawn) std::ranges::fill(a.ints, d.masks);
    if (a.reals.empty()) return a;
    const FloatFormat f = format_of(a.dtype);
    const bool changed = changes(d, k), shift = changed && d.change == Change::Shift;
    const double at = std::clamp(e, double(f.least), double(f.most));
    const double far = std::exp2(at), fine = std::exp2(e), most = largest(a.dtype),
                 scale = changed && !shift ? far : 1;
    const int64_t inner = d.change == Change::Slices && changed && d.axis > 0 ? extent(k, 0) : 1,
                  width = d.change == Change::Slices && changed ? extent(k, d.axis) : 0;
    for (size_t i = 0; i < a.reals.size(); i++) {
      const double u = units_[k][i],
                   size = shift ? d.spread * (2 * std::fabs(u) - 1) : 1 + std::fabs(u) / 16;
      const bool minus = !shift && (d.signs == Sides::Both ? std::signbit(u)
                                                           : d.signs == Sides::Negative && changed);
      const int64_t slice = width == 0 ? 0 : int64_t(i) / inner % width;
      const bool here = width == 0 || (d.slice == kEveryOther ? slice % 2 == 1 : slice == d.slice);
      const int sign = !shift                       ? 1
                       : d.signs == Sides::Both     ? (is_odd(k, i) ? -1 : 1)
                       : d.signs == Sides::Negative ? wave(d, k, i)
                                                    : 1;
      const double to = d.near >= 0 ? near(d, k, i) : sign * far,
                   by = !shift        ? size * (here ? scale : 1)
                        : d.near >= 0 ? to + size * (to == 0 ? 1 : to) * fine
                                      : to + size,
                   x = std::clamp(by, -most, most);
      a.reals[i] = round_to(a.dtype, minus ? -x : x);
    }
    return a;
  }

  Reference::Run& run_at(const Direction& d, double e) {
    char name[80];
    std::snprintf(name, sizeof name, "scales %d %d %d %d %d %d %d %.2f", d.input, int(d.change),
                  int(d.signs), d.axis, int(d.slice), d.masks, d.near, e);
    Reference::Run& r = reference_.run({name, o_.seed, o_.ranges});
    if (!r.inputs.empty()) return r;
    std::vector<NDArray> inputs = mapped(units_.size(), [&](size_t k) { return input(d, k, e); });
    r.native = eval(spec_, inputs, {Precision::Native, reference_.pool(), {}});
    r.inputs = std::move(inputs);
    return r;
  }
  void measure(Reference::Run& r) const {
    if (r.exact.empty())
      r.exact = eval_with_magnitude(spec_, r.inputs, {Precision::Wide, reference_.pool(), {}});
  }

  // Whether results agree so well that the rewrite is as accurate as the original, whatever is
  // true: |y - x| <= base / 2 makes the error of y at most max(2 · that of x, base).
  bool agree(const Reference::Run& r, const std::vector<NDArray>& c, bool& fails) const {
    bool same = true;
    for (size_t k = 0; k < c.size(); k++) {
      same = same && c[k].ints == r.native[k].ints;
      const double unit = c[k].reals.empty() ? 0 : unit_of(k);
      for (size_t i = 0; i < c[k].reals.size() && same; i++) {
        const double x = r.native[k].reals[i], y = c[k].reals[i];
        if (!std::isfinite(y)) fails = true;
        same =
            !std::isfinite(x) ||
            (std::fabs(x - y) <= 0.5 * o_.c * unit * length_ * std::fabs(x) && (x != 0 || y != 0));
      }
    }
    return same;
  }

  double unit_of(size_t output) const { return limits_[output].unit; }
  // What rounding explains of an element's error.
  double explained(const Reference::Run& r, size_t k, size_t i) const {
    return o_.c * unit_of(k) * length_ * r.exact[k].magnitude.reals[i] +
           4 * limits_[k].least * length_;
  }
  // Whether rounding of large terms explains that no digit is left, though the exact value has
  // some.
  bool drowns(const Reference::Run& r, size_t k, size_t i) const {
    const double digit = few_digits(r, k, i), terms = length_ * r.exact[k].magnitude.reals[i];
    return is_fine(r, k, i) && o_.c * unit_of(k) * terms > digit &&
           (widest_ == DType::F64 ? 0x1p-60 : 0x1p-50) * terms < digit;
  }
  static double few_digits(const Reference::Run& r, size_t k, size_t i) {
    return std::fabs(r.exact[k].value.reals[i]) / 8;
  }
  // Whether the rewrite has no digit right at such an element.
  bool drowned(const Reference::Run& r, const std::vector<NDArray>& c) const {
    for (size_t k = 0; k < c.size(); k++)
      for (size_t i = 0; i < c[k].reals.size(); i++)
        if (r.exact[k].error(i, c[k].reals[i]) > few_digits(r, k, i) && drowns(r, k, i))
          return true;
    return false;
  }
  // Which share of what rounding explains there the original shows, by errors of its own or as its
  // inputs move by units in the last place: none where large terms cancel exactly: (x - x) + 1.
  double shown(const Reference::Run& r, size_t k) const {
    if (r.moved.empty() || r.native[k].reals.empty()) return 1;
    constexpr double kLuck = 16;
    double share = 0;
    for (size_t i = 0; i < r.native[k].reals.size(); i++)
      if (drowns(r, k, i))
        share = std::fmax(share,
                          kLuck / explained(r, k, i) *
                              std::fmax(r.exact[k].error(i, r.native[k].reals[i]), r.moved[k][i]));
    return std::fmin(share, 1);
  }
  // Finite and accurate, and not for want of terms that cancel: those of a rewrite may be as large.
  bool is_fine(const Reference::Run& r, size_t k, size_t i) const {
    if (r.native[k].reals.empty()) return r.native[k].ints[i] == r.exact[k].value.ints[i];
    return std::isfinite(r.native[k].reals[i]) && std::isfinite(r.exact[k].value.reals[i]) &&
           r.exact[k].magnitude.reals[i] <= limits_[k].largest &&
           r.exact[k].error(i, r.native[k].reals[i]) <= explained(r, k, i);
  }

  // Whether the rewrite is not finite or not accurate somewhere; sets the result's fault where the
  // original is.
  bool try_point(const Direction& d, double e) {
    if (points_left_-- <= 0) return false;
    if (o_.cancel != nullptr && o_.cancel->load()) return !(result_.cancelled = true);
    if (o_.progress) o_.progress("real inputs: " + describe(d, e));
    Reference::Run& r = run_at(d, e);
    const std::vector<NDArray> c =
        eval(candidate_, r.inputs, {Precision::Native, reference_.pool(), {}});
    bool fails = false;
    if (agree(r, c, fails)) return fails;
    measure(r);
    if (r.moved.empty() && drowned(r, c)) o_.sensitivity(r);
    std::optional<RangeFault> fault = worst(r, c, fails, false, nullptr);
    if (!fault) return fails;
    if (r.moved.empty()) o_.sensitivity(r);
    if (!worst(r, c, fails, true, nullptr)) return fails;
    // At the edge of the original's own range the order of operations decides which is first.
    const double further = beyond(d, e);
    const Reference::Run here = r;  // the other may displace it
    Reference::Run* next = nullptr;
    if (further != e) measure(*(next = &run_at(d, further)));
    fault = worst(here, c, fails, true, next);
    if (!fault) return fails;
    if ((overflow_.of_terms(here.inputs, reference_.pool()) ||
         (next && overflow_.of_terms(next->inputs, reference_.pool()))) &&
        !(overflow_.spares_sums(here.inputs, reference_.pool()) && lasts(d, e)))
      return fails;
    fault->where = describe(d, e);
    fault->inputs = here.inputs;
    result_.fault = std::move(fault);
    return true;
  }

  // Where the original stays right far beyond what leaves the range on the way (tanh(x·(x − y)) is
  // ±1), a rewrite that is not fails for more than the order of operations.
  bool lasts(const Direction& d, double e) {
    if (d.change == Change::Shift || !d.up) return false;
    const double far = kLasting + 2 * headroom_, other = e + far <= end(d) ? e + far : e - far;
    if (other <= 0) return false;
    Reference::Run& r = run_at(d, other);
    measure(r);
    if (r.moved.empty()) o_.sensitivity(r);
    bool fails = false;
    const auto c = eval(candidate_, r.inputs, {Precision::Native, reference_.pool(), {}});
    return worst(r, c, fails, true, nullptr) && overflow_.spares_sums(r.inputs, reference_.pool());
  }

  // The worst fault among elements at which the original is fine, also at `further` if given, and
  // that its own sensitivity does not explain, if `excused`.
  std::optional<RangeFault> worst(const Reference::Run& r, const std::vector<NDArray>& c,
                                  bool& fails, bool excused, const Reference::Run* further) {
    std::optional<RangeFault> found;
    double most = 1;
    auto note = [&](double ratio, size_t k, size_t i, double x, double y, double allowed) {
      fails = true;
      if (!is_fine(r, k, i) || (further && !is_fine(*further, k, i)) || ratio <= most) return;
      if (excused && !r.exact[k].value.reals.empty() &&
          4 * r.moved[k][i] >= std::fmin(r.exact[k].error(i, y), std::fabs(x) + 1e-30))
        return;
      most = ratio;
      found = RangeFault{{}, {}, int(k), int64_t(i), x, y, allowed, !std::isfinite(y)};
    };
    for (size_t k = 0; k < c.size(); k++) {
      const double share = shown(r, k);
      for (size_t i = 0; i < c[k].ints.size(); i++)
        if (c[k].ints[i] != r.native[k].ints[i] && !(excused && r.moved[k][i] > 0))
          note(2, k, i, double(r.native[k].ints[i]), double(c[k].ints[i]), 0);
      for (size_t i = 0; i < c[k].reals.size(); i++) {
        const double x = r.native[k].reals[i], y = c[k].reals[i];
        const double own = r.exact[k].error(i, x), base = explained(r, k, i);
        const double error = std::isfinite(y) ? r.exact[k].error(i, y) : INFINITY;
        const double less =
            share < 1 && drowns(r, k, i) ? std::fmax(few_digits(r, k, i), base * share) : base;
        const double allowed = std::fmax(2 * own, std::fmin(base, less));
        if (!excused) count(is_fine(r, k, i), own, error, allowed, r.exact[k].magnitude.reals[i]);
        if (!(error <= allowed))
          note(std::isfinite(error) ? error / allowed : 1e300, k, i, x, y, allowed);
      }
    }
    return found;
  }
  void count(bool fine, double own, double error, double allowed, double magnitude) {
    GateFamily& f = result_.family;
    if (!fine) {
      f.not_finite++;
      return;
    }
    f.elements++;
    if (!(error <= allowed) || !(magnitude > 0)) return;
    f.worst_ratio = std::fmax(f.worst_ratio, error / allowed);
    f.spec_error = std::fmax(f.spec_error, own / magnitude);
    f.candidate_error = std::fmax(f.candidate_error, error / magnitude);
    f.spec_mean += (own / magnitude - f.spec_mean) / double(f.elements);
    f.candidate_mean += (error / magnitude - f.candidate_mean) / double(f.elements);
  }

  std::string describe(const Direction& d, double e) const {
    const char* how = d.near >= 0                 ? "beside constants"
                      : d.change == Change::Shift ? "shifted"
                                                  : "scaled";
    const std::string which =
        d.input < 0 ? "all inputs"
                    : "input " + std::to_string(d.input) +
                          (d.change != Change::Slices ? ""
                           : d.slice == kEveryOther   ? ", every other slice"
                                                      : ", slice " + std::to_string(d.slice));
    return which + " " + how + " by 2^" + significant(e, 6);
  }

  Reference& reference_;
  const Graph &spec_, &candidate_;
  const RangeOptions& o_;
  const InnerOverflow overflow_;
  const double length_, headroom_;
  const std::vector<Limits> limits_;
  const std::vector<NDArray> integers_;
  std::map<std::pair<uint64_t, bool>, std::vector<std::vector<double>>> drawn_;
  std::vector<std::vector<double>> units_;  // of each float input's elements, in (-1, 1)
  std::vector<double> constants_;           // of the original, few
  DType widest_ = DType::F16;
  const bool exponentials_ = has_exponentials(spec_) || has_exponentials(candidate_);
  const bool narrowing_ = has_narrowing(spec_);
  size_t first_ = 0;  // input of floats
  int points_left_ = 0;
  RangeResult result_;
};

}  // namespace

InnerOverflow::InnerOverflow(const Graph& graph) : values_(graph) {
  std::vector<TensorId> all;
  for (const Op& op : graph.ops())
    for (uint32_t r = 0; r < op.num_results; r++)
      if (is_float(graph.type(op.result(r)).dtype)) {
        all.push_back(op.result(r));
        const bool one_term = has(op.kind, algebra::Pointwise) || has(op.kind, algebra::Movement);
        sums_.push_back(!one_term || op.kind == OpKind::Add || op.kind == OpKind::Sub);
      }
  values_.set_outputs(all);
}

bool InnerOverflow::spares_sums(const std::vector<NDArray>& inputs, ThreadPool* pool) const {
  const std::vector<NDArray> native = eval(values_, inputs, {Precision::Native, pool, {}});
  for (size_t k = 0; k < native.size(); k++)
    for (const double x : native[k].reals)
      if (sums_[k] && !std::isfinite(x)) return false;
  return true;
}

bool InnerOverflow::any(const std::vector<NDArray>& inputs, ThreadPool* pool,
                        bool cancelling) const {
  const std::vector<WithMagnitude> exact =
      eval_with_magnitude(values_, inputs, {Precision::Wide, pool, {}});
  const std::vector<NDArray> native = eval(values_, inputs, {Precision::Native, pool, {}});
  for (size_t k = 0; k < exact.size(); k++)
    for (size_t i = 0; i < native[k].reals.size(); i++) {
      const double x = exact[k].value.reals[i], terms = exact[k].magnitude.reals[i];
      // Infinite constants, of masks, have no magnitude.
      if (std::isnan(x) || (cancelling && !(terms > 1.25 * std::fabs(x)))) continue;
      if (terms > largest(native[k].dtype) ||
          (std::isfinite(x) && !std::isfinite(native[k].reals[i])))
        return true;
    }
  return false;
}

RangeResult search_ranges(Reference& spec, const Graph& candidate, const RangeOptions& options) {
  return RangeSearch(spec, candidate, options).run();
}

}  // namespace tessera
