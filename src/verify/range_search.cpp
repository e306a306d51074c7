#include "verify/range_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/check.h"
#include "base/rng.h"
#include "verify/work.h"

namespace tessera {

FloatFormat format_of(DType dtype) {
  switch (dtype) {
  case DType::F64: return {53, -1022, 1023};
  case DType::F32: return {24, -126, 127};
  case DType::F16: return {11, -14, 15};
  case DType::BF16: return {8, -126, 127};
  case DType::I64:
  case DType::I32:
  case DType::I8:
  case DType::U8:
  case DType::Bool: break;
  }
  unreachable("not a float type");
}

namespace {

constexpr double kStep = 0.25;  // octaves: how exactly the edge of a range is found
constexpr int kLeastPoints = 4;
constexpr int kMostPoints = 160;

enum class Signs3 { Positive, Mixed, Negative };
enum class Change { Scale, Shift, Slices };

// A way from ordinary inputs to the ends of the range: its points are exponents of two.
struct Direction {
  int input = -1;  // all of them if negative
  Change change = Change::Scale;
  Signs3 signs = Signs3::Positive;
  int axis = 0;  // of Slices, counted from the last
};

class Search {
 public:
  Search(Reference& reference, const Graph& candidate, const RangeOptions& options)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate), o_(options),
        length_(std::sqrt(std::max(rounding_length(spec_), rounding_length(candidate)))),
        headroom_(std::ceil(std::log2(std::max(most_terms(spec_), most_terms(candidate))))),
        rounded_(coarsest_rounding(spec_)), integers_(draw_integers(spec_, o_.seed, o_.ranges)) {
    const double work = count_work(spec_) * 4 + count_work(candidate);
    points_left_ = int(
        std::clamp(o_.max_work / std::max(1.0, work), double(kLeastPoints), double(kMostPoints)));
    for (size_t k = 0; k < spec_.inputs().size(); k++) {
      Rng rng = Rng(o_.seed).split(k);
      std::vector<double> unit;
      if (is_float(type(k).dtype))
        for (int64_t n = num_elements(type(k).shape); n > 0; n--) unit.push_back(rng.unit());
      units_.push_back(std::move(unit));
    }
    result_.family.family = "scales";
    result_.family.seed = o_.seed;
  }

  RangeResult run() {
    const std::vector<Direction> all = directions();
    // The ends first: where work is short, they tell most.
    for (const double part : {1.0, 0.5, 0.25, 0.125})
      for (const Direction& d : all) {
        if (d.change == Change::Slices && part != 0.5 && part != 1.0) continue;
        sweep(d, part);
        if (over()) return std::move(result_);
      }
    for (const double e : constants())
      for (const Direction& d : all) {
        if (d.change != Change::Scale) continue;
        try_point(d, e);
        if (over()) return std::move(result_);
      }
    return std::move(result_);
  }

 private:
  const Type& type(size_t input) const { return spec_.type(spec_.inputs()[input]); }
  bool over() const { return result_.fault || result_.cancelled || points_left_ <= 0; }

  std::vector<Direction> directions() const {
    std::vector<int> which;
    for (size_t k = 0; k < units_.size(); k++)
      if (!units_[k].empty()) which.push_back(int(k));
    if (which.size() > 1 && o_.together) which.insert(which.begin(), -1);
    std::vector<Direction> all;
    for (const int k : which)
      for (const Signs3 s : {Signs3::Positive, Signs3::Mixed, Signs3::Negative})
        all.push_back({k, Change::Scale, s, 0});
    for (const int k : which) all.push_back({k, Change::Shift, Signs3::Positive, 0});
    for (const int k : which)
      for (int axis = 0; k >= 0 && axis < std::min(2, type(size_t(k)).rank()); axis++)
        if (extent(size_t(k), axis) > 1) all.push_back({k, Change::Slices, Signs3::Mixed, axis});
    return all;
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
  double end(const Direction& d, bool up) const {
    double e = 0;
    for (size_t k = 0; k < units_.size(); k++) {
      if (units_[k].empty() || (d.input >= 0 && size_t(d.input) != k)) continue;
      const DType t = type(k).dtype;
      if (d.change == Change::Shift)
        e = std::max(e, format_of(t).bits - 2.0);
      else
        e = up ? std::max(e, top(t)) : std::min(e, double(format_of(t).least));
    }
    return e;
  }
  // Magnitudes at which constants of the programs take over.
  std::vector<double> constants() const {
    std::set<double> exponents;
    for (const double x : turning_points(spec_, candidate_))
      if (std::fabs(x) > 8 || (x != 0 && std::fabs(x) < 0.125))
        exponents.insert(std::round(std::log2(std::fabs(x)) / kStep) * kStep);
    return {exponents.begin(), exponents.end()};
  }

  void sweep(const Direction& d, double part) {
    for (const bool up : {true, false}) {
      if (!up && (d.change == Change::Shift || d.signs == Signs3::Negative)) continue;
      const double outer = std::round(end(d, up) * part / kStep) * kStep;
      const bool fails = try_point(d, outer);
      // Both fail out there: the rewrite may have failed before the original did.
      double inner = std::round(end(d, up) * part / 2 / kStep) * kStep, edge = outer;
      if (!fails || over() || try_point(d, inner)) continue;
      while (!over() && std::fabs(edge - inner) > kStep) {
        const double middle = std::round((edge + inner) / 2 / kStep) * kStep;
        (try_point(d, middle) ? edge : inner) = middle;
      }
    }
  }

  double value(const Direction& d, size_t k, int64_t i, double e) const {
    const double u = units_[k][size_t(i)];
    const bool scaled = d.input < 0 || size_t(d.input) == k;
    const bool minus = std::fmod(u * 1024, 2) >= 1;  // a bit of u that says little of its size
    double sign = d.signs == Signs3::Mixed && minus ? -1 : 1;
    if (d.signs == Signs3::Negative && scaled) sign = -1;
    if (scaled && d.change == Change::Shift) return std::exp2(e) + 4 * u - 2;
    bool here = scaled;
    if (d.change == Change::Slices && scaled)
      here = (d.axis == 0 ? i : i / extent(k, 0)) % extent(k, d.axis) % 2 == 1;
    const DType t = type(k).dtype;
    const double at = here ? std::clamp(e, double(format_of(t).least), top(t)) : 0;
    const double whole = std::floor(at);
    // Near a power of two: norms and means of such numbers are too.
    const double x = (1 + u / 16) * std::exp2(at - whole);
    return sign * std::ldexp(std::fmin(x, 2 - std::ldexp(1.0, 1 - format_of(t).bits)), int(whole));
  }

  Reference::Run& run_at(const Direction& d, double e) {
    char name[80];
    std::snprintf(name, sizeof name, "scales %d %d %d %d %.2f", d.input, int(d.change),
                  int(d.signs), d.axis, e);
    Reference::Run& r = reference_.run({name, o_.seed, o_.ranges});
    if (!r.inputs.empty()) return r;
    std::vector<NDArray> inputs;
    for (size_t k = 0; k < units_.size(); k++) {
      NDArray a = NDArray::zeros(type(k).dtype, extents(type(k).shape));
      a.ints = integers_[k].ints;
      for (size_t i = 0; i < a.reals.size(); i++)
        a.reals[i] = round_to(a.dtype, value(d, k, int64_t(i), e));
      inputs.push_back(std::move(a));
    }
    r.exact = eval_with_magnitude(spec_, inputs, {Precision::Wide, reference_.pool(), {}});
    r.native = eval(spec_, inputs, {Precision::Native, reference_.pool(), {}});
    r.inputs = std::move(inputs);
    return r;
  }

  // What rounding explains of an element's error.
  double explained(const Reference::Run& r, size_t k, size_t i) const {
    const double unit = std::ldexp(1.0, 1 - format_of(rounded_[k]).bits);
    const DType t = r.native[k].dtype;
    const double least = t == DType::F16 ? 0x1p-24 : std::ldexp(1.0, format_of(t).least);
    return o_.c * unit * length_ * r.exact[k].magnitude.reals[i] + 4 * least * length_;
  }
  bool is_fine(const Reference::Run& r, size_t k, size_t i) const {
    if (r.native[k].reals.empty()) return r.native[k].ints[i] == r.exact[k].value.ints[i];
    return std::isfinite(r.native[k].reals[i]) && std::isfinite(r.exact[k].value.reals[i]) &&
           std::isfinite(r.exact[k].magnitude.reals[i]) &&
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
    std::optional<RangeFault> fault = worst(r, c, fails, false, nullptr);
    if (!fault) return fails;
    if (r.moved.empty()) o_.sensitivity(r);
    if (!worst(r, c, fails, true, nullptr)) return fails;
    // At the edge of the original's own range the order of operations decides which is first.
    const double further = e + (e >= 0 ? kStep : -kStep);
    const Reference::Run here = r;  // the other may displace it
    const bool inside = std::fabs(further) <= std::fabs(end(d, e >= 0));
    fault = worst(here, c, fails, true, inside ? &run_at(d, further) : nullptr);
    if (!fault) return fails;
    fault->where = describe(d, e);
    fault->inputs = here.inputs;
    result_.fault = std::move(fault);
    return true;
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
      for (size_t i = 0; i < c[k].ints.size(); i++)
        if (c[k].ints[i] != r.native[k].ints[i] && !(excused && r.moved[k][i] > 0))
          note(2, k, i, double(r.native[k].ints[i]), double(c[k].ints[i]), 0);
      for (size_t i = 0; i < c[k].reals.size(); i++) {
        const double x = r.native[k].reals[i], y = c[k].reals[i];
        const double own = r.exact[k].error(i, x), base = explained(r, k, i);
        const double error = std::isfinite(y) ? r.exact[k].error(i, y) : INFINITY;
        const double allowed = std::fmax(2 * own, base);
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
    char by[80];
    const char* how = d.change == Change::Shift ? "shifted" : "scaled";
    std::snprintf(by, sizeof by, " %s by 2^%g", how, e);
    const std::string which = d.input < 0
                                  ? "all inputs"
                                  : "input " + std::to_string(d.input) +
                                        (d.change == Change::Slices ? ", every other slice" : "");
    return which + by;
  }

  Reference& reference_;
  const Graph &spec_, &candidate_;
  const RangeOptions& o_;
  const double length_, headroom_;
  const std::vector<DType> rounded_;  // coarsest on the way to each output
  const std::vector<NDArray> integers_;
  std::vector<std::vector<double>> units_;  // of each float input's elements, in [0, 1)
  int points_left_ = 0;
  RangeResult result_;
};

}  // namespace

RangeResult search_ranges(Reference& spec, const Graph& candidate, const RangeOptions& options) {
  return Search(spec, candidate, options).run();
}

}  // namespace tessera
