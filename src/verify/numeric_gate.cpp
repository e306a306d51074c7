#include "verify/numeric_gate.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <set>

#include "base/check.h"
#include "base/rng.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/range_search.h"
#include "verify/work.h"

namespace tessera {
namespace {

double unit_of(DType dtype) { return std::ldexp(1.0, 1 - format_of(dtype).bits); }

// The smallest spacing: results below it may be flushed or rounded away.
double smallest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p-1022 : dtype == DType::F16 ? 0x1p-24 : 0x1p-126;
}

bool same_special(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

bool zeros_differ(double a, double b) {
  return a == 0 && b == 0 && std::signbit(a) != std::signbit(b);
}

bool is_cancelled(const GateOptions& o) { return o.cancel != nullptr && o.cancel->load(); }

int64_t exponentials(const Graph& g) {
  return std::count_if(
      g.ops().begin(), g.ops().end(), [](const Op& op) { return op.kind == OpKind::Exp; });
}

// What both programs make of one set of inputs in f64.
struct Exact {
  std::vector<WithMagnitude> spec, candidate;
};

// Families of inputs of extreme magnitude, or at which the original itself loses digits: those that
// level `fast` lets be.
bool is_harsh(const std::string& family) {
  static const std::set<std::string> ordinary = {"normal",   "zeros",      "ties",     "equal",
                                                 "positive", "negative",   "whole",    "all_zero",
                                                 "integers", "neighbours", "constants"};
  return ordinary.count(family) == 0;
}

bool are_whole(const std::vector<NDArray>& inputs) {
  return std::all_of(
      inputs.begin(), inputs.end(),
      [](const NDArray& a) {
        return std::all_of(
            a.reals.begin(), a.reals.end(), [](double x) { return x == std::floor(x); });
      });
}

// The element where two f64 results differ most beyond `allowed`.
struct Worst {
  double ratio = 0;  // > 1: a difference
  int output = -1;
  int64_t index = 0;
  double spec = 0, candidate = 0, allowed = 0;
  bool undefined = false;  // one side is not finite
};

class Comparison {
 public:
  Comparison(Reference& reference, const Graph& candidate, const GateOptions& options)
      : reference_(reference), spec_(reference.spec()), candidate_(candidate), o_(options) {
    const Graph& spec = spec_;
    length_ = std::sqrt(std::max(rounding_length(spec), rounding_length(candidate)));
    // Integers on their own are compared over their whole range; among floats they stay small.
    const bool floats = std::any_of(spec.tensors().begin(), spec.tensors().end(),
                                    [](const Tensor& t) { return is_float(t.type.dtype); });
    const IntRange all{INT64_MIN, INT64_MAX};
    ranges_ = integer_ranges(spec, candidate, floats ? IntRange{-8, 8} : all);
    wide_ = integer_ranges(spec, candidate, all);
    whole_ = integer_ranges(spec, candidate, {-8, 255});
    work_ = count_work(spec) * 4 + count_work(candidate);
  }

  std::vector<NDArray> inputs(const std::string& family, uint64_t seed) const {
    return make_inputs(spec_, family, seed, ranges(family));
  }
  // Ordinary families, and what else is asked of floats and of integers.
  std::vector<std::string> families() const {
    std::vector<std::string> all = input_families();
    all.push_back("decades");   // positive numbers whose quotients are lost beside 1
    all.push_back("negative");  // where max(x, 0) is 0, sums that cancel are not
    if (std::any_of(spec_.inputs().begin(), spec_.inputs().end(),
                    [&](TensorId t) { return is_integer(spec_.type(t).dtype); }))
      all.insert(all.end(), {"integers", "neighbours"});  // of the whole range, which wrap; alike
    if (std::any_of(ranges_.begin(), ranges_.end(),
                    [](const IntRange& r) { return !r.points.empty(); }))
      all.push_back("constants");  // of the programs, which compare with them
    if (exponentials(candidate_) > exponentials(spec_))
      all.push_back("opposed");  // where exp(x + y) is a number and exp(x) is none
    if (turns(spec_, false)) all.push_back("whole");  // where jumps are meant
    if (std::any_of(spec_.ops().begin(), spec_.ops().end(),
                    [](const Op& op) { return op.kind == OpKind::Div; }))
      all.insert(all.end(), 4, "ties");  // where denominators are zero, what clips them is not
    return all;
  }
  const std::vector<IntRange>& ranges(const std::string& family) const {
    return family == "integers" || family == "neighbours" ? wide_
           : family == "whole"                            ? whole_
                                                          : ranges_;
  }
  // Whether two results of output `k` that are `off` apart can only be on two sides of a jump.
  bool jumps(size_t k, double magnitude, double off) const {
    const double unit = is_float(spec_.type(spec_.outputs()[k]).dtype) ? unit_of(rounded_[k]) : 0;
    return off > std::min(0x1p-6, 4096 * unit * length_) * magnitude;
  }
  // Of many draws the first at which the rewrite jumps elsewhere; one in 10,000 numbers tells.
  uint64_t telling(const std::string& family, const Rng& seeds) const {
    int64_t compared = 0;
    const int draws = turns(spec_, false) ? int(std::min(4096.0, 1e8 / std::max(1.0, work_))) : 0;
    for (int n = 0; n < draws && compared < 1 << 17 && !is_cancelled(o_); n++) {
      const uint64_t seed = seeds.split(uint64_t(n))();
      const auto drawn = inputs(family, seed), s = native(spec_, drawn),
                 c = native(candidate_, drawn);
      for (size_t k = 0; k < s.size(); k++)
        for (size_t i = 0; i < size_t(s[k].size()); i++, compared++) {
          const double x = s[k].at(i), off = std::fabs(x - c[k].at(i));
          if (!jumps(k, std::fabs(x), off)) continue;
          const WithMagnitude& exact = run(family, seed).exact[k];
          if (s[k].reals.empty() || jumps(k, exact.magnitude.reals[i], off)) return seed;
        }
    }
    return seeds.split(0)();
  }
  double work() const { return work_; }
  double length() const { return length_; }
  DType rounding(size_t k) const { return rounded_[k]; }

  // The original at one family, with what is known of it already.
  Reference::Run& run(const std::string& family, uint64_t seed) const {
    Reference::Run& r = reference_.run({family, seed, ranges(family)});
    if (r.inputs.empty()) r = run_at(inputs(family, seed));
    return r;
  }
  Reference::Run run_at(std::vector<NDArray> made) const {
    Reference::Run r;
    r.exact = magnitudes(spec_, made);  // throws where an index is out of range
    r.inputs = std::move(made);
    return r;
  }
  std::vector<WithMagnitude> magnitudes(const Graph& g, const std::vector<NDArray>& inputs) const {
    return eval_with_magnitude(g, inputs, {Precision::Wide, reference_.pool(), {}});
  }
  Exact exact(const std::vector<NDArray>& inputs) const {
    return {magnitudes(spec_, inputs), magnitudes(candidate_, inputs)};
  }
  std::vector<NDArray> native(const Graph& g, const std::vector<NDArray>& inputs) const {
    return eval(g, inputs, {Precision::Native, reference_.pool(), {}});
  }
  // Both programs with every rounding upward, and downward.
  std::vector<std::vector<NDArray>> rounded(const std::vector<NDArray>& inputs) const {
    std::vector<std::vector<NDArray>> results;
    for (const Graph* g : {&spec_, &candidate_})
      for (const int direction : {FE_UPWARD, FE_DOWNWARD}) {
        std::fesetround(direction);
        results.push_back(eval(*g, inputs, {Precision::Native, nullptr, {}}));
        std::fesetround(FE_TONEAREST);
      }
    return results;
  }

  // How far the original's results move when every input moves by a few units in the last place of
  // its dtype (or of f64): at a jump or a root of zero, rounding alone explains such differences,
  // though Σ|terms| does not show it. Integers that flip count as infinite.
  using Sensitivity = Reference::Sensitivity;
  Sensitivity sensitivity(const Graph& g, const std::vector<NDArray>& inputs,
                          const std::vector<WithMagnitude>& at, bool f64) const {
    Sensitivity moved;
    for (const WithMagnitude& w : at)
      moved.emplace_back(std::max(w.value.reals.size(), w.value.ints.size()), 0.0);
    Rng rng(o_.seed ^ 0x9d2c5680u);
    for (int trial = 0; trial < 16; trial++) {
      std::vector<NDArray> near = inputs;
      for (NDArray& a : near) {
        const double step = 4 * (f64 ? 0x1p-52 : is_float(a.dtype) ? unit_of(a.dtype) : 0);
        for (double& x : a.reals) x *= 1 + step * double(rng.between(-2, 2)) / 2;
      }
      std::vector<NDArray> y;
      for (WithMagnitude& w : magnitudes(g, near)) y.push_back(std::move(w.value));
      for (size_t k = 0; k < y.size(); k++) {
        for (size_t i = 0; i < y[k].ints.size(); i++)
          if (y[k].ints[i] != at[k].value.ints[i]) moved[k][i] = INFINITY;
        for (size_t i = 0; i < y[k].reals.size(); i++) {
          if (!std::isfinite(y[k].reals[i]) && !std::isfinite(at[k].value.reals[i])) continue;
          const double d = std::fabs(y[k].reals[i] - at[k].value.reals[i]);
          moved[k][i] = std::isfinite(d) ? std::max(moved[k][i], d) : INFINITY;
        }
      }
    }
    return moved;
  }

  // In f64 either program may sit on a jump by an accident of rounding.
  Sensitivity sensitivity_of_both(const std::vector<NDArray>& inputs, const Exact& e) const {
    Sensitivity moved = sensitivity(spec_, inputs, e.spec, true);
    const Sensitivity more = sensitivity(candidate_, inputs, e.candidate, true);
    for (size_t k = 0; k < moved.size(); k++)
      for (size_t i = 0; i < moved[k].size(); i++) moved[k][i] = std::max(moved[k][i], more[k][i]);
    return moved;
  }

  // The worst difference in f64. Where the original is not finite nothing is compared, and what
  // `excuse` (if any) explains is no difference.
  Worst worst_exact(const Exact& e, const Sensitivity* excuse = nullptr) const {
    Worst worst;
    auto excused = [&](size_t k, size_t i, double difference) {
      return excuse != nullptr && 4 * (*excuse)[k][i] >= difference;
    };
    for (size_t k = 0; k < e.spec.size(); k++) {
      const NDArray &s = e.spec[k].value, &c = e.candidate[k].value;
      for (size_t i = 0; i < s.ints.size(); i++)
        if (s.ints[i] != c.ints[i] && worst.ratio < 1e300 && !excused(k, i, INFINITY))
          worst = {1e300, int(k), int64_t(i), double(s.ints[i]), double(c.ints[i]), 0, false};
      for (size_t i = 0; i < s.reals.size(); i++) {
        const double x = s.reals[i], y = c.reals[i];
        if (!std::isfinite(x) || x == y) continue;
        const double scale = e.spec[k].magnitude.reals[i] + e.candidate[k].magnitude.reals[i];
        if (!std::isfinite(y)) {
          // Not finite because of overflow of f64 itself is a matter of precision.
          if (std::isfinite(e.spec[k].magnitude.reals[i]) && worst.ratio < 1e200 &&
              !excused(k, i, std::fabs(x)))
            worst = {1e200, int(k), int64_t(i), x, y, 0, true};
          continue;
        }
        if (!std::isfinite(scale)) continue;  // a jump nearby: no telling
        const double allowed = 64 * 0x1p-52 * length_ * scale + 0x1p-1000;
        const double ratio = std::fabs(x - y) / allowed;
        if (ratio > worst.ratio && !(ratio > 1 && excused(k, i, std::fabs(x - y))))
          worst = {ratio, int(k), int64_t(i), x, y, allowed, false};
      }
    }
    return worst;
  }

  Counterexample counterexample(Difference kind, const std::string& what,
                                const std::vector<NDArray>& inputs, const Worst& w) const {
    Counterexample c;
    c.kind = kind;
    c.what = what;
    c.inputs = concrete(spec_, inputs);
    c.output = w.output;
    const Type& type = spec_.type(spec_.outputs()[size_t(w.output)]);
    c.position = position_of(extents(type.shape), w.index);
    c.spec = w.spec;
    c.candidate = w.candidate;
    c.allowed = w.allowed;
    return c;
  }

  // Makes inputs that show an f64 difference smaller: zeros, then ones and round numbers.
  std::vector<NDArray> minimise(std::vector<NDArray> inputs) const {
    int64_t elements = 0;
    for (const NDArray& a : inputs) elements += a.size();
    int budget = int(std::clamp(2e7 / std::max(1.0, work_), 8.0, 600.0));
    auto still = [&](const std::vector<NDArray>& trial) {
      budget--;
      const Exact e = exact(trial);
      if (worst_exact(e).ratio <= 1e3) return false;
      const Sensitivity moved = sensitivity_of_both(trial, e);
      return worst_exact(e, &moved).ratio > 1e3;
    };
    if (!still(inputs)) return inputs;
    auto attempt = [&](auto change) {
      if (budget <= 0) return;
      std::vector<NDArray> trial = inputs;
      change(trial);
      if (still(trial)) inputs = std::move(trial);
    };
    for (size_t k = 0; k < inputs.size(); k++)
      attempt([&](std::vector<NDArray>& t) {
        std::fill(t[k].reals.begin(), t[k].reals.end(), 0.0);
        std::fill(t[k].ints.begin(), t[k].ints.end(), 0);
      });
    // Halves, quarters … down to elements.
    for (int64_t pieces = 2; pieces < 2 * elements && budget > 0; pieces *= 2)
      for (size_t k = 0; k < inputs.size(); k++) {
        const int64_t n = inputs[k].size(), size = (n + pieces - 1) / pieces;
        for (int64_t from = 0; from < n && budget > 0; from += size) {
          bool zero = true;
          for (int64_t i = from; i < std::min(n, from + size); i++)
            zero = zero && inputs[k].at(size_t(i)) == 0;
          if (zero) continue;
          attempt([&](std::vector<NDArray>& t) {
            for (int64_t i = from; i < std::min(n, from + size); i++)
              (t[k].ints.empty() ? t[k].reals[size_t(i)] = 0 : double(t[k].ints[size_t(i)] = 0));
          });
        }
      }
    for (size_t k = 0; k < inputs.size(); k++)
      for (size_t i = 0; i < inputs[k].reals.size() && budget > 0; i++) {
        const double x = inputs[k].reals[i];
        if (x == 0) continue;
        for (double y : {1.0, std::round(x), std::round(x * 8) / 8})
          if (y != 0 && y != inputs[k].reals[i])
            attempt([&](std::vector<NDArray>& t) { t[k].reals[i] = round_to(t[k].dtype, y); });
      }
    return inputs;
  }

  // A difference in f64 at these inputs, or nothing.
  std::optional<Counterexample> difference(const std::vector<NDArray>& inputs,
                                           const Exact& e) const {
    Worst w = worst_exact(e);
    if (w.ratio <= 1) return std::nullopt;
    const Sensitivity moved = sensitivity_of_both(inputs, e);
    w = worst_exact(e, &moved);
    if (w.ratio <= 1) return std::nullopt;
    if (!o_.minimise || w.ratio <= 1e3) return value_counterexample(inputs, w);
    std::vector<NDArray> small = minimise(inputs);
    Worst after = worst_exact(exact(small));
    if (after.ratio <= 1e3) after = w, small = inputs;
    return value_counterexample(small, after);
  }
  Counterexample value_counterexample(const std::vector<NDArray>& inputs, const Worst& w) const {
    return counterexample(w.undefined ? Difference::Definedness : Difference::Value,
                          w.undefined
                              ? "in f64 the original is finite and the rewrite is not"
                              : "the programs compute different values in exact f64 evaluation",
                          inputs, w);
  }

  Reference& reference_;
  const Graph &spec_, &candidate_;
  const GateOptions& o_;
  double length_ = 1, work_ = 0;
  std::vector<IntRange> ranges_, wide_, whole_;
  std::vector<DType> rounded_ = coarsest_rounding(spec_);
};

// Operators of the original that are undefined somewhere, for the assumption's text.
std::string partial_operators(const Graph& g) {
  std::string list;
  int shown = 0;
  for (size_t i = 0; i < g.ops().size(); i++) {
    const Op& op = g.ops()[i];
    const bool partial = op.kind == OpKind::Div || op.kind == OpKind::Rsqrt ||
                         op.kind == OpKind::Sqrt || op.kind == OpKind::Log ||
                         (op.kind == OpKind::Pow && (g.attrs<PowAttrs>(op).exponent.negative() ||
                                                     !g.attrs<PowAttrs>(op).exponent.is_integer()));
    if (!partial || ++shown > 4) continue;
    list += (list.empty() ? "" : "; ") + print_op(g, OpId(i));
  }
  return list.empty() ? "its kernels" : list;
}

// Whether a program adds up terms: there infinities of both signs meet, or not, as a rewrite has
// it.
bool adds_up(const Graph& g) {
  return std::any_of(
      g.ops().begin(), g.ops().end(),
      [](const Op& op) { return op.body.valid() || adds_up(op.kind); });
}

// Looks for the scales at which formats break; false if that ends the gate.
bool breaks_nowhere(const Comparison& cmp, Reference& reference, const Graph& candidate,
                    const GateOptions& o, GateResult& result) {
  RangeOptions ranges;
  ranges.seed = Rng(o.seed).split(5000)();
  ranges.ranges = cmp.ranges("scales");
  ranges.c = o.c;
  ranges.max_work = o.max_work / 5;
  ranges.cancel = o.cancel;
  ranges.progress = o.progress;
  ranges.sensitivity = [&](Reference::Run& r) {
    r.moved = cmp.sensitivity(reference.spec(), r.inputs, r.exact, false);
  };
  RangeResult found = search_ranges(reference, candidate, ranges);
  result.cancelled = found.cancelled;
  result.families.push_back(found.family);
  if (found.fault) {
    const RangeFault& f = *found.fault;
    result.counterexample = cmp.counterexample(
        Difference::Precision,
        (f.undefined ? "the original is finite in its dtype and the rewrite is not ("
                     : "the rewrite loses digits that the original keeps (") +
            f.where + ")",
        f.inputs, {0, f.output, f.index, f.spec, f.candidate, f.allowed, f.undefined});
  }
  return !found.cancelled && !found.fault;
}

// Whether NaN or infinities turn a condition that falls one way at ordinary inputs.
bool asks_by_conditions(const Comparison& cmp, const Graph& spec, const GateOptions& o) {
  std::vector<TensorId> conditions;
  for (const Op& op : spec.ops())
    if (spec.type(op.result()).dtype == DType::Bool && !op.inputs.empty())
      conditions.push_back(op.result());
  Graph g = spec;
  g.set_outputs(conditions);
  constexpr int kBoth = 3;
  std::vector<int> sides(conditions.size());
  const auto is_open = [](int side) { return side != kBoth; };
  const double draws = std::min(48.0, o.max_work / (8 * std::max(1.0, cmp.work())));
  for (const bool ordinary : {true, false})
    for (int n = 0; n < draws && std::any_of(sides.begin(), sides.end(), is_open); n++) {
      const char* const all[] = {"normal", "mixed", "all_zero", "huge", "tiny", "whole"};
      const char* const family = ordinary ? all[n % 6] : n % 2 ? "special" : "few_special";
      const auto values = cmp.native(g, cmp.inputs(family, Rng(o.seed).split(9000 + n)()));
      for (size_t k = 0; k < sides.size(); k++)
        for (const int64_t holds : values[k].ints) {
          const int now = sides[k] | (holds ? 1 : 2);
          if (!ordinary && is_open(sides[k]) && now == kBoth) return true;
          if (ordinary) sides[k] = now;
        }
    }
  return false;
}

}  // namespace

GateResult numeric_gate(Reference& reference, const Graph& candidate, const GateOptions& o) {
  GateResult result;
  const Graph& spec = reference.spec();
  const Comparison cmp(reference, candidate, o);
  double spent = 0;
  bool larger_domain = false;
  const bool elementwise = !adds_up(spec) && !adds_up(candidate);
  std::vector<std::string> families = cmp.families();
  size_t rare = 0;  // of these, so many were looked at
  if (o.rare != nullptr) families.insert(families.end(), o.rare->size(), "rare");
  if (o.level == Accuracy::Fast) std::erase_if(families, is_harsh);
  // Dense special inputs soon make everything NaN, where nothing can differ.
  const bool keeps = o.special || (o.level == Accuracy::Close && asks_by_conditions(cmp, spec, o));
  if (keeps) {
    families.insert(families.end(), 48, "few_special");
    families.insert(families.end(), 24, "extreme");
  }
  for (const std::string& family : families) {
    if (is_cancelled(o)) {
      result.cancelled = true;
      return result;
    }
    // "mixed" holds a row of nearly every family and always runs, "integers", "constants" and
    // "opposed" are like no other; the rest while affordable.
    if (family != families.front() && family != "integers" && family != "neighbours" &&
        family != "constants" && family != "opposed" && spent + cmp.work() > o.max_work)
      continue;
    if (o.progress) o.progress("real inputs: " + family);
    spent += cmp.work();
    // At whole numbers no jump is an accident: the rewrite jumps where the original does.
    bool whole = family == "whole" || family == "integers" || family == "neighbours";
    const Rng seeds = Rng(o.seed).split(result.families.size());
    const uint64_t seed = whole ? cmp.telling(family, seeds) : Rng(seeds)();
    Reference::Run own;
    if (family == "rare") own = cmp.run_at((*o.rare)[rare++]);
    Reference::Run& run = family == "rare" ? own : cmp.run(family, seed);
    const std::vector<NDArray>& inputs = run.inputs;
    // Those sought for may be made to tie: of values that are rounded, rounding decides; the
    // rewrite's alone excuses nothing at whole numbers at which the original is right.
    const bool sought = family == "rare";
    const bool whole_inputs = are_whole(inputs);
    if (sought) whole = whole_inputs;
    std::vector<std::vector<NDArray>> rounded;
    const auto is_meant = [&](size_t k, size_t i) {
      if (sought && rounded.empty()) rounded = cmp.rounded(inputs);
      const double own = run.native[k].at(i), right = run.exact[k].value.at(i);
      const bool exact = whole_inputs && !cmp.jumps(k, std::fabs(own), std::fabs(own - right));
      for (size_t up = 0; up < rounded.size(); up += 2) {
        const double x = rounded[up][k].at(i), y = rounded[up + 1][k].at(i);
        if (cmp.jumps(k, std::fabs(x), std::fabs(x - y))) return up > 0 && exact;
      }
      return true;
    };
    const bool special = family == "special" || family == "few_special" || family == "extreme";
    Exact e;
    e.spec = run.exact;
    const bool cheap = cmp.work() * double(families.size()) <= o.max_work;
    if (cheap && !special) {
      e.candidate = cmp.magnitudes(candidate, inputs);
      if (auto difference = cmp.difference(inputs, e)) {
        result.counterexample = std::move(difference);
        return result;
      }
    }
    if (run.native.empty()) run.native = cmp.native(spec, inputs);
    const std::vector<NDArray>& s = run.native;
    const std::vector<NDArray> c = cmp.native(candidate, inputs);
    GateFamily f;
    Worst worst;
    std::optional<Worst> differs_special, lost_infinity;
    auto scan = [&](const Comparison::Sensitivity* excuse) {
      f = GateFamily{};
      f.family = family;
      f.seed = seed;
      int64_t counted = 0;  // elements in the means
      worst = Worst{};
      for (size_t k = 0; k < s.size(); k++) {
        const NDArray &ref = e.spec[k].value, &mag = e.spec[k].magnitude;
        const auto off = [&](size_t i, double x) { return e.spec[k].error(i, x); };
        if (!is_float(s[k].dtype)) {  // compared in f64; report what rounding flips
          for (size_t i = 0; i < s[k].ints.size(); i++) {
            if (c[k].ints[i] == s[k].ints[i]) continue;
            const Worst flip{2, int(k), int64_t(i), s[k].at(i), c[k].at(i), 0, special};
            if (whole && is_meant(k, i)) worst = flip;
            if (!special) continue;
            f.special_differ++;
            if (!differs_special) differs_special = flip;
          }
          f.elements += int64_t(s[k].ints.size());
          continue;
        }
        const double unit = unit_of(cmp.rounding(k)), floor = smallest_of(s[k].dtype);
        auto usable = [&](size_t i) {
          return std::isfinite(ref.reals[i]) && std::isfinite(s[k].reals[i]);
        };
        double spec_error = 0;
        for (size_t i = 0; i < ref.reals.size(); i++) {
          if (special || !usable(i) || !std::isfinite(mag.reals[i]) || mag.reals[i] <= 0 ||
              (excuse && (*excuse)[k][i] > 0.01 * mag.reals[i]))
            continue;
          const double own = off(i, s[k].reals[i]) / mag.reals[i];
          const double other = off(i, c[k].reals[i]) / mag.reals[i];
          spec_error = std::max(spec_error, own);
          if (!std::isfinite(other)) continue;  // judged below
          f.candidate_error = std::max(f.candidate_error, other);
          counted++;
          f.spec_mean += (own - f.spec_mean) / double(counted);
          f.candidate_mean += (other - f.candidate_mean) / double(counted);
        }
        f.spec_error = std::max(f.spec_error, spec_error);
        for (size_t i = 0; i < ref.reals.size(); i++) {
          const double x = s[k].reals[i], y = c[k].reals[i];
          if (special || !usable(i)) {
            f.not_finite++;
            const bool both_finite = std::isfinite(x) && std::isfinite(y);
            // What is made of NaN and infinities by programs that ask for them.
            const double near = std::isfinite(mag.reals[i])
                                    ? o.c * unit * cmp.length() * mag.reals[i] + 4 * floor
                                    : 0x1p-6 * std::max(std::fabs(x), std::fabs(y));
            const bool differ = special && both_finite
                                    ? keeps && (zeros_differ(x, y) ||
                                                std::fabs(x - y) > std::max(near, 2 * off(i, x)))
                                    : !same_special(x, y);
            if (differ) {
              f.special_differ++;
              if (!differs_special) differs_special = Worst{2, int(k), int64_t(i), x, y, 0, true};
              if (!special && !std::isfinite(ref.reals[i]) && std::isfinite(y))
                larger_domain = true;
              // Infinity has a sign and an order, NaN has none: that is less, not more.
              if (elementwise && !special && std::isinf(ref.reals[i]) && ref.reals[i] == x &&
                  std::isnan(y) && !lost_infinity)
                lost_infinity = Worst{2, int(k), int64_t(i), x, y, 0, true};
            }
            continue;
          }
          const double scale = mag.reals[i];
          f.elements += std::isfinite(scale);
          const double error = std::isfinite(y) ? off(i, y) : INFINITY;
          const bool far = whole && cmp.jumps(k, scale, std::fabs(x - y));
          // What is finite beyond a pole (by clip) has the pole's sign. Where neither program
          // rounds, denominators are not zero by accident.
          const bool exact =
              x == ref.reals[i] &&
              (e.candidate.empty() ? whole_inputs : y == e.candidate[k].value.reals[i]);
          const bool pole = exact && std::isinf(scale) &&
                            std::fabs(x - y) > 0x1p-6 * std::fmax(std::fabs(x), std::fabs(y));
          const bool jump = pole || (far && is_meant(k, i));
          if (!jump && (error == 0 || error <= 2 * off(i, x))) continue;
          if (excuse && !jump && !(whole && !far && x == ref.reals[i]) &&
              4 * (*excuse)[k][i] >= std::min(error, std::fabs(x) + 1e-30))
            continue;
          if (jump && worst.ratio < 2) worst = {2, int(k), int64_t(i), x, y, 0, false};
          if (std::isinf(error)) {
            if (worst.ratio < 1e300) worst = {1e300, int(k), int64_t(i), x, y, 0, true};
            continue;
          }
          if (!std::isfinite(scale)) continue;
          const double allowed = std::max(2 * spec_error, o.c * unit * cmp.length()) * scale +
                                 4 * floor * cmp.length();
          f.worst_ratio = std::max(f.worst_ratio, error / allowed);
          if (error / allowed > worst.ratio)
            worst = {error / allowed, int(k), int64_t(i), x, y, allowed, false};
        }
      }
    };
    scan(nullptr);
    if (worst.ratio > 1) {
      if (run.moved.empty()) run.moved = cmp.sensitivity(spec, inputs, e.spec, false);
      scan(&run.moved);
    }
    if (worst.ratio > 1) {
      // Different numbers, or equal numbers computed badly? f64 tells.
      if (e.candidate.empty()) {
        e.candidate = cmp.magnitudes(candidate, inputs);
        result.counterexample = cmp.difference(inputs, e);
      }
      if (!result.counterexample)
        result.counterexample = cmp.counterexample(
            Difference::Precision,
            worst.undefined
                ? "the original is finite in its dtype and the rewrite is not (inputs: " + family +
                      ")"
                : "the rewrite's error is larger than the original's and than rounding explains "
                  "(inputs: " +
                      family + ")",
            inputs, worst);
      return result;
    }
    if (lost_infinity) {
      result.counterexample = cmp.counterexample(
          Difference::Definedness,
          "the original is infinite and the rewrite is NaN (inputs: " + family + ")", inputs,
          *lost_infinity);
      return result;
    }
    if (keeps && differs_special) {
      result.counterexample = cmp.counterexample(
          Difference::Definedness,
          "the programs differ where the original is not finite (inputs: " + family + ")", inputs,
          *differs_special);
      return result;
    }
    if (family != "rare") result.families.push_back(f);  // others find other ones
  }
  if (o.scales && o.level != Accuracy::Fast &&
      !breaks_nowhere(cmp, reference, candidate, o, result))
    return result;
  if (larger_domain)
    result.assumptions.push_back(
        "the rewrite is defined at some inputs where the original is not; they are equal where the "
        "original is: " +
        partial_operators(spec));
  return result;
}

std::optional<Counterexample> difference_at(Reference& spec, const Graph& candidate,
                                            const std::vector<NDArray>& inputs,
                                            const GateOptions& o) {
  const Comparison cmp(spec, candidate, o);
  Exact at = cmp.exact(inputs);
  // At a pole Σ|terms| is infinite as where f64 overflows; beside a pole it is not.
  std::vector<NDArray> near = inputs;
  Rng rng(o.seed);
  for (NDArray& a : near)
    for (double& x : a.reals) x += 0x1p-12 * (1 + std::fabs(x)) * (1 + rng.unit());
  const Exact beside = cmp.exact(near);
  for (size_t k = 0; k < at.spec.size(); k++)
    for (size_t i = 0; i < at.spec[k].magnitude.reals.size(); i++)
      if (!std::isfinite(at.spec[k].magnitude.reals[i]) &&
          std::isfinite(beside.candidate[k].magnitude.reals[i]))
        at.spec[k].magnitude.reals[i] = beside.spec[k].magnitude.reals[i];
  const Worst w = cmp.worst_exact(at);
  if (w.ratio <= 1e6) return std::nullopt;
  return cmp.counterexample(w.undefined ? Difference::Definedness : Difference::Value,
                            "the programs compute different values where operands are equal or a "
                            "denominator is zero",
                            inputs, w);
}

std::optional<Counterexample> find_difference(Reference& spec, const Graph& candidate,
                                              const GateOptions& o) {
  const Comparison cmp(spec, candidate, o);
  double spent = 0;
  for (uint64_t round = 0; round < 6; round++)
    for (const std::string& family : cmp.families()) {
      if (family == "special") continue;
      if (is_cancelled(o)) return std::nullopt;
      if (spent > 4 * o.max_work) return std::nullopt;
      if (o.progress) o.progress("looking for inputs that show a difference: " + family);
      spent += cmp.work();
      const std::vector<NDArray> inputs = cmp.inputs(family, Rng(o.seed).split(1000 + round)());
      if (auto d = cmp.difference(inputs, cmp.exact(inputs))) return d;
    }
  return std::nullopt;
}

}  // namespace tessera
